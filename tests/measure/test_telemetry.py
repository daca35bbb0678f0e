"""Telemetry: amdgpu's files, NVML's calls, and the thread between, on imitations of each."""

import ctypes
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import ParameterError
from labkit.measure import telemetry
from labkit.measure.amdgpu import Amdgpu, active_level, throttlers
from labkit.measure.intel import Intel
from labkit.measure.nvml import Nvml, dashed, load_library
from labkit.measure.telemetry import Reading, Telemetry, csv_line, header

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086
PCI = "0000:03:00.0"
UUID = "997015552103678565ea21263bdf4c90"


def card(root: Path, pci: str = PCI, **files: str) -> Path:
    """A device folder of amdgpu; names with a slash lie below it, others in its hwmon folder."""
    folder = root / "sys/bus/pci/devices" / pci
    (folder / "hwmon/hwmon4").mkdir(parents=True)
    for name, text in files.items():
        place = folder if name.startswith(("pp_", "gpu_", "power_dpm")) else folder / "hwmon/hwmon4"
        (place / name).write_text(text)
    return folder


def test_amdgpu_says_power_clocks_temperature_and_load(tmp_path: Path) -> None:
    card(
        tmp_path, power1_average="213000000\n", freq1_input="2350000000\n", freq2_input="1258000000\n",
        temp1_input="61000\n", gpu_busy_percent="97\n", power1_cap="300000000\n",
        power_dpm_force_performance_level="auto\n",
    )  # fmt: skip
    found, why = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is not None, why
    assert found.read() == Reading(213.0, 2350.0, 1258.0, 61.0, 0.97)
    assert found.facts() == {"power_limit_w": 300.0, "performance_level": "auto"}


def test_amdgpu_falls_back_to_the_other_files(tmp_path: Path) -> None:
    card(
        tmp_path, power1_input="50000000", pp_dpm_sclk="0: 500Mhz\n1: 1200Mhz *\n2: 2400Mhz\n", pp_dpm_mclk="0: 96Mhz *"
    )
    found, _ = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is not None
    assert found.read() == Reading(power_w=50.0, core_mhz=1200.0, memory_mhz=96.0)


def test_amdgpu_of_another_place_or_without_sensors_is_not_there(tmp_path: Path) -> None:
    card(tmp_path, pci="0000:44:00.0", power1_average="1000000")
    assert Amdgpu.of(AMD, PCI, tmp_path)[0] is None
    card(tmp_path)
    found, why = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is None
    assert "no sensors that can be read" in why
    assert Amdgpu.of(AMD, None, tmp_path)[1] == "its Vulkan driver does not say where it is on the PCI bus"
    assert Amdgpu.of(NVIDIA, PCI, tmp_path) == (None, "")


@pytest.mark.parametrize(("text", "mhz"), [("", None), ("0: 500Mhz\n", None), ("0: 500Mhz\n1: 900MHz *\n", 900.0)])
def test_the_active_level_is_the_line_with_a_star(text: str, mhz: float | None) -> None:
    assert active_level(text) == mhz


def metrics(bits: int, length: int = 120, version: tuple[int, int] = (1, 3)) -> bytes:
    """A `gpu_metrics` file of amdgpu with these throttlers."""
    return struct.pack("<HBB", length, *version).ljust(112, b"\0") + struct.pack("<Q", bits)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (metrics(0), ""),
        (metrics(1 << 0), "power cap"),
        (metrics(1 << 36 | 1 << 2), "heat+power cap"),
        (metrics(1 << 16 | 1 << 47), "current limit+hardware slowdown"),
        (metrics((1 << 64) - 1), None),
        (metrics(1, version=(2, 3)), None),
        (metrics(1)[:100], None),
        (b"", None),
    ],
)
def test_what_holds_an_amd_card_back_is_read_from_its_metrics(given: bytes, held: str | None) -> None:
    assert throttlers(given) == held


