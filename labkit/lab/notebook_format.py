"""Imports nbformat in a quarter of a second instead of two and a half."""

import importlib
import sys
from typing import Any

GRAMMAR = "rfc3987_syntax"


def load_nbformat() -> Any:
    """The module `nbformat`. The checker it imports, jsonschema, compiles a grammar of international addresses when
    that package is there, which takes two seconds; notebooks have no such field, so it is told there is none."""
    if "jsonschema" not in sys.modules and GRAMMAR not in sys.modules:
        sys.modules[GRAMMAR] = None  # type: ignore[assignment]
        try:
            importlib.import_module("jsonschema")
        finally:
            del sys.modules[GRAMMAR]
    return importlib.import_module("nbformat")
