"""The registry of detectors: each file of `labkit/audit/detectors/` declares one with `@detector` and is found by itself."""

import functools
import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from labkit.audit.evidence import Evidence
from labkit.audit.notice import Notice
from labkit.errors import ParameterError

Judge = Callable[[Evidence], Iterable[Notice]]


@dataclass(frozen=True)
class Detector:
    """One way of fooling oneself, and what sees it. `number` is its place in the design's list, which is the order they
    run in; `version` goes up when its judgement changes. `explains` are the detectors whose notices on the same subjects
    follow from this one's. An `essential` one judges each row by itself: without it a row counts as not assessed."""

    id: str
    number: float
    version: int
    title: str
    about: str
    judge: Judge
    explains: tuple[str, ...] = ()
    essential: bool = False
    module: str = ""

    @property
    def stamp(self) -> str:
        """Which version judged: the number, and a hash of the file that holds it and of those it takes names from."""
        own = importlib.import_module(self.module)
        text = "".join(source_digest(module) for module in (own, *leaned_on(own)))
        return f"{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def notices(self, evidence: Evidence) -> Iterator[Notice]:
        """Its notices on the evidence, signed."""
        for notice in self.judge(evidence):
            yield notice.model_copy(update={"detector": self.id, "explains": notice.explains or self.explains})


_found: dict[str, Detector] = {}


def detector(
    id: str, number: float, *, version: int, title: str, explains: tuple[str, ...] = (), essential: bool = False
) -> Callable[[Judge], Judge]:
    """Declares the decorated function as a detector; its docstring says what it judges by. ParameterError for a name
    that is taken."""

    def declare(judge: Judge) -> Judge:
        module = judge.__module__
        if id in _found and _found[id].module != module:
            raise ParameterError(f"the detector {id!r} is declared twice, in {_found[id].module} and in {module}")
        about = inspect.cleandoc(judge.__doc__ or "")
        _found[id] = Detector(id, number, version, title, about, judge, explains, essential, module)
        return judge

    return declare


def detectors() -> dict[str, Detector]:
    """Every detector by its id, in the order they run in."""
    import labkit.audit.detectors as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return {one.id: one for one in sorted(_found.values(), key=lambda one: (one.number, one.id))}


def stamps() -> dict[str, str]:
    """Which version of each detector, and of the evidence they read, is here: what stored results are compared with."""
    from labkit.audit import claims, devices, evidence, marginal, physics, report, run_evidence, run_files

    shared = "".join(
        source_digest(module)
        for module in (evidence, physics, marginal, run_evidence, run_files, claims, devices, report)
    )
    return {"evidence": hashlib.sha256(shared.encode()).hexdigest()[:10]} | {
        id: one.stamp for id, one in detectors().items()
    }


def leaned_on(module: ModuleType) -> list[ModuleType]:
    """labkit's modules that a module takes names from: the functions, classes and modules it imports at its top."""
    taken = [value for value in vars(module).values() if callable(value) or isinstance(value, ModuleType)]
    names = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in taken}
    ours = sorted(name for name in names if isinstance(name, str) and name.startswith("labkit."))
    return [sys.modules[name] for name in ours if name in sys.modules and name != module.__name__]


def source_digest(module: object) -> str:
    """The start of the SHA-256 of a module's file."""
    path = getattr(module, "__file__", None)
    if not path:
        return ""
    stat = Path(path).stat()
    return file_digest(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def file_digest(path: str, changed: int, size: int) -> str:
    """The start of the SHA-256 of a file, read again when it changes."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:10]
