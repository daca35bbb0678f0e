"""The processor's own sensors on an imitated /sys and /proc: load, clock, temperature, and power by counters that wrap."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.processor import Processor
from labkit.measure.telemetry import UNTOLD, Reading, Telemetry, find_source
from labkit.vulkan.device import Device

RAPL = "sys/class/powercap/intel-rapl:{}/{}"


class Machine:
    """A file system of a machine, and its time."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0

    def write(self, **files: str) -> None:
        for name, text in files.items():
            self.put(name.replace("__", "/"), text)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def ran(self, ticks: int, idle: int) -> None:
        """/proc/stat of two cores; 100 ticks a second."""
        self.put("proc/stat", f"cpu  {ticks} 0 0 {idle} 7 0 0 0 0 0\ncpu0 1 0 0 1\ncpu1 1 0 0 1\nintr 5")

    def package(self, number: str, name: str, energy: int, **files: int) -> None:
        self.put(RAPL.format(number, "name"), name)
        self.put(RAPL.format(number, "energy_uj"), str(energy))
        for file, value in files.items():
            self.put(RAPL.format(number, file), str(value))

    def processor(self, psutil: Any = None) -> Processor:
        return Processor(self.root, psutil, clock=lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_load_is_the_share_of_all_cores_since_the_last_reading(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.measure.processes.ticks", lambda: 100)
    machine.ran(1000, 1000)
    found = machine.processor()
    assert found.read().utilisation is None  # of what?
    machine.now += 2.0
    machine.ran(1300, 1100)  # 3 core-seconds in 2 s of two cores
    assert found.read().utilisation == pytest.approx(0.75)


def test_the_clock_is_the_mean_of_the_cores(machine: Machine) -> None:
    machine.ran(1, 1)
    assert machine.processor().read().core_mhz is None
    machine.put("proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 3000.5\nprocessor : 1\ncpu MHz\t\t: 1000.5")
    assert machine.processor().read().core_mhz == 2000.5
    for core, khz in enumerate((4_000_000, 5_000_000)):
        machine.put(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", str(khz))
    assert machine.processor().read().core_mhz == 4500.0


@pytest.mark.parametrize(
    ("name", "labels", "heat"),
    [
        ("k10temp", {1: "Tctl", 3: "Tccd1"}, 61.0),
        ("coretemp", {1: "Package id 0", 3: "Core 0"}, 61.0),
        ("coretemp", {}, 75.0),
        ("nvme", {1: "Composite"}, None),
    ],
)
def test_the_temperature_is_the_packages(
    machine: Machine, name: str, labels: dict[int, str], heat: float | None
) -> None:
    machine.write(sys__class__hwmon__hwmon0__name="acpitz", sys__class__hwmon__hwmon0__temp1_input="20000")
    machine.write(sys__class__hwmon__hwmon2__name=name)
    machine.write(sys__class__hwmon__hwmon2__temp1_input="61000", sys__class__hwmon__hwmon2__temp3_input="75000")
    for number, label in labels.items():
        machine.put(f"sys/class/hwmon/hwmon2/temp{number}_label", label)
    assert machine.processor().read().temperature_c == heat


def test_power_is_of_all_packages_and_a_counter_that_wraps_goes_on(machine: Machine) -> None:
    """Package 0 wraps at 262,143,328,850 µJ, the range of many Intel processors; parts of it are not counted twice."""
    whole = 262_143_328_850
    machine.package(
        "0", "package-0", whole - 30_000_000, max_energy_range_uj=whole, constraint_0_power_limit_uw=125_000_000
    )
    machine.package("1", "package-1", 5_000_000, max_energy_range_uj=whole, constraint_0_power_limit_uw=125_000_000)
    machine.package("0:0", "core", 1_000_000, max_energy_range_uj=whole)
    machine.package("2", "psys", 1_000_000, max_energy_range_uj=whole)
    found = machine.processor()
    first = found.read()
    assert (first.power_w, first.energy_j) == (None, 0.0)
    machine.now += 0.5
    machine.package("0", "package-0", 20_000_000)  # 50 J on
    machine.package("1", "package-1", 15_000_000)  # 10 J on
    second = found.read()
    assert second.power_w == pytest.approx(120.0)
    assert second.energy_j == pytest.approx(60.0)
    assert found.facts() == {"power_limit_w": 250.0}
    assert second.limited == ""
    machine.now += 0.1
    machine.package("0", "package-0", 45_000_000)  # 25 J in 0.1 s: 250 W, the cap
    assert found.read().limited == "power cap"


def test_counters_that_may_not_be_read_give_no_power_and_say_so(machine: Machine) -> None:
    machine.ran(1, 1)
    assert "has no package of RAPL" in machine.processor().facts()["no_power"]
    machine.put(RAPL.format("0", "name"), "package-0")
    (machine.root / RAPL.format("0", "energy_uj")).mkdir()  # cannot be read, whoever asks
    found = machine.processor()
    reading = found.read()
    assert (reading.power_w, reading.energy_j) == (None, None)
    assert "is for root alone on most systems" in found.facts()["no_power"]


def test_a_processor_that_grew_too_hot_since_the_last_reading_is_held_back_by_heat(machine: Machine) -> None:
    count = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    machine.put(count, "7")
    found = machine.processor()
    assert found.read().limited == ""
    machine.put(count, "9")
    assert found.read().limited == "heat"
    assert found.read().limited == ""


def test_psutil_is_asked_where_it_is_installed(machine: Machine) -> None:
    times = SimpleNamespace(
        _fields=("user", "system", "idle", "iowait", "guest"), user=10.0, system=2.0, idle=9.0, iowait=5.0, guest=3.0
    )
    psutil = SimpleNamespace(
        cpu_times=lambda: times, cpu_count=lambda: 4, cpu_freq=lambda: SimpleNamespace(current=3600.0)
    )  # fmt: skip
    found = machine.processor(psutil)
    found.read()
    machine.now += 1.0
    times.user, times.system, times.idle = 11.5, 2.5, 30.0
    assert found.read() == Reading(core_mhz=3600.0, utilisation=0.5, limited=UNTOLD)  # nothing would say so
    psutil.cpu_freq = lambda: (_ for _ in ()).throw(FileNotFoundError("cpufreq"))
    assert found.read().core_mhz is None
    source, _ = Processor.of(machine.root, lambda: psutil)
    assert source is not None
    assert source.name == "the processor, by psutil"


def test_a_machine_that_tells_nothing_has_no_source(tmp_path: Path) -> None:
    found, why = Processor.of(tmp_path, lambda: None)
    assert found is None
    assert why == f"neither psutil nor {tmp_path / 'proc'} tells of the processor"


def test_a_driver_on_the_cpu_has_the_processors_readings(device: Device) -> None:
    if not device.is_cpu:
        pytest.skip("a GPU has sensors of its own: nothing to test here")
    source, name = find_source(device)
    assert source is not None
    assert name.startswith("the processor, by ")
    with Telemetry(source, period_s=0.05) as reader:
        while len(reader.readings) < 3:
            sum(range(10_000))  # work, that there is a load
    assert not reader.trouble
    assert UNTOLD not in reader.limits(0.0, 1e12)
    loads = [one.utilisation for _, one in reader.readings if one.utilisation is not None]
    assert loads
    assert all(0.0 <= load <= 1.0 for load in loads)
