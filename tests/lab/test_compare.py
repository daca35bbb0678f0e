"""Two runs compared: paired where they were measured in turns, wider where they are two sessions, bounded by what differs."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ledger_runs import DEVICE, EIGHT, ONE, make_lab, make_plan, make_run

from labkit.commands.compare import command
from labkit.errors import ParameterError, RunError
from labkit.lab.compare import Comparison, against_control, compare_runs
from labkit.lab.lab import StoredRun
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Anchor
from labkit.lab.record import canonical_cell, read_record
from labkit.lab.session_spread import ASSUMED, MANY, Spread, unpaired_interval
from labkit.measure import statistics

pytestmark = pytest.mark.quick

ANCHOR = Anchor(metric="read_gb_s", cell={"anchor": "stream"}, pinned="sha256 ab12")
HOST = {"cpu": "a processor", "cores": 2, "ram_bytes": 8 << 30, "os": "Debian 12", "boot_id": "b-1"}
NEWER = DEVICE | {"driver_info": "Mesa 25.1.0"}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path)


def run(
    lab: Path, number: int, rate: float = 20.0, eight: float = 5.0, anchor: float | None = None, noise: float = 0.005,
    every_s: int = 60, start_s: int | None = None, **record: Any,
) -> StoredRun:  # fmt: skip
    """A run of ten blocks at widths 1 and 8, `rate` tok/s at width 1; `anchor` GB/s if it has one. Blocks begin
    `every_s` seconds apart from `start_s`, or a quarter of an hour after the last run's."""
    rng = np.random.default_rng(number)
    plan = make_plan(anchor=ANCHOR if anchor is not None else None)
    samples: list[tuple[int, Mapping[str, Any], float]] = []
    for block in range(10):
        for cell, value in ((ONE, rate), (EIGHT, rate * eight)):
            samples.append((block, cell, value * math.exp(rng.normal(0, noise))))
    folder = make_run(lab, number=number, plan=plan, samples=samples, host=HOST, **record)
    begin = number * 900 if start_s is None else start_s
    with (folder / "measurements.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    for row in rows[1:]:
        row[5] = stamp(begin + int(row[0]) * every_s)
    if anchor is not None:
        rows += [[str(b), "99", '{"anchor":"stream"}', "read_gb_s", repr(anchor), rows[1][5]] for b in range(3)]
    with (folder / "measurements.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    known = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(known | {"started": stamp(begin)}))
    return StoredRun(read_record(folder), folder)


def stamp(seconds: int) -> str:
    return f"2026-12-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def words(found: Comparison) -> list[str]:
    return [cell.word for cell in found.cells]


# How it pairs


def test_runs_measured_in_turns_are_paired_by_block(lab: Path) -> None:
    old = run(lab, 1, start_s=0)
    new = run(lab, 2, 21.0, start_s=20, parameters={"kv": "f32"})
    found = compare_runs(lab, old, new)
    assert found.paired
    assert [(cell.cell, cell.blocks, cell.word) for cell in found.cells] == [
        ("width=1", (10, 10), "faster"),
        ("width=8", (10, 10), "faster"),
    ]
    assert found.level == pytest.approx(0.975)
    assert found.cells[0].ratio == pytest.approx(1.05, rel=0.01)
    assert "paired by block" in found.how()
    assert "2 cells at 97.5 % each (Bonferroni)" in found.how()


def test_runs_one_after_the_other_are_two_sessions_with_a_wider_interval(lab: Path) -> None:
    old, turn, later = run(lab, 1, start_s=0), run(lab, 2, 21.0, start_s=20), run(lab, 3, 21.0, start_s=3000)
    apart, paired = compare_runs(lab, old, later), compare_runs(lab, old, turn)
    assert not apart.paired
    for wide, narrow in zip(apart.cells, paired.cells, strict=True):
        assert wide.low is not None
        assert wide.high is not None
        assert narrow.low is not None
        assert narrow.high is not None
        assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
        assert wide.low < 1 < wide.high
        assert (wide.word, narrow.word) == ("undecided", "faster")
    assert "from the 3 sessions of the scope there are, of 5" in apart.cells[0].spread  # 5 % of 3 is more than 2 %


def test_runs_on_two_cards_or_boots_are_never_paired(lab: Path) -> None:
    old = run(lab, 1, start_s=0)
    other_card = run(lab, 2, start_s=20, device=DEVICE | {"uuid": "11" * 16})
    assert not compare_runs(lab, old, other_card).paired
    record = json.loads((other_card.folder / "run.json").read_text())
    (other_card.folder / "run.json").write_text(
        json.dumps(record | {"device": DEVICE, "host": HOST | {"boot_id": "b-2"}})
    )
    again = StoredRun(read_record(other_card.folder), other_card.folder)
    found = compare_runs(lab, old, again)
    assert not found.paired
    assert "another boot of the machine" in [one.name for one in found.differences]


def test_five_sessions_of_the_scope_tell_the_spread_and_same_can_be_said(lab: Path) -> None:
    runs = [run(lab, number, 20.0 * (1 + 0.002 * (number % 3))) for number in range(1, 7)]
    found = compare_runs(lab, runs[0], runs[-1])
    assert words(found) == ["same", "same"]
    assert "from 6 sessions of the same scope" in found.cells[0].spread


def test_two_large_sessions_differ_even_where_the_spread_is_only_assumed(lab: Path) -> None:
    found = compare_runs(lab, run(lab, 1), run(lab, 2, 30.0, parameters={"kv": "f32"}))
    assert words(found) == ["faster", "faster"]
    assert (
        found.bound.startswith("Only the kv: f16 → f32 differs of what the records tell") is False
    )  # tokens differ too
    assert "kv: f16 → f32" in found.bound


@pytest.mark.parametrize("sessions", [2, 3, 4])
def test_sessions_of_one_scope_show_no_difference_between_themselves_before_five_are_there(
    lab: Path, sessions: int
) -> None:
    runs = [run(lab, number, 20.0 if number < sessions else 43.6) for number in range(1, sessions + 1)]
    found = compare_runs(lab, runs[0], runs[-1])
    assert found.cells[0].ratio == pytest.approx(2.18, rel=0.01)
    assert words(found) == ["undecided", "undecided"]
    said = "undecided: two sessions of one scope, this is their spread" if sessions == 2 else (
        f"from the {sessions} sessions of the scope there are, of 5 that would tell it"
    )  # fmt: skip
    assert said in found.cells[0].spread
    # the sd of n - 1 equal logarithms and one ln 2.18 beyond is ln 2.18 / √n
    sd = math.log(2.18) / math.sqrt(sessions)
    assert float(found.cells[0].spread.split()[0]) == pytest.approx(100 * sd, rel=0.03)


def test_a_run_that_the_history_leaves_out_is_a_session_of_its_scope_all_the_same(lab: Path) -> None:
    found = compare_runs(lab, run(lab, 1), run(lab, 2, 43.6, state="killed", reason="killed"))
    assert words(found) == ["undecided", "undecided"]


def test_an_interval_that_reaches_beyond_a_factor_of_a_hundred_is_none(lab: Path) -> None:
    found = compare_runs(lab, run(lab, 1), run(lab, 2, 2000.0))
    assert [(cell.low, cell.high, cell.word) for cell in found.cells] == [(None, None, "undecided")] * 2


def test_what_two_sessions_of_one_side_show_is_held_against_the_other_side(lab: Path) -> None:
    old, _, new = run(lab, 1), run(lab, 2, 43.6), run(lab, 3, 60.0, parameters={"kv": "f32"})
    found = compare_runs(lab, old, new)
    assert words(found) == ["undecided", "undecided"]
    assert "from the 2 sessions of the scope there are, of 5" in found.cells[0].spread


def test_a_setting_of_the_card_or_a_notebook_that_differs_makes_two_scopes(lab: Path) -> None:
    high, low = ({"device": DEVICE | {"card": {"power_limit_w": watts}}} for watts in (300, 150))
    one, other = ({"notebook_sha256": digit * 64} for digit in "ab")
    for number, (then, now) in enumerate(((high, low), (one, other))):
        found = compare_runs(lab, run(lab, 3 * number + 1, **then), run(lab, 3 * number + 2, 10.0, **now))
        assert words(found) == ["slower", "slower"]
        assert "2 %, assumed: " in found.cells[0].spread


# An upgrade


def test_another_driver_without_an_anchor_is_undecided_whatever_the_ratio(lab: Path) -> None:
    found = compare_runs(lab, run(lab, 1), run(lab, 2, 40.0, device=NEWER))
    assert found.upgrade
    assert words(found) == ["undecided", "undecided"]
    assert any("no anchor was measured in both" in notice for notice in found.notices)


@pytest.mark.parametrize(("earlier", "word"), [(4, "undecided"), (5, "faster")])
def test_an_upgrade_is_judged_from_five_earlier_sessions_of_the_anchor_on(lab: Path, earlier: int, word: str) -> None:
    runs = [run(lab, number, anchor=600 + number % 3) for number in range(1, earlier + 1)]
    found = compare_runs(lab, runs[-1], run(lab, 9, 22.0, anchor=601.0, device=NEWER))
    assert found.upgrade
    assert found.anchor is not None
    assert (found.anchor.sessions, found.anchor.holds) == (earlier, earlier == 5)
    assert words(found) == [word, word]
    if earlier == 4:
        assert any("4 of the 5 earlier sessions" in notice for notice in found.notices)


def test_an_anchor_that_moved_with_the_upgrade_leaves_it_undecided(lab: Path) -> None:
    runs = [run(lab, number, anchor=600 + number % 3) for number in range(1, 7)]
    found = compare_runs(lab, runs[-1], run(lab, 9, 22.0, anchor=640.0, device=NEWER))
    assert found.anchor is not None
    assert not found.anchor.holds
    assert words(found) == ["undecided", "undecided"]
    assert any("its anchor moved too: read_gb_s is 640, its 6 sessions predict" in notice for notice in found.notices)


def test_sessions_under_the_new_driver_or_of_another_anchor_are_no_history(lab: Path) -> None:
    old = run(lab, 1, anchor=600.0)
    for number in range(2, 8):
        run(lab, number, anchor=600.0, device=NEWER)
    found = compare_runs(lab, old, run(lab, 9, 22.0, anchor=600.0, device=NEWER))
    assert found.anchor is not None
    assert found.anchor.sessions == 1


def test_other_kernels_are_an_upgrade_too_and_another_card_is_none(lab: Path) -> None:
    old = run(lab, 1)
    assert compare_runs(lab, old, run(lab, 2, shaders={"linear.comp": "ee" * 32})).upgrade
    other = compare_runs(lab, old, run(lab, 3, 90.0, device=DEVICE | {"name": "B card", "uuid": "22" * 16}))
    assert not other.upgrade
    assert words(other) == ["faster", "faster"]


# What differs


def test_everything_that_differs_is_listed_and_bounds_the_claim(lab: Path) -> None:
    a_card = DEVICE | {"card": {"power_limit_w": 300, "ecc": True}}
    old = run(lab, 1, device=a_card)
    new = run(lab, 2, 90.0, device=a_card | {"card": {"power_limit_w": 250, "ecc": True}},
              parameters={"kv": "f32", "tokens": 24, "repetitions": 12, "widths": [1, 8]},
              model={"name": "Another", "sha256": "cd" * 32},
              packages={"labkit": "0.1.0", "numpy": "2"})  # fmt: skip
    for folder, mhz in ((old.folder, 2000), (new.folder, 1500)):
        rows = "".join(f"{t}.0,{power},{mhz},1258\n" for t, power in enumerate((20, 250, 255)))
        (folder / "telemetry.csv").write_text(f"time_s,power_w,core_mhz,memory_mhz\n{rows}")
    found = compare_runs(lab, old, new)
    listed = {one.name: one for one in found.differences}
    assert listed["card power_limit_w"].words() == "card power_limit_w: 300 → 250"
    assert listed["kv"].words() == "kv: f16 → f32"
    assert listed["core_mhz"].words() == "core_mhz: 2000 MHz → 1500 MHz"
    assert listed["model"].new == "Another (SHA-256 cdcdcdcdcdcd)"
    assert "memory_mhz" not in listed
    assert "tokens" not in listed
    assert not listed["repetitions"].bounds
    assert (listed["package numpy"].words(), listed["package numpy"].bounds) == ("package numpy: not known → 2", False)
    assert not listed["widths"].bounds  # each cell sets its own
    assert found.bound.startswith("clocks, model and kv: f16 → f32 differ at once")


def test_what_differs_in_nothing_is_two_sessions(lab: Path) -> None:
    found = compare_runs(lab, run(lab, 1), run(lab, 2))
    assert found.differences == ()
    assert found.bound == (
        "No condition that bounds a claim differs: the ratio is that of two sessions. Each side is one session."
    )


def test_a_lever_bounds_only_the_cells_it_acts_on(lab: Path) -> None:
    def bench(number: int, streams: int, cells: Sequence[Mapping[str, Any]]) -> StoredRun:
        plan = make_plan(cells=list(cells), knob=[*cells[0]], control=None,
                         rule={"cell": cells[0], "against": cells[1]})  # fmt: skip
        samples = [(block, cell, 100.0 * streams * (1 + 0.01 * (block % 2))) for block in range(4) for cell in cells]
        folder = make_run(lab, number=number, plan=plan, samples=samples, parameters={"streams": streams})
        return StoredRun(read_record(folder), folder)

    prefill = [{"phase": "prefill", "prompt": 256}, {"phase": "prefill", "prompt": 512}]
    decode = [{"phase": "decode", "prompt": 256}, {"phase": "prefill", "prompt": 512}]
    ours = [{"width": 1}, {"width": 8}]
    for number, cells in enumerate((prefill, ours)):  # a prompt is read alone; a cell that sets the streams itself
        found = compare_runs(lab, bench(2 * number + 1, 2, cells), bench(2 * number + 2, 4, cells))
        assert [one.words() for one in found.differences] == ["streams: 2 → 4 (acts on no cell that is compared)"]
        assert found.bound.startswith("No condition that bounds a claim differs")
        assert {cell.word for cell in found.cells} == {"undecided"}  # 2×, and still the spread of two sessions
        assert "two sessions of one scope, this is their spread" in found.cells[0].spread
    some = compare_runs(lab, bench(5, 2, decode), bench(6, 4, decode))
    said = "streams: 2 → 4 (does not act at phase=prefill, prompt=512)"
    assert [one.words() for one in some.differences] == [said]
    assert some.bound.startswith(f"Only the {said} differs")


def test_load_by_others_is_a_difference_and_bounds_the_claim(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    alone, loaded = ({"looks": 3, "sources": ["/proc"], "cpu_others": share} for share in (0.0, 0.496))
    old, new = run(lab, 1, neighbours=alone), run(lab, 2, neighbours=loaded)
    found = compare_runs(lab, old, new)
    said = "load beside the run: none seen → other processes took 50% of the processor"
    assert [one.words() for one in found.differences] == [said]
    assert found.bound.startswith(
        "Only the load beside the runs differs of what the records tell: the ratio may be its"
    )
    shown = CliRunner().invoke(command, [old.record.id, new.record.id]).output
    assert f"differs: {said}" in shown
    also_kv = compare_runs(lab, old, run(lab, 3, neighbours=loaded, parameters={"kv": "f32"}))
    assert "load" in also_kv.bound
    assert also_kv.bound.find("differ at once") > 0


def test_another_process_that_only_the_telemetry_saw_is_a_difference(lab: Path) -> None:
    old, new = run(lab, 1), run(lab, 2)
    (new.folder / "telemetry.csv").write_text("time_s,others_busy\n0.0,\n1.0,0.31\n2.0,0.01\n")
    assert [one.words() for one in compare_runs(lab, old, new).differences] == [
        "load beside the run: not known → in one reading another process took 31% of an engine of the device"
    ]
    (new.folder / "telemetry.csv").write_text("time_s,others_busy\n0.0,0.01\n")  # the audit's own bound is 2 %
    assert compare_runs(lab, old, new).differences == ()


def test_a_knob_without_a_value_in_common_is_told_and_the_cells_still_meet(lab: Path) -> None:
    def bench(number: int, quant: str, rate: float) -> StoredRun:
        plan = make_plan(cells=[{"quant": quant, "width": 1}, {"quant": quant, "width": 8}], knob="width", control=None,
                         rule={"cell": {"quant": quant, "width": 8}, "against": {"quant": quant, "width": 1}})  # fmt: skip
        samples = [
            (block, {"quant": quant, "width": width}, rate * width * (1 + 0.01 * (block % 2)))
            for block in range(4)
            for width in (8, 1)
        ]
        folder = make_run(lab, number=number, plan=plan, samples=samples)
        return StoredRun(read_record(folder), folder)

    found = compare_runs(lab, bench(1, "q8_0", 100.0), bench(2, "q4_0", 150.0))
    assert [(cell.cell, round(cell.ratio, 6), cell.word) for cell in found.cells] == [
        ("width=1", 1.5, "faster"),
        ("width=8", 1.5, "faster"),
    ]
    assert [one.words() for one in found.differences] == ["quant: q8_0 → q4_0"]
    assert found.bound.startswith("Only the quant: q8_0 → q4_0 differs of what the records tell")


def test_a_failed_check_makes_speeds_invalid(lab: Path) -> None:
    new = run(lab, 2, 90.0, checks=[{"name": "ids", "passed": False}])
    found = compare_runs(lab, run(lab, 1), new)
    assert words(found) == ["invalid", "invalid"]
    assert f"{new.record.id} failed its check ids: its speeds are invalid" in found.notices
    unchecked = compare_runs(lab, run(lab, 3, checks=[]), run(lab, 4, checks=[]))
    assert any("no correctness check was recorded" in notice for notice in unchecked.notices)


def test_two_runs_that_cannot_be_compared_are_refused_in_one_line(lab: Path) -> None:
    old, new = run(lab, 1), run(lab, 2)
    with pytest.raises(ParameterError, match="cannot be compared with itself"):
        compare_runs(lab, old, old)
    with pytest.raises(ParameterError, match="have not both measured ttft_s; they have decode_tok_s in common"):
        compare_runs(lab, old, new, "ttft_s")
    with pytest.raises(ParameterError, match="did you mean decode_tok_s"):
        compare_runs(lab, old, new, "decode_toks")
    other = make_plan(cells=[{"height": 1}, {"height": 2}], knob="height", control=None,
                      rule={"cell": {"height": 2}, "against": {"height": 1}})  # fmt: skip
    folder = make_run(lab, number=3, plan=other, samples=[(0, {"height": 1}, 1.0)])
    with pytest.raises(ParameterError, match="have no cell in common"):
        compare_runs(lab, old, StoredRun(read_record(folder), folder))
    empty = make_run(lab, number=4, samples=[])
    with pytest.raises(ParameterError, match="measured nothing"):
        compare_runs(lab, old, StoredRun(read_record(empty), empty))


def test_the_cells_of_a_sweep_are_read_against_its_control_with_intervals_that_hold_together() -> None:
    cells = [{"width": width} for width in (1, 2, 4, 8)]
    rng = np.random.default_rng(3)
    rows = [
        Measurement(
            block, 0, canonical_cell(cell), "step_ms", math.exp(rng.normal(0, 0.01)) * (2 if cell == EIGHT else 1), ""
        )
        for block in range(10)
        for cell in cells
    ]
    plan = make_plan(cells=cells, rule={"metric": "step_ms"})
    found = against_control(plan, rows)
    assert [cell.cell for cell in found] == ["width=2", "width=4", "width=8"]
    assert found[2].word == "slower"  # a step that takes twice as long
    alone = statistics.interval(
        np.log([rows[4 * block + 3].value / rows[4 * block].value for block in range(10)]), 1 - 0.05 / 3
    ).exp()
    assert (found[2].low, found[2].high) == pytest.approx((alone.low, alone.high))
    assert against_control(plan, rows[:0]) == ()
    assert against_control(plan, rows, "ttft_s") == ()


@pytest.mark.parametrize("cell", ["width=8", "[8]", "[" * 100_000, "NaN"])
def test_a_damaged_cell_ends_in_one_line(lab: Path, cell: str) -> None:
    old, new = run(lab, 1), run(lab, 2)
    path = new.folder / "measurements.csv"
    path.write_text(path.read_text() + f"10,20,{cell},decode_tok_s,1.0,2026-12-01T00:17:00Z\n")
    with pytest.raises(RunError, match=r"is not a cell; it must be a JSON object") as raised:
        compare_runs(lab, old, new)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("value", ["nan", "inf", "0.0", "-1.0"])
def test_a_sample_without_a_ratio_leaves_its_cell_out_and_is_told(lab: Path, value: str) -> None:
    old, new = run(lab, 1), run(lab, 2)
    path = new.folder / "measurements.csv"
    path.write_text(path.read_text() + f'10,20,"{{""width"":8}}",decode_tok_s,{value},2026-12-01T00:17:00Z\n')
    found = compare_runs(lab, old, new)
    assert [cell.cell for cell in found.cells] == ["width=1"]
    assert any("decode_tok_s at width=8 has samples that are not finite numbers above 0" in n for n in found.notices)


# The verb


def test_the_verb_shows_a_table_and_json(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    old, new = run(lab, 1, start_s=0), run(lab, 2, 21.0, start_s=20)
    shown = CliRunner().invoke(command, [old.record.id, new.record.id[-8:]])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0] == f"old  {old.record.id}"
    assert lines[3].split() == ["cell", "metric", "old", "new", "new", "/", "old", "word", "blocks"]
    assert [line.split()[0] for line in lines[4:6]] == ["width=1", "width=8"]
    assert lines[-1].startswith("claim: ")
    read = CliRunner().invoke(command, [old.record.id, new.record.id, "--metric", "decode_tok_s", "--json"])
    document = json.loads(read.output)
    assert document["paired"] is True
    assert [cell["word"] for cell in document["cells"]] == ["faster", "faster"]


# The rates


def unpaired_rates(spread: Spread | None, between: float, ratio: float, level: float = 0.95) -> dict[str, float]:
    """Words for 2,000 comparisons of two single sessions of ten blocks, `between` apart; with `spread` None, the spread
    is that of five sessions drawn alike."""
    rng, found = np.random.default_rng(41), {}
    for _ in range(2000):
        sessions = rng.normal(0, between, (7, 1)) + rng.normal(0, 0.01, (7, 10))
        known = spread or Spread(float(sessions[:5].mean(axis=1).std(ddof=1)), 4, 5, "history")
        got = unpaired_interval(sessions[5], sessions[6] + math.log(ratio), level, known).exp()
        word = statistics.comparison_word(got.low, got.high, "higher")
        found[word] = found.get(word, 0) + 1 / 2000
    return found


@pytest.mark.parametrize("between", [0.002, 0.01, 0.02])
def test_two_single_sessions_that_are_the_same_are_called_different_in_at_most_7_of_100(between: float) -> None:
    by_history = unpaired_rates(None, between, 1.0)
    assumed = unpaired_rates(Spread(ASSUMED, MANY, 0, "assumed"), between, 1.0)
    welch = unpaired_rates(Spread(0.0, MANY, 5, "none"), between, 1.0)
    print(f"sessions {between:.1%} apart: by five sessions {by_history}; assumed {assumed}; Welch's alone {welch}")
    assert by_history.get("faster", 0) + by_history.get("slower", 0) <= 0.07
    assert assumed.get("faster", 0) + assumed.get("slower", 0) <= 0.07
    if between > 0.005:
        assert welch["faster"] + welch["slower"] > 0.25  # why Welch's interval alone will not do


def test_a_difference_of_15_percent_between_single_sessions_is_found() -> None:
    by_history, assumed = unpaired_rates(None, 0.01, 1.15), unpaired_rates(Spread(ASSUMED, MANY, 0, ""), 0.01, 1.15)
    print(f"15 % between sessions 1 % apart: by five sessions {by_history}, assumed {assumed}")
    assert by_history["faster"] > 0.9
    assert assumed["faster"] > 0.95


def sequence(values: Sequence[float]) -> Spread:
    return Spread(float(np.std(values, ddof=1)), len(values) - 1, len(values), "")


def test_the_interval_of_single_sessions_is_never_narrower_than_welchs() -> None:
    a, b = [0.0, 0.01, 0.02, 0.01], [0.1, 0.11, 0.13, 0.1]
    welch = statistics.welch_interval(a, b)
    tight = unpaired_interval(a, b, 0.95, sequence([0.0, 1e-6, 0.0, 1e-6, 0.0]))
    assert (tight.low, tight.high) == pytest.approx((welch.low, welch.high))
    one = unpaired_interval([0.0], [0.1], 0.95, Spread(ASSUMED, MANY, 0, "assumed"))
    assert one.low is None
    known = unpaired_interval([0.0], [0.1], 0.95, Spread(0.01, 4, 5, ""))
    assert known.high == pytest.approx(0.1 + 2.7764 * 0.01 * math.sqrt(2), rel=1e-4)


def test_the_version_that_another_program_reports_is_a_build_and_needs_the_anchor(lab: Path) -> None:
    told = [{"program_fingerprints": {"runtime after": f"llama-server b{number}", "1 rows": "ab"}} for number in (1, 2)]
    old, new = run(lab, 1, anchor=100.0, **told[0]), run(lab, 2, anchor=100.0, **told[1])
    found = compare_runs(lab, old, new)
    assert [one.words() for one in found.differences if one.kind == "build"] == [
        "runtime after: llama-server b1 → llama-server b2"
    ]
    assert found.upgrade
    assert {row.word for row in found.cells} == {"undecided"}  # two sessions of its anchor, of five
