"""Other users of the device, throttling and spills: what a run record tells of them."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import notices
from make_run import run_of

from labkit.measure.neighbours import Neighbours, Process
from labkit.measure.telemetry import UNTOLD

CELL = {"phase": "decode", "streams": 1}
WINDOWS = [{"block": block, "start_s": 10.0 * block, "last_token_s": 10.0 * block + 5} for block in range(3)]


def said(detector: str, root: Path, seen: Neighbours | None, limited: str | None = None, **more: Any) -> Any:
    """The one notice of a run that met these neighbours; `limited` is what held the card back in its second block."""
    readings = [
        {"time_s": at, "power_w": 290.0, "core_mhz": 2400.0, "limited": limited or "" if 10 <= at <= 15 else ""}
        for at in range(30)
    ]
    evidence = run_of(
        root, [(CELL, {"decode_tok_s": [48.8, 9.32, 48.8]}, WINDOWS)], telemetry=readings if limited is not None else (),
        neighbours=seen.model_dump() if seen else None, **more,
    )  # fmt: skip
    (notice,) = notices(detector, evidence)
    return notice


def met(**fields: Any) -> Neighbours:
    """Neighbours as a look through all sources saw them."""
    return Neighbours(looks=20, sources=("fdinfo", "amdgpu", "CPU load"), **fields)


@pytest.mark.quick
def test_a_job_that_took_the_device_in_the_middle_of_a_run_warns(tmp_path: Path):
    # NIK: 48.77 tok/s fell to 9.32 when a foreign job began
    notice = said(
        "another-process", tmp_path, met(processes=(Process(pid=71, name="python", when=("during",), busy=0.81),))
    )
    assert notice.outcome == "warn"
    assert notice.arithmetic == ("python (process 71): 81% of an engine during, of 2% at the most",)


def test_readings_tell_of_it_where_the_record_does_not(tmp_path: Path):
    readings = [{"time_s": at, "others": 1.0, "others_busy": 0.81 if at > 20 else 0.0} for at in range(30)]
    evidence = run_of(tmp_path, [(CELL, {"decode_tok_s": [48.8]}, WINDOWS)], telemetry=readings)
    (notice,) = notices("another-process", evidence)
    assert notice.outcome == "warn"
    assert "another took 81% of an engine" in notice.arithmetic[0]


def test_a_desktop_that_only_shows_a_picture_does_not(tmp_path: Path):
    seen = met(processes=(Process(pid=7, name="Xorg", when=("before", "during", "after"), busy=0.004),))
    assert said("another-process", tmp_path, seen).outcome == "ok"


def test_a_process_of_which_nothing_more_is_told_cannot_be_judged(tmp_path: Path):
    seen = met(processes=(Process(pid=7, name="Xorg", when=("during",)),))
    assert said("another-process", tmp_path, seen).outcome == "not assessable"
    assert said("another-process", tmp_path / "unseen", None).outcome == "not assessable"


def test_on_a_driver_on_the_processor_other_programs_share_the_device(tmp_path: Path):
    cpu = {"device": {"name": "llvmpipe", "type": "cpu"}}
    assert said("another-process", tmp_path, met(cpu_others=0.4), **cpu).outcome == "warn"
    assert said("another-process", tmp_path / "idle", met(cpu_others=0.02), **cpu).outcome == "ok"
    assert said("another-process", tmp_path / "gpu", met(cpu_others=0.4)).outcome == "ok"


def test_a_card_held_back_by_heat_in_one_block_of_three_warns(tmp_path: Path):
    notice = said("throttled", tmp_path, met(), limited="heat")
    assert notice.outcome == "warn"
    assert notice.arithmetic[0] == "heat: 33% of the readings under load, of 5% at the most"


def test_a_card_that_nothing_held_back_and_one_whose_clocks_were_chosen_are_fine(tmp_path: Path):
    assert said("throttled", tmp_path / "free", met(), limited="").outcome == "ok"
    assert said("throttled", tmp_path / "chosen", met(), limited="application clocks").outcome == "ok"


def test_without_telemetry_the_looks_tell(tmp_path: Path):
    notice = said("throttled", tmp_path, met(throttled={"power cap": 0.67}))
    assert notice.outcome == "warn"
    assert "67% of the looks at the card" in notice.arithmetic[0]
    blind = Neighbours(looks=3, sources=("fdinfo", "CPU load"))
    assert said("throttled", tmp_path / "blind", blind).outcome == "not assessable"


def test_a_power_cap_that_was_changed_while_a_run_measured_warns(tmp_path: Path):
    for caps, warned in (((300.0,), False), ((300.0, 250.0), True)):
        readings = [{"time_s": at, "power_w": 200.0} for at in range(30)]
        seen = met(power_caps_w=caps).model_dump()
        cells = [(CELL, {"decode_tok_s": [48.8, 48.1, 44.0]}, WINDOWS)]
        evidence = run_of(tmp_path / str(warned), cells, telemetry=readings, neighbours=seen)
        warnings = [notice for notice in notices("throttled", evidence) if notice.outcome == "warn"]
        assert [notice.arithmetic for notice in warnings] == ([("300, then 250 W",)] if warned else [])


def test_a_processor_that_would_not_say_what_holds_it_back_is_not_called_free(tmp_path: Path):
    readings = [{"time_s": at, "core_mhz": 2596.0, "limited": UNTOLD} for at in range(30)]
    cells = [(CELL, {"decode_tok_s": [48.8, 48.1, 48.5]}, WINDOWS)]
    (notice,) = notices("throttled", run_of(tmp_path, cells, telemetry=readings))
    assert notice.outcome == "not assessable"


def test_memory_that_lay_in_the_hosts_warns(tmp_path: Path):
    # a 17.9 GB file on a card of 16 GB: 2.4 GB of it read over the bus
    seen = met(spilled_bytes=2_400_000_000, memory_used_bytes=15_900_000_000, memory_total_bytes=16_000_000_000)
    notice = said("spilled-memory", tmp_path, seen)
    assert notice.outcome == "warn"
    assert notice.arithmetic[0].startswith("2,400 MB of this run's device memory lay in the host's")
    assert notice.arithmetic[1] == "device memory in use: 15.9 of 16.0 GB = 99%"


def test_a_card_with_room_spills_nothing_and_a_full_one_that_does_not_tell_is_not_judged(tmp_path: Path):
    assert said("spilled-memory", tmp_path / "none", met(spilled_bytes=0)).outcome == "ok"
    # AMA: 31.7 of 31.9 GB in use
    full = met(memory_used_bytes=31_700_000_000, memory_total_bytes=31_900_000_000)
    assert said("spilled-memory", tmp_path / "full", full).outcome == "not assessable"
    room = met(memory_used_bytes=20_000_000_000, memory_total_bytes=31_900_000_000)
    assert said("spilled-memory", tmp_path / "room", room).outcome == "ok"
