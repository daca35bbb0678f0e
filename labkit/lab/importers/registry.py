"""The registry of importers: each file of this folder declares one with `@importer` and is found by itself."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.importers.document import Document


@dataclass(frozen=True)
class Measured:
    """One repetition of a cell, in the order they were measured: registered metrics, and the requests it was made of.
    `utc` is when it was measured, None where the file does not say."""

    knobs: Mapping[str, Any]
    metrics: Mapping[str, float]
    requests: Sequence[Mapping[str, Any]] = ()
    utc: datetime | None = None


@dataclass(frozen=True)
class Contents:
    """What a file says: its measurements, and the conditions that all of them share. What it does not say is left out.

    `packages` are versions by program, `settings` what else was set; `seconds` how long it took in all."""

    measured: Sequence[Measured]
    device: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    processor: str | None = None
    started: datetime | None = None
    seconds: float | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


Recognise = Callable[[Document], bool]
Read = Callable[[Document], Contents]


@dataclass(frozen=True)
class Importer:
    """A format: its name, what writes it, what tells it from others, and its reader."""

    name: str
    about: str
    recognises: Recognise
    read: Read
    module: str


_found: dict[str, Importer] = {}


def importer(name: str, about: str, recognises: Recognise) -> Callable[[Read], Read]:
    """Declares the decorated function as the reader of a format. ParameterError for a name that is taken."""

    def declare(read: Read) -> Read:
        module = read.__module__
        if name in _found and _found[name].module != module:
            raise ParameterError(f"the importer {name!r} is declared twice, in {_found[name].module} and in {module}")
        _found[name] = Importer(name, about, recognises, read, module)
        return read

    return declare


def importers() -> dict[str, Importer]:
    """Every importer by its name."""
    import labkit.lab.importers as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_found.items()))


def importer_of(document: Document) -> Importer:
    """The one that reads this file. RunError, naming all formats, where none does, or more than one."""
    known = importers()
    fitting = [one for one in known.values() if one.recognises(document)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise document.fault(f"may be of {' or '.join(one.name for one in fitting)}: it has the fields of both")
    raise document.fault(
        f"is none of a run's zip, {', '.join(f'{one.name} ({one.about})' for one in known.values())}: it begins with "
        f"{document.text[:30]!a}"
    )
