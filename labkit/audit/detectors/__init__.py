"""The detectors, one a file: a module here is found by itself (see `labkit.audit.registry`)."""
