"""Attempts at a question are counted whatever became of them, and the entry says how many there were."""

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_runs import EIGHT, ONE, make_lab, make_plan, make_run

from labkit.lab import ledger
from labkit.lab.attempts import Attempts, attempts_before
from labkit.lab.plan import Plan, read_plan
from labkit.lab.recheck import verify
from labkit.lab.record import read_record
from labkit.lab.verdict import judge_folder

pytestmark = pytest.mark.quick


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path)


def tried(lab: Path, number: int, ratio: float = 5.0, **fields: Any) -> Path:
    """A run as it lies on the disk once it ended, with its verdict in the record."""
    folder = make_run(lab, ratio, number=number, **fields)
    record = json.loads((folder / "run.json").read_text())
    record["started"] = f"2026-12-01T00:{number:02}:00Z"
    if record["state"] == "completed":
        record["verdict"] = judge_folder(folder).model_dump(mode="json")
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def before(lab: Path, folder: Path) -> Attempts:
    return attempts_before(lab, read_record(folder), read_plan(folder / "plan.json"))


def without_plan(folder: Path) -> None:
    (folder / "plan.json").unlink()
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"plan_hash": None, "verdict": None}))


def test_every_try_counts_whatever_became_of_it(lab: Path) -> None:
    tried(lab, 1, 4.0)
    tried(lab, 2, 4.0)
    tried(lab, 3, state="stopped-early")
    tried(lab, 4, checks=[{"name": "ids", "passed": False}])
    without_plan(tried(lab, 5))
    last = tried(lab, 6)
    found = before(lab, last)
    assert found == Attempts(inconclusive=2, stopped=1, invalid=1, exploratory=1)
    assert found.words() == ("attempt 6 at this question; 2 inconclusive, 1 invalid, 1 without a plan, 1 stopped early")
    assert before(lab, lab / "data" / "runs" / sorted(p.name for p in (lab / "data" / "runs").iterdir())[0]).before == 0


def test_another_threshold_over_the_same_cells_is_the_same_question_and_other_cells_are_not(lab: Path) -> None:
    tried(lab, 1, plan=make_plan(rule={"threshold": 6.0}))
    tried(lab, 2, plan=make_plan(experiment="under-another-name", rule={"threshold": 6.0}))
    other: Plan = make_plan(cells=[ONE, EIGHT, {"width": 4}], rule={"threshold": 6.0})
    tried(lab, 3, plan=other)
    tried(lab, 4, plan=make_plan(rule={"metric": "stream_tok_s"}))
    assert before(lab, tried(lab, 5)) == Attempts(refuted=2)


def test_what_measured_nothing_or_cannot_be_read_is_no_attempt(lab: Path) -> None:
    tried(lab, 1, samples=[], state="failed")
    (tried(lab, 2) / "run.json").write_text("{")
    (tried(lab, 3) / "plan.json").write_text("{")
    without_plan(tried(lab, 4, samples=[(0, ONE, 20.0)]))  # it never came to the rule's other cell
    later = tried(lab, 9)
    assert before(lab, tried(lab, 5)) == Attempts()
    assert before(lab, later).before == 1


def test_the_entry_says_which_attempt_it_is_and_stays_true(lab: Path) -> None:
    tried(lab, 1, 4.0)
    tried(lab, 2, state="killed")
    ledger.append(lab, tried(lab, 3))
    assert (
        "- **Attempts**: attempt 3 at this question; 1 inconclusive, 1 stopped early"
        in (lab / "FINDINGS.md").read_text()
    )
    assert verify(lab).sound


def test_the_first_says_so(lab: Path) -> None:
    ledger.append(lab, tried(lab, 1))
    assert "- **Attempts**: the first at this question" in (lab / "FINDINGS.md").read_text()
