"""labkit: a lab notebook for people who run language models on their own GPU through Vulkan.

The nouns are `Device`, `Model`, `Engine`, `Lab`, `Plan` with its `Rule` and `Anchor`, and `Kernel`; each is imported when used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.engine.engine import Engine
    from labkit.lab.lab import Lab
    from labkit.lab.plan import Anchor, Plan, Rule
    from labkit.models.model import Model
    from labkit.vulkan.device import Device, list_devices
    from labkit.vulkan.kernel import Kernel

__version__ = "0.1.0"
__all__ = ["Anchor", "Device", "Engine", "Kernel", "Lab", "LabError", "Model", "Plan", "Rule", "list_devices"]

_HOMES = {
    "Anchor": "labkit.lab.plan",
    "Device": "labkit.vulkan.device",
    "Engine": "labkit.engine.engine",
    "Kernel": "labkit.vulkan.kernel",
    "Lab": "labkit.lab.lab",
    "Model": "labkit.models.model",
    "Plan": "labkit.lab.plan",
    "Rule": "labkit.lab.plan",
    "list_devices": "labkit.vulkan.device",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"labkit has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext labkit` calls: see `labkit.lab.magics`."""
    importlib.import_module("labkit.lab.magics").load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
