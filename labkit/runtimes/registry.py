"""The registry of runtimes: each file of `labkit/runtimes/` that can open one declares it with `@opener`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import ParameterError
from labkit.runtimes.runtime import Runtime
from labkit.vulkan.device import Device, DeviceInfo, list_devices, select

Loading = Callable[[float], None]  # called with the seconds so far while a runtime loads
LOG_SUFFIX = ".log"


def not_told(seconds: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Wanted:
    """A runtime to be opened: `argument` is what follows the colon of its name, `model` the file, `log` where its output
    goes, `flags` a person's own; `context` is positions of one slot. `ub` None leaves it to the runtime."""

    kind: str
    argument: str
    model: Path
    log: Path
    slots: int
    context: int
    device: Device | int | str | None = None
    ub: int | None = None
    kv: str = "f16"
    draft: str | int | None = None
    flags: tuple[str, ...] = ()
    label: str | None = None
    loading: Loading = not_told

    @property
    def device_index(self) -> int:
        """The device's place among those of the Vulkan loader."""
        return self.device_info.index

    @property
    def device_info(self) -> DeviceInfo:
        """The device that is meant. DeviceError or ParameterError when there is none of that name."""
        return self.device.info if isinstance(self.device, Device) else select(list_devices(), self.device)

    def refuse_draft(self) -> None:
        """ParameterError where a draft was asked of a runtime that drafts nothing."""
        if self.draft:
            raise ParameterError(f"draft={self.draft}: {self.kind} drafts nothing; leave it out")

    def refuse_argument(self) -> None:
        """ParameterError where something follows the colon of a runtime that takes nothing there."""
        if self.argument:
            raise ParameterError(f"{self.kind}:{self.argument}: nothing goes behind {self.kind}; write {self.kind}")

    def options(self, known: Sequence[str]) -> dict[str, str]:
        """The flags as name → value, `--name value` or `--name=value`. ParameterError for one that is not `known`."""
        found: dict[str, str] = {}
        words = [part for flag in self.flags for part in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
            if name.removeprefix("--") not in known or not name.startswith("--") or not value:
                takes = ", ".join(f"--{each} VALUE" for each in known) or "none"
                raise ParameterError(f"{self.kind} does not take the flag {' '.join((name, value)).strip()}: {takes}")
            found[name.removeprefix("--")] = value
        return found


Open = Callable[[Wanted], Runtime]
Missing = Callable[[str], str | None]  # takes what follows the colon of a spec


@dataclass(frozen=True)
class Kind:
    """One kind of runtime: its name, what it is, and how it is opened."""

    name: str
    about: str
    open: Open
    look: Missing
    module: str = ""

    def missing(self, argument: str = "") -> str | None:
        """Why one cannot run here, in one line, None when one can; `argument` is what follows the colon of a spec."""
        return self.look(argument)


_found: dict[str, Kind] = {}


def opener(name: str, *, missing: Missing) -> Callable[[Open], Open]:
    """Declares the decorated function as what opens runtimes called `name`; its docstring says what they are.

    `missing(argument)` says in one line why none can run here, None when one can; the argument is what follows the colon of a
    spec. ParameterError for a name that is taken."""

    def declare(open: Open) -> Open:
        module = open.__module__
        if name in _found and _found[name].module != module:
            raise ParameterError(f"the runtime {name!r} is declared twice, in {_found[name].module} and in {module}")
        _found[name] = Kind(name, inspect.cleandoc(open.__doc__ or "").splitlines()[0], open, missing, module)
        return open

    return declare


def kinds() -> dict[str, Kind]:
    """Every kind of runtime by its name."""
    import labkit.runtimes as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_found.items()))


def unless(look: Callable[[], object]) -> str | None:
    """What a look raises as a LabError, None when it raises nothing: for `missing`."""
    from labkit.errors import LabError

    try:
        look()
    except LabError as error:
        return str(error)
    return None
