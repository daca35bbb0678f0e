"""The power of a stored run, from a folder whose every joule is known."""

from pathlib import Path

import pytest

from labkit.errors import RunError
from labkit.lab.lab import Lab
from labkit.lab.pictures.power import drawn_cells
from labkit.lab.stored_power import find_stored, read_stored, stored_powers
from labkit.measure.telemetry import Reading, csv_line, header

REST_W, ASLEEP_W, DECODE_W, PREFILL_W = 120.0, 80.0, 600.0, 500.0


def power(at: float) -> Reading:
    """Asleep until 5 s, awake from there; one stream decodes from 10 to 11 s, two from 12 to 13, a prompt is read from 14
    to 15; the cap is met by two."""
    if at < 5:
        return Reading(power_w=ASLEEP_W + (at * 20) % 2, core_mhz=345.0, utilisation=0.0, temperature_c=40.0)
    for start, watts, limited in ((10, DECODE_W, ""), (12, DECODE_W, "power cap"), (14, PREFILL_W, "")):
        if start <= at < start + 1:
            return Reading(watts, 1980.0, temperature_c=50.0, utilisation=1.0, limited=limited)
    return Reading(power_w=REST_W, core_mhz=1980.0, utilisation=0.0, temperature_c=45.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    run = Lab(tmp_path).run("bench")
    run.describe(device={"name": "a card", "card": {"power_limit_w": 590.0}})
    for streams, at in ((1, 10.0), (2, 12.0)):
        cell = {"phase": "decode", "streams": streams}
        run.measure(cell, 0, achieved_gb_s=1000.0 * streams)
        for _ in range(streams):
            run.request(
                block=0, cell=cell, submit_s=at - 0.2, last_token_s=at + 1.0, completion_tokens=300, prompt_tokens=16,
                window_start_s=at, window_end_s=at + 1.0, window_tokens=250,
            )  # fmt: skip
    cell = {"phase": "prefill", "streams": 1, "prompt": 4096}
    run.measure(cell, 0, ttft_s=1.0)
    run.request(block=0, cell=cell, submit_s=14.0, last_token_s=15.0, completion_tokens=1, prompt_tokens=4096)
    run.request(block=0, cell=cell, submit_s=15.0, error="refused")  # a request that failed has no end
    lines = (csv_line(0.05 * i + 0.02, power(0.05 * i + 0.02)) for i in range(400))
    (run.folder / "telemetry.csv").write_text(header() + "".join(lines))
    found = run.end("completed")
    assert found is not None
    return found


def test_each_cell_costs_the_joules_it_took_over_its_own_tokens(folder: Path) -> None:
    stored = read_stored(folder)
    one, two, read = stored.works
    assert [(work.phase, work.streams, work.tokens) for work in stored.works] == [
        ("decode", 1, 250), ("decode", 2, 500), ("prefill", 1, 4096),
    ]  # fmt: skip
    assert (one.gb_s, two.gb_s, read.gb_s) == (1000.0, 2000.0, None)
    assert stored.spent(one).joules == pytest.approx(DECODE_W / 250)
    assert stored.spent(one).above_rest == pytest.approx((DECODE_W - REST_W) / 250)
    assert stored.spent(two).joules == pytest.approx(stored.spent(one).joules / 2)
    assert stored.spent(read).joules == pytest.approx(PREFILL_W / 4096)


def test_cells_and_their_lines_are_told_in_columns(folder: Path) -> None:
    stored = read_stored(folder)
    assert [(cell.phase, cell.streams) for cell in stored.cells()] == [("decode", 1), ("decode", 2), ("prefill", 1)]
    row = stored.cells()[1].row()
    assert (row["J a token"], row["GB/s"], row["W"]) == (pytest.approx(DECODE_W / 500), 2000.0, pytest.approx(DECODE_W))
    assert (row["held by the cap"], row["blocks told"], row["of"]) == (1.0, 1, 1)
    assert stored.cells()[2].row()["GB/s"] is None
    assert stored.row()["highest (W)"] == "600, 102% of 590"
    (drawn,) = drawn_cells(stored)
    assert drawn.joules == {1: [pytest.approx(2.4)], 2: [pytest.approx(1.2)]}
    assert drawn.points == [(1000.0, pytest.approx(600.0)), (2000.0, pytest.approx(600.0))]
    lab = Lab(folder.parents[2])
    assert [one.record.id for one in stored_powers(lab)] == [folder.name]
    assert [one.record.id for one in stored_powers(lab, [folder.name])] == [folder.name]
    assert stored_powers(lab, experiment="power") == []


def test_rest_awake_and_asleep_are_told_apart(folder: Path) -> None:
    stored = read_stored(folder)
    assert stored.rest.watts == REST_W
    assert stored.asleep.watts == pytest.approx(ASLEEP_W + 0.5, abs=0.5)


def test_the_cap_is_the_records_and_its_share_is_of_the_readings_under_load(folder: Path) -> None:
    stored = read_stored(folder)
    assert stored.cap_w == 590.0
    assert stored.transients().peak_of_cap == pytest.approx(600 / 590)
    assert stored.capped([stored.works[1]]) == pytest.approx(
        20 / 21, abs=0.05
    )  # the last reading is of what comes after
    assert stored.capped([stored.works[0]]) == 0.0
    assert stored.steady("temperature_c").steady is None  # it goes up and down between the cells


def test_a_run_is_found_by_its_id_or_its_folder_and_one_without_power_is_refused(folder: Path) -> None:
    lab = Lab(folder.parents[2])
    assert find_stored(lab, folder.name[-8:]).record.id == folder.name
    assert find_stored(lab, f"data/runs/{folder.name}").record.id == folder.name
    with pytest.raises(RunError, match="there is no run 'nothing'"):
        find_stored(lab, "nothing")
    text = (folder / "telemetry.csv").read_text().splitlines(keepends=True)
    (folder / "telemetry.csv").write_text(text[0] + csv_line(1.0, Reading(core_mhz=3000.0)))
    with pytest.raises(RunError, match="has no readings of power"):
        read_stored(folder)
