"""Live views for a notebook: each works on a thread of its own, can be stopped, and leaves a picture behind it."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.widgets.explore import explore
    from labkit.widgets.kernel_lab import kernel_lab
    from labkit.widgets.playground import playground
    from labkit.widgets.roofline import roofline
    from labkit.widgets.telemetry import telemetry
    from labkit.widgets.watch import watch

__all__ = ["explore", "kernel_lab", "playground", "roofline", "telemetry", "watch"]


class _Views(ModuleType):
    """This package: the name of a view is the view, also once the module of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Views


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"labkit.widgets has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"labkit.widgets.{name}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
