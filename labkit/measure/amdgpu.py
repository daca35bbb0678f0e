"""amdgpu's files under /sys: power, clocks, temperature, load, memory and limits of the card at a place on the PCI bus."""

import re
import struct
from pathlib import Path
from typing import Any

from labkit.measure.telemetry import Reading

VENDOR = 0x1002
_LEVEL = re.compile(r"^\s*\d+:\s*(\d+)\s*Mhz\s*\*", re.IGNORECASE | re.MULTILINE)


# gpu_metrics 1.3 (kgd_pp_interface.h): 120 bytes, the last eight the throttlers' bits (amdgpu_smu.h), the same on all cards
_METRICS_BYTES, _METRICS_VERSION, _THROTTLERS_AT = 120, (1, 3), 112
_THROTTLERS = (
    (0, 8, "power cap"), (16, 24, "current limit"), (32, 46, "heat"), (46, 48, "hardware slowdown"),
)  # fmt: skip
AT_THE_CAP = 0.98  # of the power cap: where the card does not say what holds it back, its power does


def throttlers(metrics: bytes) -> str | None:
    """What holds the clocks back by a card's `gpu_metrics`, joined by `+`; None for another version of it."""
    if len(metrics) < 4:
        return None
    length, *version = struct.unpack_from("<HBB", metrics)
    if tuple(version) != _METRICS_VERSION or length != _METRICS_BYTES or len(metrics) < length:
        return None
    (bits,) = struct.unpack_from("<Q", metrics, _THROTTLERS_AT)
    if bits == (1 << 64) - 1:  # the card does not say
        return None
    return throttler_names(bits)


def throttler_names(bits: int) -> str:
    """What the independent throttlers' bits mean, joined by `+`."""
    return "+".join(sorted(name for low, high, name in _THROTTLERS if bits >> low & ((1 << high - low) - 1)))


def active_level(text: str) -> float | None:
    """The clock marked as current in a `pp_dpm_*` file, in MHz: the line that ends in a star."""
    found = _LEVEL.search(text)
    return float(found.group(1)) if found else None


def text_of(path: Path) -> str:
    """A small file's text; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def number_of(path: Path, scale: float) -> float | None:
    """The whole number in a file times `scale`; None where there is none."""
    text = text_of(path).strip()
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
        power = number_of(self.hwmon / "power1_average", 1e-6)
        core, memory = (number_of(self.hwmon / f"freq{i}_input", 1e-6) for i in (1, 2))
        busy = number_of(self.folder / "gpu_busy_percent", 0.01)
        return Reading(
            power_w=power if power is not None else number_of(self.hwmon / "power1_input", 1e-6),
            core_mhz=core if core is not None else active_level(text_of(self.folder / "pp_dpm_sclk")),
            memory_mhz=memory if memory is not None else active_level(text_of(self.folder / "pp_dpm_mclk")),
            temperature_c=number_of(self.hwmon / "temp1_input", 1e-3),
            utilisation=busy,
            limited=self.limited(),
        )

    def limited(self) -> str:
        """What holds the clocks back, joined by `+`: as the card says, else by how near its power is to the cap."""
        try:
            told = throttlers((self.folder / "gpu_metrics").read_bytes())
        except OSError:
            told = None
        if told is not None:
            return told
        power, cap = (number_of(self.hwmon / name, 1e-6) for name in ("power1_average", "power1_cap"))
        power = power if power is not None else number_of(self.hwmon / "power1_input", 1e-6)
        heat, most = (number_of(self.hwmon / name, 1e-3) for name in ("temp1_input", "temp1_crit"))
        found = ["heat"] if heat is not None and most and heat >= most else []
        return "+".join([*found, "power cap"] if power is not None and cap and power >= AT_THE_CAP * cap else found)

    def memory(self) -> tuple[int, int] | None:
        """Bytes of device memory in use by everybody, and all there are."""
        used, total = (number_of(self.folder / f"mem_info_vram_{name}", 1) for name in ("used", "total"))
        return None if used is None or not total else (int(used), int(total))

    def cap(self) -> float | None:
        """The power cap in force, in watts."""
        limit = self.facts().get("power_limit_w")
        return None if limit is None else float(limit)

    def busy(self) -> dict[int, float] | None:
        """None: the processes' fdinfo tells of their work."""
        return None

    def processes(self) -> list[tuple[int, int | None]] | None:
        """None: amdgpu tells of its processes in their own fdinfo alone."""
        return None

    def facts(self) -> dict[str, Any]:
        """The power cap, its default, and the performance level asked for."""
        cap, level = (
            number_of(self.hwmon / "power1_cap", 1e-6),
            text_of(self.folder / "power_dpm_force_performance_level"),
        )
        usual = number_of(self.hwmon / "power1_cap_default", 1e-6)
        found: dict[str, Any] = {} if cap is None else {"power_limit_w": cap}
        found |= {} if usual is None else {"power_default_w": usual}
        return found | ({"performance_level": level.strip()} if level.strip() else {})
