"""The processor's own sensors, for a Vulkan driver that runs on it: load, clock, temperature, package power.

Load and clock by psutil where it is installed, else from /proc and /sys; temperature from the hwmon of k10temp or
coretemp; power from the energy counters of RAPL (the kernel's powercap, `intel-rapl`, which AMD's processors have too).
The counters of most kernels are for root alone: where they cannot be read there is no power, and `facts` says so.
"""

import importlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from labkit.measure.amdgpu import AT_THE_CAP, number_of, text_of
from labkit.measure.processes import cpu_seconds
from labkit.measure.telemetry import UNTOLD, Reading

SENSORS = ("k10temp", "coretemp", "zenpower", "cpu_thermal")
WHOLE = ("tctl", "tdie", "package id")  # labels of the sensor that stands for the package
DOMAIN = re.compile(r"intel-rapl:\d+")  # a package; those with a second number are parts of it
MHZ = re.compile(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)", re.MULTILINE)


def load_psutil() -> Any | None:
    """psutil, or None where it is not installed."""
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None


class Processor:
    """Readings of the machine's processors; made by `of`. `root` is the file system's, `psutil` the module or None."""

    def __init__(self, root: Path, psutil: Any | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = "the processor"
        self.root, self.psutil, self.clock = root, psutil, clock
        self.hwmon = self._sensor()
        self.domains = self._packages()
        self._ran: tuple[float, float] | None = None  # (when, core-seconds) at the last reading
        self._spent: tuple[float, float] | None = None  # (when, joules since the first reading)
        self._counts: dict[Path, int] = {}  # each counter at the last reading, in µJ
        self._hot = self._throttles()

    @classmethod
    def of(
        cls, root: Path = Path("/"), psutil: Callable[[], Any | None] = load_psutil
    ) -> "tuple[Processor | None, str]":
        """The processors of this machine; or None and why."""
        found = cls(root, psutil())
        found.read()
        if all(value in (None, UNTOLD) for value in vars(found.read()).values()):
            return None, f"neither psutil nor {root / 'proc'} tells of the processor"
        found.name = found._named()
        return found, ""

    def _named(self) -> str:
        """What is read: `the processor, by psutil, k10temp and RAPL`."""
        parts = ["psutil" if self.psutil is not None else str(self.root / "proc")]
        parts += [text_of(self.hwmon / "name").strip()] if self.hwmon is not None else []
        parts += ["RAPL"] if self._counts else []
        return f"the processor, by {', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"

    def read(self) -> Reading:
        """The present; load and power since the last reading."""
        power, energy = self._power()
        return Reading(
            power_w=power,
            core_mhz=self._mhz(),
            temperature_c=self._temperature(),
            utilisation=self._load(),
            limited=self._limited(power),
            energy_j=energy,
        )

    def facts(self) -> dict[str, Any]:
        """The power limit that the packages have together, and why there is no power where there is none."""
        limits = [limit for folder in self.domains if (limit := self._limit(folder)) is not None]
        found: dict[str, Any] = {"power_limit_w": sum(limits)} if limits else {}
        if not self.domains:
            return found | {"no_power": f"{self.root / 'sys/class/powercap'} has no package of RAPL"}
        if not self._counts:
            found["no_power"] = f"{self.domains[0] / 'energy_uj'} cannot be read: it is for root alone on most systems"
        return found

    def _load(self) -> float | None:
        now, ran, cores = self.clock(), self._core_seconds(), self._cores()
        before, self._ran = self._ran, None if ran is None else (now, ran)
        if ran is None or before is None or now <= before[0] or not cores:
            return None
        return min(1.0, max(0.0, (ran - before[1]) / (now - before[0]) / cores))

    def _core_seconds(self) -> float | None:
        if self.psutil is None:
            return cpu_seconds(self.root / "proc")
        times = self.psutil.cpu_times()
        beside = {"idle", "iowait", "guest", "guest_nice"}  # a guest's time is in its host's already
        return float(sum(getattr(times, name) for name in times._fields if name not in beside))

    def _cores(self) -> int:
        if self.psutil is not None:
            return int(self.psutil.cpu_count() or 0)
        return len(re.findall(r"^cpu\d+ ", text_of(self.root / "proc/stat"), re.MULTILINE))

    def _mhz(self) -> float | None:
        if self.psutil is not None:
            try:
                found = self.psutil.cpu_freq()
            except Exception:  # on systems that do not tell, it raises whatever they do
                found = None
            return float(found.current) if found is not None and found.current else None
        files = (self.root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        speeds = [speed for path in files if (speed := number_of(path, 1e-3)) is not None]
        speeds = speeds or [float(text) for text in MHZ.findall(text_of(self.root / "proc/cpuinfo"))]
        return fmean(speeds) if speeds else None

    def _sensor(self) -> Path | None:
        folders = sorted((self.root / "sys/class/hwmon").glob("hwmon*"))
        named = {text_of(folder / "name").strip(): folder for folder in folders}
        return next((named[name] for name in SENSORS if name in named), None)

    def _temperature(self) -> float | None:
        if self.hwmon is None:
            return None
        heats = {
            path: heat for path in sorted(self.hwmon.glob("temp*_input")) if (heat := number_of(path, 1e-3)) is not None
        }
        whole = [
            heat
            for path, heat in heats.items()
            if text_of(path.with_name(path.name.replace("_input", "_label"))).strip().lower().startswith(WHOLE)
        ]
        return max(whole or heats.values(), default=None)

    def _packages(self) -> list[Path]:
        folders = sorted((self.root / "sys/class/powercap").glob("intel-rapl:*"))
        return [
            folder
            for folder in folders
            if DOMAIN.fullmatch(folder.name) and text_of(folder / "name").startswith("package")
        ]

    def _power(self) -> tuple[float | None, float | None]:
        """(watts since the last reading, joules since the first); a counter that is past its range begins again at 0."""
        now = self.clock()
        counts = {folder: count for folder in self.domains if (count := number_of(folder / "energy_uj", 1)) is not None}
        if len(counts) < len(self.domains) or not counts:
            self._counts, self._spent = {}, None
            return None, None
        gone = 0.0
        for folder, count in counts.items():
            ahead = count - self._counts.get(folder, count)
            gone += ahead if ahead >= 0 else ahead + (number_of(folder / "max_energy_range_uj", 1) or 0)
        self._counts = {folder: int(count) for folder, count in counts.items()}
        before, self._spent = self._spent, (now, (self._spent[1] if self._spent else 0.0) + max(0.0, gone) * 1e-6)
        if before is None or now <= before[0]:
            return None, self._spent[1]
        return (self._spent[1] - before[1]) / (now - before[0]), self._spent[1]

    def _limit(self, folder: Path) -> float | None:
        """The long-term limit of a package, in watts: constraint 0."""
        return number_of(folder / "constraint_0_power_limit_uw", 1e-6)

    def _throttles(self) -> int | None:
        counts = (self.root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/package_throttle_count")
        return max((int(n) for path in counts if (n := number_of(path, 1)) is not None), default=None)

    def _limited(self, power: float | None) -> str:
        hot, self._hot = self._hot, self._throttles()
        if hot is None and power is None:
            return UNTOLD
        held = ["heat"] if hot is not None and self._hot is not None and self._hot > hot else []
        caps = [limit for folder in self.domains if (limit := self._limit(folder))]
        if power is not None and len(caps) == len(self.domains) and power >= AT_THE_CAP * sum(caps):
            held.append("power cap")
        return "+".join(held)
