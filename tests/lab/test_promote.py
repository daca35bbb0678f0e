"""From exploring to a plan: promoted runs, edits of a stored plan, and warm-up that the data end."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_harness import read

from labkit.errors import ParameterError, RunError
from labkit.lab.anchor import measure_anchor, stream_anchor
from labkit.lab.deviations import deviation_words
from labkit.lab.folder import RunFolder
from labkit.lab.lab import Lab, _open_runs
from labkit.lab.measurements import read_rows
from labkit.lab.plan import Plan, Rule, read_plan
from labkit.lab.recheck import verify
from labkit.lab.record import canonical_cell
from labkit.lab.run import Run
from labkit.lab.verdict import judge_folder

pytestmark = pytest.mark.quick

BELIEF = "Eight streams are faster than one"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    yield Lab()
    for run in _open_runs.values():
        run.close()
    _open_runs.clear()


def rate(cell: dict[str, int]) -> float:
    rate.calls += 1  # type: ignore[attr-defined]
    return 20.0 * cell["width"] ** 0.5 * (1 + 0.001 * (rate.calls % 7))  # type: ignore[attr-defined]


rate.calls = 0  # type: ignore[attr-defined]


def explored(lab: Lab) -> Run:
    run = lab.run("by-hand", parameters={"kv": "f16"})
    run.describe(device={"name": "Made-up 1", "uuid": "u-1"}, model={"name": "tiny"}, programs={"decode": "abc"})
    for block in range(2):
        for width in (1, 4, 8):
            run.measure({"width": width, "kv": "f16"}, block, decode_tok_s=rate({"width": width}), dispatches=40)
    return run


def test_exploring_is_one_call_and_promoting_repeats_it_by_a_plan(lab: Lab) -> None:
    run = explored(lab)
    new = run.promote(BELIEF, measure=rate)
    old = read(lab.root / "data" / "runs" / run.id / "run.json")
    assert (old["state"], old["plan_hash"], old["reason"]) == ("completed", None, f"promoted to {new.id}")
    plan = read_plan(new.folder / "plan.json")
    assert plan.cells == tuple({"width": width, "kv": "f16"} for width in (1, 4, 8))
    assert (plan.knob, plan.kind, plan.belief_held) == ("width", "confirmatory", False)
    assert plan.rule.words() == "decode_tok_s at kv=f16, width=8 over kv=f16, width=1, in each block: at least 1"
    assert plan.believed_because.startswith(f"{run.id} found 2.8")
    assert len(new.samples) == 3 * plan.repetitions == 30
    assert (new.record.retrospective, new.record.exploratory, new.record.parameters) == (False, False, {"kv": "f16"})
    assert new.record.device == {"name": "Made-up 1", "uuid": "u-1"}
    assert new.record.program_fingerprints == {"decode": "abc"}
    assert f"promoted_from: {run.id}" in new.record.notes
    new.check("ids", passed=True)
    assert [(cell.cell, cell.word) for cell in new.cells()] == [
        ("kv=f16, width=4", "faster"),
        ("kv=f16, width=8", "faster"),
    ]
    new.conclude()
    assert new.record.verdict is not None
    assert (new.record.verdict["outcome"], new.record.verdict["word"]) == ("confirmed", "faster")
    assert verify(lab.root).sound
    assert new.id in (lab.root / "FINDINGS.md").read_text()


def test_what_was_measured_before_the_plan_is_no_part_of_the_promoted_run(lab: Lab) -> None:
    new = explored(lab).promote(BELIEF, repetitions=3)
    assert new.samples == ()
    plan = read_plan(new.folder / "plan.json")
    for block, cell in plan.schedule():
        new.measure(cell, block, decode_tok_s=rate(cell))
    assert new.verdict().outcome == "invalid"  # nothing was checked in the new run


def test_a_promoted_rule_may_be_ones_own(lab: Lab) -> None:
    one, eight = {"width": 1, "kv": "f16"}, {"width": 8, "kv": "f16"}
    rule = Rule(metric="dispatches", cell=eight, against=one, comparison="same", margin=0.02)
    new = explored(lab).promote("As many dispatches at any width", rule, measure=lambda cell: {"dispatches": 40.0})
    plan = read_plan(new.folder / "plan.json")
    assert (plan.rule, plan.control, plan.believed_because) == (rule, one, "")
    assert new.verdict().outcome == "confirmed"


def test_what_makes_no_plan_is_refused_in_one_line_and_the_run_goes_on(lab: Lab) -> None:
    run = lab.run("by-hand")
    with pytest.raises(ParameterError, match="nothing was measured yet"):
        run.promote(BELIEF)
    run.measure({"width": 8}, 0, decode_tok_s=41.0)
    with pytest.raises(ParameterError, match="only width=8 was measured; give a rule with a threshold"):
        run.promote(BELIEF)
    run.measure({"width": 1}, 0, decode_tok_s=20.0)
    with pytest.raises(ParameterError, match="ttft_s was not measured; there are samples of decode_tok_s"):
        run.promote(BELIEF, metric="ttft_s")
    with pytest.raises(ParameterError, match=r'control is {"width":2}, which was not measured'):
        run.promote(BELIEF, control={"width": 2})
    with pytest.raises(ParameterError, match="says nothing that could be wrong"):
        run.promote("42")
    assert not run.closed
    new = run.promote(BELIEF)
    with pytest.raises(RunError, match="has a plan; `lab rerun"):
        new.promote(BELIEF)
    with pytest.raises(RunError, match="is closed; promote it while it is open"):
        run.promote(BELIEF)


def planned(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "experiment": "by-hand",
        "belief": BELIEF,
        "knob": "width",
        "cells": [{"width": 1}, {"width": 8}],
        "repetitions": 3,
        "rule": Rule(metric="decode_tok_s", cell={"width": 8}, against={"width": 1}, comparison=">=", threshold=4.0),
    }
    return Plan(**(fields | changes))  # type: ignore[arg-type]


def test_an_edited_plan_is_a_deviation_and_the_first_is_judged_by(lab: Lab) -> None:
    run = lab.run("by-hand").plan(planned())
    run.check("ids", passed=True)
    for block in range(10):
        for width in (1, 8):
            run.measure({"width": width}, block, decode_tok_s=width**0.5 * (1 + 0.001 * block))
        if block == 1:
            easier = planned().rule.model_copy(update={"threshold": 2.0})
            run.plan(planned(rule=easier, repetitions=10)).plan(planned(rule=easier, repetitions=10))
    run.plan(planned())  # the first again is none
    (found,) = run.record.deviations
    assert (found.samples, found.utc[:2]) == (4, "20")
    assert [(change.field, change.before, change.after) for change in found.changes] == [
        ("rule.threshold", "4.0", "2.0"),
        ("repetitions", "3", "10"),
    ]
    assert "deviations" in run._repr_html_()
    run.conclude()
    folder = lab.root / "data" / "runs" / run.id
    assert read_plan(folder / "plan.json") == planned()
    verdict = judge_folder(folder)
    assert verdict.outcome == "refuted"  # 2.83 is not 4
    assert deviation_words(found) in verdict.notices
    entry = (lab.root / "FINDINGS.md").read_text()
    assert "the plan was edited after 4 samples" in entry
    assert "rule.threshold from 4.0 to 2.0, repetitions from 3 to 10; it is judged as first stored" in entry
    assert verify(lab.root).sound


def test_a_plan_that_says_so_is_retrospective_before_any_sample(lab: Lab) -> None:
    run = lab.run("by-hand").plan(planned(kind="retrospective"))
    assert run.record.retrospective


def test_warm_up_ends_when_the_data_have_settled_and_is_kept_apart(lab: Lab) -> None:
    run = lab.run("by-hand")
    values = iter([5.0, 10.0, 15.0, 20.0, *[20.0, 20.1, 19.9] * 20])
    assert run.warm_up({"width": 8}, lambda: {"decode_tok_s": next(values), "dispatches": 40}, "decode_tok_s") == 8
    rows = read_rows(run.folder / "warmup.csv")
    assert [row.value for row in rows if row.metric == "decode_tok_s"] == [5, 10, 15, 20, 20, 20.1, 19.9, 20]
    assert (run.samples, (run.folder / "measurements.csv").exists()) == ((), False)
    run.measure({"width": 8}, 0, decode_tok_s=20.0)
    run.close()
    record = json.loads((lab.root / "data" / "runs" / run.id / "run.json").read_text())
    assert "warmup.csv" in record["artefacts"]


def test_warm_up_that_never_ends_is_noted_and_stops(lab: Lab) -> None:
    run, rates = lab.run("by-hand"), iter(range(1, 100))
    assert run.warm_up({"width": 8}, lambda: float(next(rates) ** 2), "decode_tok_s", most=12) == 12
    assert run.record.notes == ('warm_up: decode_tok_s at {"width":8} had not settled after 12 repetitions',)
    with pytest.raises(ParameterError, match="warm_up watches decode_tok_s, and what was measured has ttft_s"):
        run.warm_up({"width": 8}, lambda: {"ttft_s": 1.0}, "decode_tok_s")


def test_under_lab_run_the_promoted_run_is_one_of_its_own_beside_the_notebooks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(lab.root, lab.new_record("by-hand", {"kv": "f16"}))
    monkeypatch.setenv("LABKIT_RUN", str(folder.path))
    run = explored(lab)
    new = run.promote(BELIEF, measure=rate)
    new.check("ids", passed=True)
    new.conclude()
    run.measure({"width": 1, "kv": "f16"}, 2, decode_tok_s=20.0)  # the notebook goes on
    assert (run.attached, run.id, new.id == run.id) == (True, folder.run_id, False)
    assert new.record.state == "completed"
    assert not new.record.interactive
    folder.finalise("completed", "ran to the end")
    assert sorted(found.record.id for found in lab.runs()) == sorted([run.id, new.id])
    assert f"promoted_from: {run.id}" in new.record.notes
    assert "by-hand" in (lab.root / "FINDINGS.md").read_text()


def test_the_stream_is_an_anchor_pinned_to_its_kernel_and_measured_beside_the_cells(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = stream_anchor()
    name, digest = anchor.pinned.split()
    assert (anchor.metric, name, len(digest)) == ("read_gb_s", "spv/read_stream.spv", 64)
    assert anchor == stream_anchor()
    monkeypatch.setattr("labkit.measure.roofline.read_bandwidth", lambda device, fresh: SimpleNamespace(gb_s=601.5))
    run = lab.run("by-hand").plan(planned(anchor=anchor))
    assert measure_anchor(run, None, 0) == 601.5  # type: ignore[arg-type]
    assert [(row.cell, row.metric, row.value) for row in run.samples] == [
        (canonical_cell(anchor.cell), "read_gb_s", 601.5)
    ]
