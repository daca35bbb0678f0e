"""`lab bench`: decode and prefill rates of an engine and its peers, each beside the device's own ceiling."""
