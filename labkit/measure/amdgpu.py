"""amdgpu's files under /sys: power, clocks, temperature and load of the card at a place on the PCI bus."""

import re
from pathlib import Path
from typing import Any

from labkit.measure.telemetry import Reading

VENDOR = 0x1002
_LEVEL = re.compile(r"^\s*\d+:\s*(\d+)\s*Mhz\s*\*", re.IGNORECASE | re.MULTILINE)


def active_level(text: str) -> float | None:
    """The clock marked as current in a `pp_dpm_*` file, in MHz: the line that ends in a star."""
    found = _LEVEL.search(text)
    return float(found.group(1)) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path, scale: float) -> float | None:
    text = _text(path).strip()
    return int(text) * scale if text.lstrip("-").isdigit() else None


class Amdgpu:
    """Readings of one card; made by `of`. `folder`: its device folder, `hwmon`: its sensors'."""

    name = "amdgpu"

    def __init__(self, folder: Path, hwmon: Path) -> None:
        self.folder, self.hwmon = folder, hwmon

    @classmethod
    def of(cls, vendor_id: int, pci: str | None, root: Path = Path("/")) -> "tuple[Amdgpu | None, str]":
        """The card at `pci` ("0000:03:00.0") with its sensors; or None and why."""
        if vendor_id != VENDOR:
            return None, ""
        if pci is None:
            return None, "its Vulkan driver does not say where it is on the PCI bus"
        folder = root / "sys/bus/pci/devices" / pci
        for hwmon in sorted((folder / "hwmon").glob("hwmon*")):
            card = cls(folder, hwmon)
            if not card.read().empty:
                return card, ""
        return None, f"{folder} has no sensors that can be read"

    def read(self) -> Reading:
        """The present."""
        power = _number(self.hwmon / "power1_average", 1e-6)
        core, memory = (_number(self.hwmon / f"freq{i}_input", 1e-6) for i in (1, 2))
        busy = _number(self.folder / "gpu_busy_percent", 0.01)
        return Reading(
            power_w=power if power is not None else _number(self.hwmon / "power1_input", 1e-6),
            core_mhz=core if core is not None else active_level(_text(self.folder / "pp_dpm_sclk")),
            memory_mhz=memory if memory is not None else active_level(_text(self.folder / "pp_dpm_mclk")),
            temperature_c=_number(self.hwmon / "temp1_input", 1e-3),
            utilisation=busy,
        )

    def facts(self) -> dict[str, Any]:
        """The power cap and the performance level asked for."""
        cap, level = _number(self.hwmon / "power1_cap", 1e-6), _text(self.folder / "power_dpm_force_performance_level")
        found: dict[str, Any] = {} if cap is None else {"power_limit_w": cap}
        return found | ({"performance_level": level.strip()} if level.strip() else {})
