"""What acts by restart is compared over restarts: refused in turns, its starts witnessed, one value a start."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ledger_runs import DEVICE, make_lab, make_plan

from labkit.engine.engine import Engine
from labkit.errors import ParameterError, RunError
from labkit.lab.export import export_run
from labkit.lab.importing import import_run
from labkit.lab.lab import Lab, _open_runs
from labkit.lab.lever_checks import check_plan
from labkit.lab.levers import ANEW, LEVERS, OWN_FILE, known_levers, lever
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import Plan
from labkit.lab.publish import publish_run
from labkit.lab.recheck import verify
from labkit.lab.record import Check, canonical_cell, read_record
from labkit.lab.starts import FILE, Start, read_starts, samples_of, start_of
from labkit.lab.verdict import Verdict, judge, judge_folder
from labkit.models.shapes import ShapeModel
from labkit.vulkan.device import Device

HALF, FULL = {"kv": "f16"}, {"kv": "f32"}
PASSED = [Check(name="ids", passed=True)]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    yield Lab(tmp_path)
    for run in _open_runs.values():
        run.close()
    _open_runs.clear()


def kv_plan(design: str = "restarts", **fields: Any) -> Plan:
    """A plan over the type of the KV cache, which an engine has from when it is made."""
    rule = {"cell": FULL, "against": HALF, "comparison": "different", "threshold": None, "margin": 0.02}
    known = {"knob": "kv", "cells": [HALF, FULL], "control": HALF, "design": design}
    return make_plan(rule=rule, **(known | fields))


def engine(number: int, weights: int = 1, device: int = 1) -> Any:
    """Something that says which start it is, as an `Engine` does."""
    return SimpleNamespace(origin={"device": device, "weights": weights, "engine": number})


# Refused before it runs


@pytest.mark.parametrize(
    ("knob", "values", "needs"),
    [
        ("kv", ["f16", "f32"], "engine"),
        ("slots", [4, 8], "engine"),
        ("context", [512, 1024], "engine"),
        ("arithmetic", ["exact", "fast"], "engine"),
        ("quant", ["q4_0", "q8_0"], "weights"),
        ("model", ["a", "b"], "weights"),
        ("disable", ["", "coopmat"], "device"),
        ("device", ["0", "1"], "device"),
        ("runtime", ["labkit", "llama-server"], "engine"),
    ],
)
def test_what_acts_by_restart_is_refused_in_turns_with_the_reason_and_the_remedy(
    knob: str, values: list[Any], needs: str
) -> None:
    cells = [{knob: value} for value in values]
    fields = {"knob": knob, "cells": cells, "control": None, "rule": {"cell": cells[1], "against": cells[0]}}
    with pytest.raises(ParameterError) as refused:
        check_plan(make_plan(**fields), {})
    assert str(refused.value) == (
        f"the plan is refused: {knob} acts by restart, and in turns every repetition would be of one start. It needs "
        f'{ANEW[needs]}. Say Plan(design="restarts"), make it anew for each cell of each block, and hand it over: '
        f"run.measure(cell, block, start=engine, ...)"
    )
    check_plan(make_plan(**fields, design="restarts"), {})


@pytest.mark.parametrize("design", ["interleaved", "restarts"])
def test_another_driver_is_measured_in_another_run_with_an_anchor_whatever_the_design(design: str) -> None:
    cells = [{"driver": "25.0"}, {"driver": "25.1"}]
    with pytest.raises(ParameterError, match=r"a run has one.*stream_anchor\(\)\), then `lab compare BEFORE AFTER`"):
        check_plan(
            make_plan(knob="driver", cells=cells, control=None, rule={"cell": cells[1], "against": cells[0]}, design=design),
            {},
        )  # fmt: skip


def test_what_has_nothing_to_restart_may_take_turns() -> None:
    cells = [{"quant": quant, "kernel": "engine", "rows": rows} for quant in ("q4_0", "q8_0") for rows in (8, 9)]
    plan = make_plan(
        knob=("quant", "kernel", "rows"), cells=cells, control=None, rule={"cell": cells[1], "against": cells[0]}
    )
    check_plan(
        plan, {"matrices": ["down"], "widths": [8, 9]}
    )  # a product by itself has a matrix of each type, and no engine
    streams = [{"quant": quant, "width": 8} for quant in ("q4_0", "q8_0")]
    with pytest.raises(ParameterError, match="quant acts by restart"):
        check_plan(
            make_plan(knob="quant", cells=streams, control=None, rule={"cell": streams[1], "against": streams[0]}), {}
        )
    only = [{"kv": "f16", "width": width} for width in (1, 8)]
    check_plan(
        make_plan(knob=("kv", "width"), cells=only, control=None, rule={"cell": only[1], "against": only[0]}), {}
    )


def test_run_plan_refuses_it_and_stores_nothing(lab: Lab) -> None:
    run = lab.run("batch-decode")
    with pytest.raises(ParameterError, match="kv acts by restart"):
        run.plan(kv_plan("interleaved"))
    assert run.record.plan_hash is None
    run.plan(kv_plan())
    assert run.record.plan_hash is not None


def test_every_lever_that_acts_by_restart_says_what_must_be_made_anew() -> None:
    assert {found.name: found.needs for found in LEVERS.values() if found.acts == "restart"} == {
        "slots": "engine", "context": "engine", "kv": "engine", "arithmetic": "engine", "runtime": "engine",
        "quant": "weights", "model": "weights", "device": "device", "disable": "device", "driver": "driver",
        "version": "engine",
    }  # fmt: skip
    assert not any(found.needs for found in LEVERS.values() if found.acts != "restart")
    with pytest.raises(ParameterError, match="'dial' acts by restart and needs nothing made anew"):
        lever("dial", values="", acts="restart", witness=("counter", "x", ""))(lambda value, at: (value, ""))


def test_a_lever_of_one_s_own_says_what_it_needs_too(lab: Lab) -> None:
    path = lab.root / OWN_FILE
    path.parent.mkdir(exist_ok=True)
    own = '[flux]\nabout = "x"\nvalues = "x"\nacts = "restart"\nwitness = "counter"\nread = "x"\n'
    path.write_text(own)
    assert known_levers(lab.root)["flux"].needs == "engine"
    path.write_text(own + 'needs = "process"\n')
    assert known_levers(lab.root)["flux"].needs == "process"
    for text, says in [
        (own + 'needs = "luck"\n', "needs is 'luck', not one of engine, weights, device, process, driver"),
        (own.replace("restart", "data") + 'needs = "engine"\n', "only a lever that acts by restart needs 'engine'"),
    ]:
        path.write_text(text)
        with pytest.raises(ParameterError, match=says):
            known_levers(lab.root)


# Which start a sample came from


def test_a_sample_of_a_plan_over_restarts_must_say_its_start(lab: Lab) -> None:
    run = lab.run("batch-decode").plan(kv_plan())
    with pytest.raises(ParameterError, match=r"must say which start the sample came from: start=engine"):
        run.measure(HALF, 0, decode_tok_s=20.0)
    with pytest.raises(ParameterError, match="start=3 is nothing that was started"):
        run.measure(HALF, 0, start=3, decode_tok_s=20.0)
    assert run.samples == ()
    assert not (run.folder / FILE).exists()
    run.measure({"anchor": "stream"}, 0, read_gb_s=600.0)  # no cell of the plan
    run.measure(HALF, 0, start=engine(1), decode_tok_s=20.0)
    assert read_starts(run.folder) == {1: start_of(engine(1))}
    assert [row.order for row in read_rows(run.folder / "measurements.csv")] == [0, 1]


def test_a_start_is_a_process_a_device_the_weights_and_an_engine() -> None:
    own = start_of("process")
    assert own == start_of("process") == Start(own.process)
    assert start_of(engine(3, weights=2)) == Start(own.process, "1", "2", "3")
    assert start_of(engine(3)).words() == f"engine 3 of process {own.process}"
    assert start_of(engine(3)).upto("device") == start_of(engine(4)).upto("device")
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    assert start_of(child) == Start(f"{own.process}/{child.pid}")
    assert start_of(SimpleNamespace(origin={"process": 7})) == Start(f"{own.process}/7")


def test_another_process_is_another_start_and_so_is_a_fork() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from labkit.lab.starts import start_of; print(start_of('process').process)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    here = start_of("process").process
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, start_of("process").process.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert len({told, here, os.read(read, 99).decode()}) == 3


@pytest.mark.parametrize("text", ["order,start\n", "order,process,device,weights,engine\n1,ab,1\n"])
def test_damaged_starts_end_in_one_line_and_none_are_no_fault(tmp_path: Path, text: str) -> None:
    assert read_starts(tmp_path) == {}
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=r"starts\.csv"):
        read_starts(tmp_path)


def test_engines_devices_and_uploads_are_counted_as_they_are_made(device: Device) -> None:
    model = ShapeModel("tiny", "q8_0")
    settings: dict[str, Any] = {"slots": 1, "context": 64, "arithmetic": "exact"}
    with Engine(model, device, kv="f16", **settings) as one, Engine(model, device, kv="f32", **settings) as beside:
        first, second = start_of(one), start_of(beside)
        assert first.upto("weights") == second.upto("weights")  # resident once
        assert first != second
        assert start_of(device) == Start(first.process, first.device)
    with Engine(model, device, kv="f16", **settings) as again:
        third = start_of(again)
    assert third.upto("device") == first.upto("device")
    assert third.upto("weights") != first.upto("weights")


# One value a start


def taken(
    plan: Plan, log_ratios: Sequence[Sequence[float]], numbers: Sequence[Mapping[str, int]]
) -> tuple[list[Measurement], dict[int, Start]]:
    """Samples of a block for each item: its log-values at f32 (at f16 always 0), and the engine each cell had."""
    rows: list[Measurement] = []
    starts: dict[int, Start] = {}
    for block, (values, made) in enumerate(zip(log_ratios, numbers, strict=True)):
        for cell in (HALF, FULL):
            for value in values:
                order = len(rows)
                starts[order] = Start("1f2e3d4c", "1", "1", str(made[cell["kv"]]))
                at = 20.0 * math.exp(value if cell == FULL else 0.0)
                rows.append(Measurement(block, order, canonical_cell(cell), plan.rule.metric, at, ""))
    return rows, starts


def judged(numbers: Sequence[Mapping[str, int]], **plan: Any) -> Verdict:
    """The verdict on ten blocks of f32 twice as fast, each by the engines of `numbers`."""
    made = kv_plan(**plan)
    rows, starts = taken(made, [[math.log(2) + 0.001 * (block % 3)] for block in range(len(numbers))], numbers)
    return judge(made, rows, PASSED, starts=starts)


def test_ten_starts_of_each_are_ten_pairs_and_five_that_last_two_blocks_are_five() -> None:
    each = judged([{"f16": 2 * block, "f32": 2 * block + 1} for block in range(10)])
    assert (each.outcome, each.strength, each.pairs) == ("confirmed", "session result", 10)
    two = judged([{"f16": block // 2 * 2, "f32": block // 2 * 2 + 1} for block in range(10)])
    assert (two.outcome, two.strength, two.pairs, two.blocks) == ("confirmed", "look", 5, (0, 2, 4, 6, 8))
    assert two.effect == pytest.approx(each.effect, rel=1e-6)


def test_repetitions_of_one_start_are_one_value_their_mean() -> None:
    plan = kv_plan()
    numbers = [{"f16": 2 * block, "f32": 2 * block + 1} for block in range(3)]
    rows, starts = taken(plan, [[0.1, 0.2, 0.6], [0.3, 0.3, 0.3], [0.5, 0.1, 0.3]], numbers)
    assert np.log(judge(plan, rows, PASSED, starts=starts).values) == pytest.approx([0.3, 0.3, 0.3])


def test_all_of_one_start_is_invalid_with_that_reason_and_the_remedy() -> None:
    verdict = judged([{"f16": 1, "f32": 2}] * 10)
    assert verdict.outcome == "invalid"
    assert verdict.reason == (
        "all 10 blocks come from engine 1 of process 1f2e3d4c and engine 2 of process 1f2e3d4c: a start is one "
        "repetition, however often it is measured; name what was made anew in each block: run.measure(cell, block, "
        "start=engine, ...)"
    )
    kept = judged([{"f16": 100, "f32": block} for block in range(10)])  # one side never restarted
    assert (kept.outcome, kept.pairs) == ("invalid", 1)
    assert "11 starts that reach from block to block" in kept.reason


def test_one_start_for_two_values_is_invalid_and_so_is_none() -> None:
    shared = judged([{"f16": block, "f32": block} for block in range(10)])
    assert shared.outcome == "invalid"
    assert shared.reason.startswith(
        "kv=f16 and kv=f32 come from one start (engine 0 of process 1f2e3d4c), so nothing was restarted between them"
    )
    plan = kv_plan()
    rows, _ = taken(plan, [[0.7]] * 10, [{"f16": 0, "f32": 0}] * 10)
    nothing = judge(plan, rows, PASSED)
    assert nothing.outcome == "invalid"
    assert nothing.reason.startswith("nothing shows a restart: 20 of its 20 samples have no start in starts.csv")


def test_engines_that_share_their_weights_are_no_restart_for_the_type_of_the_weights() -> None:
    cells = [{"quant": "q4_0"}, {"quant": "q8_0"}]
    plan = make_plan(knob="quant", cells=cells, control=None, design="restarts",
                     rule={"cell": cells[1], "against": cells[0], "threshold": 1.5})  # fmt: skip

    def verdict(upload: int) -> Verdict:
        rows, starts = [], {}
        for block in range(10):
            for place, cell in enumerate(cells):
                order = len(rows)
                loaded = place + 1 + 2 * (block // upload)
                starts[order] = Start("1f2e3d4c", "1", str(loaded), str(order + 1))  # always a new engine
                rows.append(Measurement(block, order, canonical_cell(cell), plan.rule.metric, 20.0 * (1 + place), ""))
        return judge(plan, rows, PASSED, starts=starts)

    assert verdict(1).pairs == 10
    assert verdict(10).reason.startswith("all 10 blocks come from weights 1 of process 1f2e3d4c and weights 2")


def test_what_needs_no_restart_may_share_a_start_within_a_block_and_be_compared_over_restarts() -> None:
    plan = make_plan(design="restarts")  # streams of one engine, which is made anew in each block
    rows, starts = [], {}
    for block in range(10):
        for cell, rate in (({"width": 1}, 20.0), ({"width": 8}, 100.0)):
            starts[len(rows)] = Start("1f2e3d4c", "1", "1", str(block))
            rows.append(Measurement(block, len(rows), canonical_cell(cell), "decode_tok_s", rate, ""))
    assert (judge(plan, rows, PASSED, starts=starts).outcome, judge(plan, rows, PASSED, starts=starts).pairs) == (
        "confirmed",
        10,
    )


def test_the_negative_control_takes_one_value_a_start_as_well() -> None:
    cells = [{"kv": kv, "depth": depth} for depth in (1, 512) for kv in ("f16", "f32")]
    rule = {"cell": cells[3], "against": cells[2], "comparison": "different", "threshold": None, "margin": 0.02}
    same = make_plan(rule={"cell": cells[1], "against": cells[0], "comparison": "same", "threshold": None, "margin": 0.02},
                     cells=cells, knob=("kv", "depth"), control=None).rule  # fmt: skip
    plan = make_plan(
        knob=("kv", "depth"), cells=cells, control=None, design="restarts", rule=rule, negative_control=same
    )
    rows, starts = [], {}
    for block in range(20):
        for place, cell in enumerate(cells):
            luck = 0.05 * (-1) ** (block // 5) * (place == 1)  # of a start, which lasts five blocks
            starts[len(rows)] = Start("1f2e3d4c", "1", "1", f"{block // 5}{place % 2}")
            value = 20.0 * math.exp(luck + (0.1 if place == 3 else 0.0))
            rows.append(Measurement(block, len(rows), canonical_cell(cell), "decode_tok_s", value, ""))
    verdict = judge(plan, rows, PASSED, starts=starts)
    assert (verdict.outcome, verdict.pairs) == ("confirmed", 4)  # the control's four starts straddle its band


def test_false_alarms_of_ten_restarts_stay_rare_where_every_sample_a_pair_would_call_half_of_them_different() -> None:
    rng, sessions = np.random.default_rng(37), 300
    alarms = {"restarts": 0, "interleaved": 0}
    rule = {"cell": FULL, "against": HALF, "comparison": "different", "threshold": None, "margin": 0.0}
    for _ in range(sessions):
        luck = rng.normal(0, 0.01, (10, 2, 1))  # of a start, and so in all its eight samples
        values = np.exp(luck + rng.normal(0, 0.005, (10, 2, 8)))
        rows, starts = [], {}
        for block in range(80):
            for side, cell in enumerate((HALF, FULL)):
                starts[len(rows)] = Start("1f2e3d4c", "1", "1", f"{block // 8}{side}")
                value = float(values[block // 8, side, block % 8])
                rows.append(Measurement(block, len(rows), canonical_cell(cell), "decode_tok_s", value, ""))
        for design in alarms:
            plan = kv_plan(design, repetitions=80).model_copy(update={"rule": make_plan(rule=rule, cells=[HALF, FULL],
                                                              knob="kv", control=HALF).rule})  # fmt: skip
            verdict = judge(plan, rows, PASSED, starts=starts)
            assert verdict.pairs == (10 if design == "restarts" else 80)
            alarms[design] += verdict.outcome == "confirmed"
    share = {design: number / sessions for design, number in alarms.items()}
    print(f"ten restarts of each, no difference: called different {share}")
    assert share["restarts"] <= 0.07
    assert share["interleaved"] > 0.30


# From the run to the ledger


def measured(lab: Lab, new_in_each_block: bool) -> Path:
    """A run by hand over restarts, concluded; its final folder."""
    plan = kv_plan()
    run = lab.run("batch-decode").plan(plan)
    run.describe(device=DEVICE, model={"name": "m", "sha256": "ab" * 32})
    run.check("ids equal", passed=True)
    for made, (block, cell) in enumerate(plan.schedule()):
        number = made if new_in_each_block else 1 + (cell == FULL)
        for repeat in range(3):
            rate = 20.0 * (1.5 if cell == FULL else 1.0) * (1 + 0.001 * (block % 3) + 0.0005 * repeat)
            run.measure(cell, block, start=engine(number), decode_tok_s=rate)
    [cell] = run.cells()
    assert cell.blocks == ((10, 10) if new_in_each_block else (1, 1))
    run.conclude()
    return run.folder


def test_a_run_over_restarts_is_entered_and_verified_by_its_starts(lab: Lab) -> None:
    folder = measured(lab, new_in_each_block=True)
    record = read_record(folder)
    assert record.verdict is not None
    assert (record.verdict["outcome"], record.verdict["pairs"]) == ("confirmed", 10)
    assert FILE in record.artefacts
    assert verify(lab.root).faults == ()
    (folder / FILE).unlink()
    said = " ".join(fault.text for fault in verify(lab.root).faults)
    assert "its starts.csv is gone" in said
    assert "outcome is confirmed in the ledger; the data give invalid" in said


def test_a_run_whose_engines_were_made_once_is_invalid_and_its_samples_are_kept(lab: Lab) -> None:
    folder = measured(lab, new_in_each_block=False)
    verdict = read_record(folder).verdict
    assert verdict is not None
    assert verdict["outcome"] == "invalid"
    assert verdict["reason"].startswith("all 10 blocks come from engine 1 of process")
    assert len(read_rows(folder / "measurements.csv")) == 60
    assert {row.block for row in samples_of(folder)} == {0}
    assert verify(lab.root).faults == ()


def test_an_exported_run_takes_its_starts_along_and_is_judged_by_them(lab: Lab, tmp_path: Path) -> None:
    folder = measured(lab, new_in_each_block=True)
    archive = export_run(folder, tmp_path / "run.zip")
    assert FILE in archive.files
    other = make_lab(tmp_path / "other")
    import_run(other, archive.path)
    [there] = (other / "data" / "runs").glob("*-batch-decode-*")
    assert read_starts(there) == read_starts(folder)
    verdict = judge_folder(there)
    assert (verdict.outcome, verdict.pairs) == ("confirmed", 10)


def test_a_page_shows_no_number_that_its_rows_alone_do_not_give(lab: Lab) -> None:
    page = publish_run(lab.root, measured(lab, new_in_each_block=False)).read_text()
    assert "all 10 blocks come from engine 1" in page
    assert "block by block" not in page
    assert "block by block" in publish_run(lab.root, measured(lab, new_in_each_block=True)).read_text()


def test_promoting_what_was_measured_over_restarts_plans_restarts(lab: Lab) -> None:
    run, made = lab.run("batch-decode"), 0
    for block in range(2):
        for cell, rate in ((HALF, 20.0), (FULL, 10.0)):
            run.measure(cell, block, start=engine(made := made + 1), decode_tok_s=rate)

    def again(cell: dict[str, Any]) -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"decode_tok_s": 20.0 if cell == HALF else 10.0, "start": engine(made)}

    new = run.promote("An f32 cache halves the rate", repetitions=3, measure=again)
    assert new.record.plan_hash is not None
    assert len(read_starts(new.folder)) == 6
    new.check("ids equal", passed=True)
    assert new.verdict().pairs == 3
