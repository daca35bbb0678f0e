"""Writers of a run in other tools' rows, one file a format; each declares itself with `@exporter`."""
