"""amdsmi, by an imitated module: its readings before the files', theirs where it is silent, and which source it was."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.amd_smi import AmdSmi, load_amdsmi
from labkit.measure.amdgpu import Amdgpu
from labkit.measure.caps import Cap, cap_of
from labkit.measure.telemetry import Reading, find_amd

AMD, PCI = 0x1002, "0000:03:00.0"


class Library:
    """The module `amdsmi`, with one card; a call that is not answered here is not there."""

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(EDGE="edge")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, bdf: str = PCI.upper(), **changed: Any) -> None:
        self.bdf, self.changed = bdf, changed

    def amdsmi_init(self) -> None:
        if "broken" in self.changed:
            raise RuntimeError("driver not loaded")

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["card"]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return self.bdf

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        assert handle == "card"
        return self.changed.get(
            "power", {"current_socket_power": "N/A", "socket_power": 65535, "average_socket_power": 287}
        )

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, Any]:
        return {"energy_accumulator": 40_000_000, "counter_resolution": 15.26, "timestamp": 1}

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, Any]:
        return {"gfx": {"clk": 2910, "max_clk": 3200}, "mem": {"cur_clk": 1258}}[kind]

    def amdsmi_get_temp_metric(self, handle: str, place: str, what: str) -> int:
        assert (place, what) == ("edge", "current")
        return 64

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return {"gfx_activity": 99}

    def amdsmi_get_gpu_metrics_info(self, handle: str) -> dict[str, Any]:
        return {"indep_throttle_status": self.changed.get("bits", 1)}

    def amdsmi_get_power_cap_info(self, handle: str) -> dict[str, Any]:
        return {"power_cap": 250_000_000, "default_power_cap": 300_000_000}


@pytest.fixture
def files(tmp_path: Path) -> Amdgpu:
    """The card's files, which say less, and otherwise."""
    folder = tmp_path / "sys/bus/pci/devices" / PCI
    (folder / "hwmon/hwmon4").mkdir(parents=True)
    for name, text in (
        ("power1_average", "213000000"), ("temp1_input", "61000"), ("power1_cap", "300000000"), ("power1_cap_default", "330000000"),
    ):  # fmt: skip
        (folder / "hwmon/hwmon4" / name).write_text(text)
    found, why = Amdgpu.of(AMD, PCI, tmp_path)
    assert found is not None, why
    return found


def made(files: Amdgpu, library: Library) -> AmdSmi:
    found, why = AmdSmi.beside(files, PCI, lambda: library)
    assert found is not None, why
    return found


def test_the_library_goes_before_the_files_and_has_a_counter_of_energy(files: Amdgpu) -> None:
    found = made(files, Library())
    assert found.read() == Reading(287.0, 2910.0, 1258.0, 64.0, 0.99, "power cap", energy_j=pytest.approx(610.4))
    assert found.facts() == {"power_limit_w": 250.0, "power_default_w": 300.0}
    assert found.cap() == 250.0
    assert found.name == "amdsmi"
    assert made(files, Library(bits=0)).limited() == ""
    assert made(files, Library(bits=1 << 36)).limited() == "heat"


def test_what_the_library_does_not_tell_the_files_do(files: Amdgpu) -> None:
    class Silent(Library):
        amdsmi_get_clock_info = amdsmi_get_energy_count = amdsmi_get_gpu_activity = None  # type: ignore[assignment]
        amdsmi_get_gpu_metrics_info = amdsmi_get_temp_metric = amdsmi_get_power_cap_info = None  # type: ignore[assignment]

    found = made(files, Silent(power={"average_socket_power": "N/A"}))
    assert found.read() == files.read() == Reading(power_w=213.0, temperature_c=61.0)
    assert found.facts() == {"power_limit_w": 300.0, "power_default_w": 330.0}


def test_without_the_library_or_with_another_card_the_files_are_read(files: Amdgpu) -> None:
    assert AmdSmi.beside(files, PCI, lambda: None) == (None, "the Python package amdsmi is not installed")
    assert AmdSmi.beside(files, PCI, lambda: Library(broken=True)) == (None, "amdsmi does not start: driver not loaded")
    assert (
        AmdSmi.beside(files, PCI, lambda: Library(bdf="0000:44:00.0"))[1] == f"amdsmi does not know the card at {PCI}"
    )


def test_which_source_is_read_is_said(files: Amdgpu, monkeypatch: pytest.MonkeyPatch) -> None:
    root = files.folder.parents[4]
    for library, name in ((Library(), "amdsmi"), (None, "amdgpu")):
        monkeypatch.setitem(sys.modules, "amdsmi", library)
        assert load_amdsmi() is library
        source, _ = find_amd(AMD, PCI, root)
        assert source is not None
        assert source.name == name
        assert cap_of(source).source == name
    assert find_amd(0x10DE, PCI, root) == (None, "")


def test_a_cap_that_changed_is_told_and_one_that_did_not_is_not(files: Amdgpu) -> None:
    before = cap_of(files)
    assert before == Cap(300.0, 330.0, "amdgpu")
    assert before.words() == "300 W of 330 W by default (amdgpu)"
    (files.hwmon / "power1_cap").write_text("250000000")
    assert before.changed(cap_of(files)) == "the power cap changed while the run measured: 300 W before, 250 W after"
    assert before.changed(before) is None
    unknown = Cap(None, why="RAPL cannot be read")
    assert unknown.words() == "no power cap is told: RAPL cannot be read"
    assert unknown.changed(unknown) is None
    assert "not told after the run, and is 300 W otherwise" in str(before.changed(unknown))
