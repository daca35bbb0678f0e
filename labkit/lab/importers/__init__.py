"""Readers of what other tools measured, one file a format; each declares itself with `@importer`."""
