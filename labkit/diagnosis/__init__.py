"""What `lab doctor` looks at: one function a check, each returning findings with what to do about what is missing."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `missing` means a run cannot work without it; `note` is worth knowing, or optional."""

    name: str
    state: State
    found: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # the same in machine-readable form, for --json


class Machine:
    """What several checks need and is slow to learn: the devices the Vulkan loader lists, found out once."""

    @cached_property
    def devices(self) -> "Listing":
        """The Vulkan devices, listed in a process of their own, since a broken driver may crash it."""
        from labkit.diagnosis.listing import list_apart

        return list_apart()


@dataclass(frozen=True)
class Listing:
    """The devices as plain facts (`DeviceInfo` fields), or why they could not be listed."""

    devices: list[dict[str, Any]]
    trouble: str = ""


Check = Callable[[Machine], list[Finding]]
_checks: dict[str, Check] = {}


def check(title: str) -> Callable[[Check], Check]:
    """Register a check under the title its findings are printed below."""

    def register(function: Check) -> Check:
        _checks[title] = function
        return function

    return register


def examine() -> dict[str, list[Finding]]:
    """Run every check of this package: title -> findings, in the order of the modules' names and of their lines.

    A check that itself breaks becomes a finding, so that the others are still seen.
    """
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    machine, report = Machine(), {}
    for title, function in _checks.items():
        try:
            report[title] = function(machine)
        except Exception as error:  # a doctor that dies of the illness helps nobody
            report[title] = [Finding(title, "missing", f"the check itself failed: {type(error).__name__}: {error}")]
    return report