def test_an_amd_card_without_metrics_is_at_its_cap_when_its_power_is(tmp_path: Path) -> None:
    folder = card(
        tmp_path, power1_average="296000000", power1_cap="300000000", temp1_input="60000", temp1_crit="100000"
    )
    found, _ = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is not None
    assert found.limited() == "power cap"  # 98.7 % of it
    (folder / "gpu_metrics").write_bytes(metrics(0))
    assert found.limited() == ""  # the card says otherwise
    (folder / "gpu_metrics").unlink()
    for name, text, held in (("power1_average", "200000000", ""), ("temp1_input", "100000", "heat")):
        (folder / "hwmon/hwmon4" / name).write_text(text)
        assert found.limited() == held


def test_the_memory_of_a_card_is_that_of_everybody(tmp_path: Path) -> None:
    folder = card(tmp_path, power1_average="1000000")
    found, _ = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is not None
    assert found.memory() is None
    (folder / "mem_info_vram_used").write_text("34000000000\n")
    (folder / "mem_info_vram_total").write_text("34208743424\n")
    assert found.memory() == (34_000_000_000, 34_208_743_424)
    assert found.processes() is None


def intel(root: Path, **files: str) -> Path:
    """A device folder of i915 or xe; a double underscore in a name is a slash."""
    folder = root / "sys/bus/pci/devices" / PCI
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("clock", "reason"),
    [
        ("drm__card1__gt__gt0__rps_act_freq_mhz", "drm__card1__gt__gt0__throttle_reason_{}"),
        ("tile0__gt0__freq0__act_freq", "tile0__gt0__freq0__throttle__reason_{}"),
    ],
    ids=["i915", "xe"],
)
def test_an_intel_card_says_its_clock_its_power_and_what_holds_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, reason: str
) -> None:
    now = [100.0]
    monkeypatch.setattr("labkit.measure.intel.time.monotonic", lambda: now[0])
    sensors = {"hwmon__hwmon2__energy1_input": "5000000", "hwmon__hwmon2__power1_max": "190000000"}
    folder = intel(tmp_path, **{clock: "2400"}, **sensors)
    found, why = Intel.of(INTEL, PCI, tmp_path)
    assert found is not None, why
    assert found.facts() == {"power_limit_w": 190.0}
    now[0] += 2.0
    (folder / "hwmon/hwmon2/energy1_input").write_text("305000000")
    assert found.read() == Reading(power_w=150.0, core_mhz=2400.0, energy_j=305.0)  # 300 J in 2 s
    assert found.cap() == 190.0
    flags = {"status": "1", "pl1": "1", "pl2": "0", "thermal": "1", "prochot": "0", "vr_tdc": "0"}
    intel(tmp_path, **{reason.format(name): flag for name, flag in flags.items()})
    assert found.limited() == "heat+power cap"
    (folder / "hwmon/hwmon2/energy1_input").write_text("7")  # the counter began anew
    assert found.read().power_w is None


def test_an_intel_card_without_files_or_of_another_vendor_is_not_there(tmp_path: Path) -> None:
    assert "has no files that can be read" in Intel.of(INTEL, PCI, tmp_path)[1]
    assert Intel.of(AMD, PCI, tmp_path) == (None, "")
    assert Intel.of(INTEL, None, tmp_path)[1] == "its Vulkan driver does not say where it is on the PCI bus"


