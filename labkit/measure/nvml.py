"""NVIDIA's management library by ctypes: the few calls telemetry needs, each allowed to be missing."""

import ctypes
from collections.abc import Callable
from typing import Any

from labkit.measure.telemetry import Reading

VENDOR = 0x10DE
LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
)
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES, _MOST_SAMPLES = 256, 4096
_NOT_FOUND = 6
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, mW; the plain call is a mean over a second on newer cards
# nvmlClocksThrottleReasons
_REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake", 0x2: "application clocks",
}  # fmt: skip


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Field(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong), ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int), ("result", ctypes.c_int), ("value", ctypes.c_ulonglong),
    )  # fmt: skip


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the calls that end in _v2 and _v3."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint),
    )  # fmt: skip


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t: shares in per cent, of one process at one moment (µs)."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("at", ctypes.c_ulonglong), ("sm", ctypes.c_uint), ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint),
    )  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def dashed(uuid: str) -> str:
    """A Vulkan device UUID (32 hex digits) as NVML writes it: `GPU-99701555-2103-...`."""
    cuts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
    return "GPU-" + "-".join(cuts)


def load_library(open_library: Callable[[str], Any] = ctypes.CDLL) -> Any | None:
    """libnvidia-ml, or None where it is not installed."""
    for name in LIBRARIES:
        try:
            return open_library(name)
        except OSError:
            continue
    return None


class Nvml:
    """Readings of one card through the library; made by `of`."""

    name = "NVML"

    def __init__(self, library: Any, handle: Any) -> None:
        self.library, self.handle = library, handle
        self._seen_us = 0  # the newest sample of a process's work that was asked for

    @classmethod
    def of(
        cls, vendor_id: int, uuid: str, pci: str | None = None, library: Any | None = None
    ) -> "tuple[Nvml | None, str]":
        """The card of a Vulkan device, found by UUID, else by its place on the PCI bus; or None and why."""
        if vendor_id != VENDOR:
            return None, ""
        library = library or load_library()
        if library is None:
            return None, "libnvidia-ml.so.1 is not installed"
        if (code := library.nvmlInit_v2()) != 0:
            return None, f"NVML does not start (code {code})"
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByUUID(dashed(uuid).encode(), ctypes.byref(handle)) == 0:
            return cls(library, handle), ""
        if pci and library.nvmlDeviceGetHandleByPciBusId_v2(pci.encode(), ctypes.byref(handle)) == 0:
            return cls(library, handle), ""
        return None, f"NVML does not know the device {dashed(uuid)}"

    def _number(self, call: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        out = kind()
        try:
            code = getattr(self.library, call)(self.handle, *arguments, ctypes.byref(out))
        except AttributeError:  # an older driver
            return None
        return int(out.value) if code == 0 else None

    def _power_mw(self) -> int | None:
        field = _Field(id=_POWER_INSTANT)
        try:
            code = self.library.nvmlDeviceGetFieldValues(self.handle, 1, ctypes.byref(field))
        except AttributeError:
            code = -1
        if code == 0 and field.result == 0 and field.value:
            return int(field.value) & 0xFFFFFFFF if field.type == 1 else int(field.value)
        return self._number("nvmlDeviceGetPowerUsage")

    def read(self) -> Reading:
        """The present."""
        power, load = self._power_mw(), _Utilisation()
        core, memory = (self._number("nvmlDeviceGetClockInfo", clock) for clock in (_SM, _MEMORY))
        heat = self._number("nvmlDeviceGetTemperature", 0)
        spent = self._number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        busy = self.library.nvmlDeviceGetUtilizationRates(self.handle, ctypes.byref(load)) == 0
        return Reading(
            power_w=None if power is None else power / 1000,
            core_mhz=None if core is None else float(core),
            memory_mhz=None if memory is None else float(memory),
            temperature_c=None if heat is None else float(heat),
            utilisation=load.gpu / 100 if busy else None,
            limited=self.limited(),
            energy_j=None if spent is None else spent / 1000,
        )

    def cap(self) -> float | None:
        """The power limit in force, in watts."""
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit is None else limit / 1000

    def limited(self) -> str:
        """What holds the clocks back, joined by `+`."""
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        return "+".join(sorted({name for bit, name in _REASONS.items() if reasons & bit}))

    def memory(self) -> tuple[int, int] | None:
        """Bytes of device memory in use by everybody, and all there are."""
        found = _Memory()
        try:
            code = self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(found))
        except AttributeError:
            return None
        return (int(found.used), int(found.total)) if code == 0 else None

    def processes(self) -> list[tuple[int, int | None]] | None:
        """(process id, bytes it holds or None) of all that have the card open; None where the driver does not tell."""
        found: dict[int, int | None] = {}
        told = False
        for call in _LISTS:
            for name in (f"{call}_v3", f"{call}_v2"):
                listed, count = (_Process * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
                try:
                    code = getattr(self.library, name)(self.handle, ctypes.byref(count), listed)
                except AttributeError:  # an older driver
                    continue
                if code == 0:
                    told = True
                    for one in listed[: count.value]:
                        used = None if one.memory == _UNKNOWN else int(one.memory)
                        found[int(one.pid)] = used if found.get(int(one.pid)) is None else found[int(one.pid)]
                    break
        return sorted(found.items()) if told else None

    def busy(self) -> dict[int, float] | None:
        """The largest share of the card's multiprocessors each process took since this was last asked; a process that is
        not there took none. None where the driver does not tell."""
        found, count = (_Sample * _MOST_SAMPLES)(), ctypes.c_uint(_MOST_SAMPLES)
        since = ctypes.c_ulonglong(self._seen_us)
        try:
            code = self.library.nvmlDeviceGetProcessUtilization(self.handle, found, ctypes.byref(count), since)
        except AttributeError:
            return None
        if code == _NOT_FOUND:  # nobody worked
            return {}
        if code != 0:
            return None
        shares: dict[int, float] = {}
        for one in found[: count.value]:
            self._seen_us = max(self._seen_us, int(one.at))
            shares[int(one.pid)] = max(shares.get(int(one.pid), 0.0), min(one.sm, 100) / 100)
        return shares

    def facts(self) -> dict[str, Any]:
        """Power limit and its default, highest clocks, ECC."""
        usual = self._number("nvmlDeviceGetPowerManagementDefaultLimit")
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        ecc = self.library.nvmlDeviceGetEccMode(self.handle, ctypes.byref(current), ctypes.byref(pending)) == 0
        found = {
            "power_limit_w": self.cap(),
            "power_default_w": None if usual is None else usual / 1000,
            "core_max_mhz": self._number("nvmlDeviceGetMaxClockInfo", _SM),
            "memory_max_mhz": self._number("nvmlDeviceGetMaxClockInfo", _MEMORY),
            "ecc": bool(current.value) if ecc else None,
        }
        return {key: value for key, value in found.items() if value is not None}
