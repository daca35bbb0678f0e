"""The audit: detectors that read what was measured or claimed, and say where it cannot be so."""