class FakeNvml:
    """The calls of libnvidia-ml that labkit makes, for one card at 1980 MHz."""

    def __init__(self, uuid: str = dashed(UUID), power: int = 650_123, missing: tuple[str, ...] = ()) -> None:
        self.uuid, self.power, self.missing = uuid, power, missing

    def __getattribute__(self, name: str) -> Any:
        if name != "missing" and name in object.__getattribute__(self, "missing"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() != self.uuid:
            return 6
        handle._obj.value = 77
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, handle: Any) -> int:
        handle._obj.value = 78
        return 0 if pci.decode() == PCI else 6

    def nvmlDeviceGetFieldValues(self, handle: Any, count: int, field: Any) -> int:
        field._obj.type, field._obj.result, field._obj.value = 1, 0, self.power + 1000
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        assert handle.value in (77, 78)
        out._obj.value = self.power
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int, out: Any) -> int:
        out._obj.value = {1: 1980, 2: 3201}[clock]
        return 0

    nvmlDeviceGetMaxClockInfo = nvmlDeviceGetClockInfo

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, out: Any) -> int:
        out._obj.value = 45
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:
        out._obj.gpu = 98
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> int:
        assert isinstance(out._obj, ctypes.c_ulonglong)
        out._obj.value = 0x4 | 0x40 | 0x1
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:
        out._obj.value = 700_000
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        out._obj.total, out._obj.free, out._obj.used = 150_000, 50_000, 100_000
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any, count: Any, out: Any) -> int:
        out[0].pid, out[0].memory = 4242, 70_000
        count._obj.value = 1
        return 0

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> int:
        for i, (pid, memory) in enumerate(((4242, 70_000), (17, (1 << 64) - 1))):
            out[i].pid, out[i].memory = pid, memory
        count._obj.value = 2
        return 0

    def nvmlDeviceGetProcessUtilization(self, handle: Any, samples: Any, count: Any, since: Any) -> int:
        fresh = [sample for sample in ((100, 4242, 30), (200, 4242, 70), (250, 17, 5)) if sample[0] > since.value]
        for i, (at, pid, sm) in enumerate(fresh):
            samples[i].at, samples[i].pid, samples[i].sm = at, pid, sm
        count._obj.value = len(fresh)
        return 0 if fresh else 6

    def nvmlDeviceGetEccMode(self, handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = 1
        return 0


def test_nvml_says_the_same_of_the_card_with_the_vulkan_uuid() -> None:
    found, why = Nvml.of(NVIDIA, UUID, None, FakeNvml())
    assert found is not None, why
    assert found.read() == Reading(651.123, 1980.0, 3201.0, 45.0, 0.98, "heat+power cap")
    assert found.facts() == {"power_limit_w": 700.0, "core_max_mhz": 1980, "memory_max_mhz": 3201, "ecc": True}
    assert found.cap() == 700.0


def test_nvml_counts_energy_and_says_the_default_limit_where_the_driver_does() -> None:
    class Newer(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> int:
            assert isinstance(out._obj, ctypes.c_ulonglong)
            out._obj.value = 9_876_543_210_123  # mJ
            return 0

        def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, out: Any) -> int:
            out._obj.value = 750_000
            return 0

    found, _ = Nvml.of(NVIDIA, UUID, None, Newer())
    assert found is not None
    reading = found.read()
    assert reading.energy_j == 9_876_543_210.123
    assert csv_line(0.0, reading).endswith(",9876543210.123\n")  # to the millijoule, however large
    assert found.facts()["power_default_w"] == 750.0


def test_nvml_lists_who_has_the_card_open_each_once_and_memory_in_use() -> None:
    found, _ = Nvml.of(NVIDIA, UUID, None, FakeNvml())
    assert found is not None
    assert found.processes() == [(17, None), (4242, 70_000)]
    assert found.memory() == (100_000, 150_000)
    assert found.busy() == {4242: 0.7, 17: 0.05}
    assert found.busy() == {}  # nothing since
    calls = ("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3")
    older, _ = Nvml.of(
        NVIDIA, UUID, None, FakeNvml(missing=(*calls, "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetProcessUtilization"))
    )
    assert older is not None
    assert (older.processes(), older.memory(), older.busy()) == (None, None, None)


def test_nvml_of_an_older_driver_lacks_what_that_lacks() -> None:
    library = FakeNvml(missing=("nvmlDeviceGetFieldValues", "nvmlDeviceGetTemperature"))
    found, _ = Nvml.of(NVIDIA, UUID, None, library)
    assert found is not None
    assert found.read() == Reading(650.123, 1980.0, 3201.0, None, 0.98, "heat+power cap")


def test_nvml_finds_the_card_by_its_place_when_the_uuid_is_unknown_and_never_takes_another() -> None:
    assert Nvml.of(NVIDIA, "0" * 32, PCI, FakeNvml())[0] is not None
    found, why = Nvml.of(NVIDIA, "0" * 32, "0000:99:00.0", FakeNvml())
    assert found is None
    assert why == "NVML does not know the device GPU-00000000-0000-0000-0000-000000000000"
    assert Nvml.of(AMD, UUID, PCI, FakeNvml()) == (None, "")


def test_a_uuid_is_written_as_nvml_writes_it() -> None:
    assert dashed(UUID) == "GPU-99701555-2103-6785-65ea-21263bdf4c90"


def test_without_the_library_there_is_no_nvml() -> None:
    def fails(name: str) -> None:
        raise OSError(name)

    assert load_library(fails) is None


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan")])
def test_a_period_that_is_none_is_refused(period_s: float) -> None:
    with pytest.raises(ParameterError, match="give a time above 0"):
        Telemetry(None, period_s)


def test_without_a_source_there_are_no_readings() -> None:
    with Telemetry(None) as empty:
        pass
    assert empty.readings == []
    assert empty.window(0, 1e12) == {}
    assert empty.fresh(float) == ""


class Counting:
    """A source whose power counts up; fails after `fails` readings."""

    name = "counting"

    def __init__(self, fails: int = 10**9) -> None:
        self.count, self.fails = 0, fails

    def read(self) -> Reading:
        self.count += 1
        if self.count > self.fails:
            raise OSError("the sensor is gone")
        return Reading(power_w=float(self.count), limited="heat" if self.count > 2 else "")

    def facts(self) -> dict[str, Any]:
        return {}


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_a_window_means_what_was_read_in_it_and_nothing_else() -> None:
    reader = Telemetry(None)
    reader.readings = [(float(i), Reading(power_w=10.0 * i, core_mhz=None if i < 3 else 100.0)) for i in range(6)]
    assert reader.window(1.0, 2.5) == {"power_w": 15.0}
    assert reader.window(2.0, 4.0) == {"power_w": 30.0, "core_mhz": 100.0}
    assert reader.window(2.1, 2.9) == {}


def test_what_is_seen_beside_the_card_stands_in_the_same_line_and_without_a_card_alone() -> None:
    seen = {"others": 2.0, "cpu_others": 0.25, "memory_used_bytes": 34_000_000_123.0}
    for source, power in ((Counting(), "1"), (None, "")):
        with Telemetry(source, period_s=0.001, beside=lambda: seen) as reader:
            wait_for(lambda reader=reader: bool(reader.readings))
        line = reader.fresh(lambda at: 0.0).splitlines()[0]
        assert line == f"0.0000,{power},,,,,,2,,0.25,34000000123,,"


def test_readings_come_by_a_thread_and_each_is_written_once() -> None:
    with Telemetry(Counting(), period_s=0.001) as reader:
        wait_for(lambda: len(reader.readings) >= 4)
        first = reader.fresh(lambda at: at - reader.readings[0][0])
        wait_for(lambda: len(reader.readings) >= len(first.splitlines()) + 2)
    rest = reader.fresh(lambda at: at)
    lines = (first + rest).splitlines()
    assert [line.split(",")[1] for line in lines] == [str(i) for i in range(1, len(lines) + 1)]
    assert first.startswith("0.0000,1,,,,,,,,,,,\n")
    assert reader.limits(0, float("inf")) == {"heat"}
    assert reader._thread is None


def test_a_sensor_that_fails_ends_the_readings_and_is_told() -> None:
    with Telemetry(Counting(fails=2), period_s=0.001) as reader:
        wait_for(lambda: reader.trouble != "")
    assert len(reader.readings) == 2
    assert reader.trouble == "counting stopped answering: the sensor is gone"


def test_a_line_has_as_many_cells_as_the_header() -> None:
    line = csv_line(1.5, Reading(power_w=1.25, limited="power cap"))
    assert line == "1.5000,1.25,,,,,power cap,,,,,,\n"
    assert line.count(",") == header().count(",")
    assert header().startswith("time_s,power_w,core_mhz")
    assert set(telemetry.METRICS) <= set(header().strip().split(","))
