"""i915's and xe's files under /sys: clock, power and what holds an Intel card back, at its place on the PCI bus.

Names after the kernel's Documentation/ABI (sysfs-driver-intel-i915-hwmon, sysfs-driver-intel-xe-hwmon) and the drivers'
own throttle files; memory in use and processes come from fdinfo alone.
"""

import time
from pathlib import Path
from typing import Any

from labkit.measure.amdgpu import number_of, text_of
from labkit.measure.telemetry import Reading

VENDOR = 0x8086
_CAUSES = (
    ("pl", "power cap"), ("thermal", "heat"), ("vr_thermalert", "heat"), ("prochot", "hardware slowdown"),
    ("vr_tdc", "current limit"),
)  # fmt: skip


class Intel:
    """Readings of one card; made by `of`. `folder` is its device folder."""

    name = "Intel"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._energy: tuple[float, float] | None = None  # (when, joules) at the last reading

    @classmethod
    def of(cls, vendor_id: int, pci: str | None, root: Path = Path("/")) -> "tuple[Intel | None, str]":
        """The card at `pci` ("0000:03:00.0") with its files; or None and why."""
        if vendor_id != VENDOR:
            return None, ""
        if pci is None:
            return None, "its Vulkan driver does not say where it is on the PCI bus"
        card = cls(root / "sys/bus/pci/devices" / pci)
        return (card, "") if not card.read().empty else (None, f"{card.folder} has no files that can be read")

    def read(self) -> Reading:
        """The present; power from the energy used since the last reading."""
        clocks = [*self.folder.glob("drm/card*/gt/gt*/rps_act_freq_mhz"), *self.folder.glob("tile*/gt*/freq0/act_freq")]
        speeds = [speed for path in clocks if (speed := number_of(path, 1.0)) is not None]
        spent = next(
            (j for path in self.folder.glob("hwmon/hwmon*/energy1_input") if (j := number_of(path, 1e-6)) is not None),
            None,
        )
        return Reading(
            core_mhz=max(speeds, default=None), power_w=self._power(spent), limited=self.limited(), energy_j=spent
        )

    def _power(self, spent: float | None) -> float | None:
        now = time.monotonic()
        before, self._energy = self._energy, None if spent is None else (now, spent)
        if spent is None or before is None or now <= before[0] or spent < before[1]:
            return None
        return (spent - before[1]) / (now - before[0])

    def limited(self) -> str:
        """What holds the clocks back, joined by `+`."""
        flags = [
            *(
                (path.name.removeprefix("throttle_reason_"), path)
                for path in self.folder.glob("drm/card*/gt/gt*/throttle_reason_*")
            ),
            *(
                (path.name.removeprefix("reason_"), path)
                for path in self.folder.glob("tile*/gt*/freq0/throttle/reason_*")
            ),
        ]
        held = {
            said
            for name, path in flags
            if text_of(path).strip() == "1"
            for start, said in _CAUSES
            if name.startswith(start)
        }
        return "+".join(sorted(held))

    def memory(self) -> tuple[int, int] | None:
        """None: neither driver tells of everybody's memory in a file that all may read."""
        return None

    def cap(self) -> float | None:
        """The power cap in force, in watts."""
        limit = self.facts().get("power_limit_w")
        return None if limit is None else float(limit)

    def busy(self) -> dict[int, float] | None:
        """None: the processes' fdinfo tells of their work."""
        return None

    def processes(self) -> list[tuple[int, int | None]] | None:
        """None: the processes are in their own fdinfo alone."""
        return None

    def facts(self) -> dict[str, Any]:
        """The power cap."""
        caps = [
            cap for path in self.folder.glob("hwmon/hwmon*/power1_max") if (cap := number_of(path, 1e-6)) is not None
        ]
        return {"power_limit_w": caps[0]} if caps else {}
