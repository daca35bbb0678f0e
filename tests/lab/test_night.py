"""What is looked at before a night: the disk against what runs took before, mains power, and who is on the device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.lab import night
from labkit.lab.night import Checked, check_night, disk_trouble, look, power_trouble
from labkit.measure.neighbours import Neighbours, Process


def test_a_night_needs_room_for_what_its_runs_took_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stamp, size in (("20261201T000000Z", 40), ("20261201T000001Z", 60), ("20261201T000002Z", 50)):
        folder = tmp_path / "data/runs" / f"{stamp}-batch-decode-0123abcd"
        folder.mkdir(parents=True)
        (folder / "run.json").write_bytes(b"x" * size * 1_000_000)
    other = tmp_path / "data/runs" / "20261201T000003Z-other-0123abcd"
    other.mkdir()
    (other / "run.json").write_bytes(b"x" * 1000)
    free = 1_000_000_000
    monkeypatch.setattr(night.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert disk_trouble(tmp_path, "batch-decode", 10) == ""  # 10 × 50 MB and 500 MB to spare
    assert "has 1.00 GB free; 11 runs need about 0.55 GB and 0.5 GB must stay free" in disk_trouble(
        tmp_path, "batch-decode", 11
    )
    assert disk_trouble(tmp_path, "never-run", 100) == ""
    assert disk_trouble(tmp_path, "never-run", 101) != ""  # 5 MB each where nothing is known


def supply(root: Path, name: str, **files: str) -> None:
    folder = root / "class/power_supply" / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("mains", "battery", "scope", "told"),
    [
        ("0", "Discharging", "System", True),
        ("1", "Discharging", "System", False),
        ("0", "Full", "System", False),
        ("0", "Discharging", "Device", False),  # a mouse
    ],
)
def test_a_machine_on_its_battery_is_told(tmp_path: Path, mains: str, battery: str, scope: str, told: bool) -> None:
    supply(tmp_path, "AC", type="Mains", online=mains)
    supply(tmp_path, "BAT0", type="Battery", status=battery, scope=scope)
    assert bool(power_trouble(tmp_path)) == told


def test_a_machine_without_a_battery_has_no_power_trouble(tmp_path: Path) -> None:
    assert power_trouble(tmp_path) == ""


def test_other_users_are_warnings_and_the_disk_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Process(pid=4242, name="llama-server", when=("before",), busy=0.7)
    monkeypatch.setattr(night, "look", lambda selector: Neighbours(looks=1, processes=(peer,)))
    monkeypatch.setattr(night.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    found: Checked = check_night(tmp_path, "batch-decode", 1, "", mains=tmp_path)
    assert found.warnings == ("llama-server (process 4242) on the device before",)
    assert "GB free" in found.refusals[0]


def test_the_look_is_taken_in_a_process_of_its_own_and_never_ends_a_night(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(None)
    assert seen.looks >= 3
    assert "CPU load" in seen.sources

    def fails(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(stdout="", returncode=1)

    monkeypatch.setattr(night.subprocess, "run", fails)
    assert look("0").unseen == ("the device: it could not be looked at",)
