"""The reference of the documentation, made of the code: what each registry, schema, verb and module says of itself."""

from labkit.lab.reference.registry import FOLDER, reference_files, stale_files

__all__ = ["FOLDER", "reference_files", "stale_files"]
