"""What the card says of itself while it works: power, clocks, temperature, load, read a few times a second by a thread.

NVIDIA cards through NVML, AMD cards through amdsmi where it is installed, else amdgpu's files, Intel cards through i915's
and xe's, a driver on the CPU through the processor's own sensors; a device that none of them knows has no telemetry, and
the columns stay empty: nothing is guessed.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from labkit.errors import ParameterError
from labkit.vulkan.device import Device
from labkit.vulkan.hardware import pci_address

PERIOD_S = 0.05
METRICS = ("power_w", "core_mhz", "memory_mhz", "temperature_c")
UNTOLD = "not told"  # in `limited`: nothing says whether anything holds the device back


@dataclass(frozen=True)
class Reading:
    """One look at the card; None where it does not say. `utilisation` is a share, `limited` names what holds it back
    (nothing, or `UNTOLD` where no sensor would say), `energy_j` its own counter of the energy it took, from a zero of its own.

    The rest is of the newest look at the neighbours (see `labkit.measure.neighbours`): how many other processes have
    the device open, the largest share of an engine one of them took, the share of all cores that others took, device
    memory in use by everybody, and this run's own that lies in the host's."""

    power_w: float | None = None
    core_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    limited: str = ""
    others: float | None = None
    others_busy: float | None = None
    cpu_others: float | None = None
    memory_used_bytes: float | None = None
    spilled_bytes: float | None = None
    energy_j: float | None = None

    @property
    def empty(self) -> bool:
        """Whether it says nothing at all."""
        return all(getattr(self, field.name) in (None, "") for field in fields(self))


COLUMNS = ("time_s", *(field.name for field in fields(Reading)))


class Source(Protocol):
    """Where readings come from."""

    name: str

    def read(self) -> Reading:
        """The present."""
        ...

    def facts(self) -> dict[str, Any]:
        """What does not change while it runs: limits, ECC."""
        ...


def find_source(device: Device, root: Path = Path("/")) -> tuple[Source | None, str]:
    """The source for `device`, and which it is; or None and why there is none. `root`: the file system's, for tests."""
    from labkit.measure.intel import Intel
    from labkit.measure.nvml import Nvml
    from labkit.measure.processor import Processor

    if device.is_cpu:
        processor, why = Processor.of(root)
        if processor is None:
            return None, f"no telemetry: {why}"
        return processor, processor.name
    tried = []
    for make in (
        lambda: Nvml.of(device.info.vendor_id, device.info.uuid, pci_address(device)),
        lambda: find_amd(device.info.vendor_id, pci_address(device), root),
        lambda: Intel.of(device.info.vendor_id, pci_address(device), root),
    ):
        found, why = make()
        if found is not None:
            return found, found.name
        tried.append(why)
    return None, f"no telemetry: {'; '.join(why for why in tried if why) or 'its vendor is not one labkit reads'}"


def find_amd(vendor_id: int, pci: str | None, root: Path) -> "tuple[Source | None, str]":
    """An AMD card through amdsmi where that is installed and knows it, else through its files; or None and why."""
    from labkit.measure.amd_smi import AmdSmi
    from labkit.measure.amdgpu import Amdgpu

    files, why = Amdgpu.of(vendor_id, pci, root)
    if files is None or pci is None:
        return None, why
    found, _ = AmdSmi.beside(files, pci)
    return found or files, ""


class Telemetry:
    """Readings of a source, taken by a thread from `start` to `stop`; a context manager. Without a source it is empty.
    `period_s` is the rest between two readings: what is shorter than their distance may fall between them.

    `readings` holds (time of `time.perf_counter`, reading). `beside` gives more fields of each, such as the newest look
    at the neighbours; with it there are readings without a source too."""

    def __init__(
        self,
        source: Source | None,
        period_s: float = PERIOD_S,
        beside: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        if not period_s > 0:
            raise ParameterError(f"a reading every {period_s:g} s: give a time above 0")
        self.source, self.period_s, self.beside = source, period_s, beside
        self.readings: list[tuple[float, Reading]] = []
        self.trouble = ""  # why readings stopped coming, if they did
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken = 0

    def start(self) -> "Telemetry":
        """Begin reading."""
        if (self.source is not None or self.beside is not None) and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="labkit-telemetry", daemon=True)
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                began = time.perf_counter()
                reading = self.source.read() if self.source is not None else Reading()
                if self.beside is not None:
                    reading = replace(reading, **self.beside())
                self.readings.append(((began + time.perf_counter()) / 2, reading))
            except Exception as error:  # a sensor that fails must not end the bench
                self.trouble = f"{self.source.name if self.source else 'telemetry'} stopped answering: {error}"
                return
            self._stop.wait(self.period_s)

    def stop(self) -> None:
        """End reading; the readings stay."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def window(self, start_s: float, end_s: float) -> dict[str, float]:
        """Means over the readings in a window, by metric; only what the card said, nothing for an empty window."""
        inside = [reading for at, reading in list(self.readings) if start_s <= at <= end_s]
        found = {}
        for metric in METRICS:
            values = [value for reading in inside if (value := getattr(reading, metric)) is not None]
            if values:
                found[metric] = sum(values) / len(values)
        return found

    def limits(self, start_s: float, end_s: float) -> set[str]:
        """What held the card back in a window."""
        inside = [reading for at, reading in list(self.readings) if start_s <= at <= end_s]
        return {part for reading in inside for part in reading.limited.split("+") if part not in ("", UNTOLD)}

    def fresh(self, since: Callable[[float], float]) -> str:
        """Lines of `telemetry.csv` for readings not yet asked for, times through `since`."""
        new = self.readings[self._taken : len(self.readings)]
        self._taken += len(new)
        return "".join(csv_line(since(at), reading) for at, reading in new)

    def __enter__(self) -> "Telemetry":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def csv_line(at: float, reading: Reading) -> str:
    """One line of `telemetry.csv`; empty between the commas where the card does not say."""
    cells = [f"{at:.4f}"]
    for field in fields(Reading):
        value = getattr(reading, field.name)
        cells.append("" if value is None else value if isinstance(value, str) else _digits(field.name, value))
    return ",".join(cells) + "\n"


def _digits(name: str, value: float) -> str:
    """A value as the file has it: bytes whole, a counter of energy to the millijoule, the rest at six digits."""
    return f"{value:.0f}" if name.endswith("_bytes") else f"{value:.3f}" if name == "energy_j" else f"{value:.6g}"


def header() -> str:
    """The first line of `telemetry.csv`."""
    return ",".join(COLUMNS) + "\n"
