"""The registry of reference pages: each file of `labkit/lab/reference/` declares what it writes with `@reference`."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from labkit.errors import ParameterError

FOLDER = Path("docs") / "reference"
Pages = Iterable[tuple[str, str]]  # file below FOLDER, its text

_writers: dict[str, Callable[[], Pages]] = {}


def reference(write: Callable[[], Pages]) -> Callable[[], Pages]:
    """Declares the decorated function as what writes one or more files of the reference."""
    _writers[write.__module__] = write
    return write


def reference_files() -> dict[str, str]:
    """Every file of the reference by its place below docs/reference, in the order of their names. ParameterError for one
    that is written twice."""
    import labkit.lab.reference as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    found: dict[str, str] = {}
    for name, write in sorted(_writers.items()):
        for file, text in write():
            if file in found:
                raise ParameterError(f"docs/reference/{file} is written twice, the second time by {name}")
            found[file] = text
    return dict(sorted(found.items()))


def stale_files(root: Path, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(files of the reference that differ from `files` or are not there, files there that nothing writes), by their
    places below docs/reference in the lab at `root`."""
    folder = root / FOLDER
    differ = [name for name, text in files.items() if read_text(folder / name) != text]
    there = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return differ, [name for name in there if name not in files]


def read_text(path: Path) -> str | None:
    """The text of a file, None where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
