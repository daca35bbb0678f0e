"""A run of another card repeated here: what the two verdicts say of each other, each judged by its own samples."""

from pathlib import Path
from typing import Any

import pytest
from ledger_runs import DEVICE, make_lab, make_plan, make_run
from run_harness import ThrowawayLab

from labkit.lab.here import compare_here, for_this_card
from labkit.lab.lab import StoredRun
from labkit.lab.record import read_record, update_record

OTHER = {"device": DEVICE | {"name": "B card", "uuid": "22" * 16}}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "lab")


def stored(folder: Path) -> StoredRun:
    return StoredRun(read_record(folder), folder)


def pair(lab: Path, there: float, here: float, **fields: Any) -> tuple[StoredRun, StoredRun]:
    return stored(make_run(lab, there, number=1)), stored(make_run(lab, here, number=2, **(OTHER | fields)))


def test_the_choice_of_a_card_is_left_behind_and_the_rest_is_kept() -> None:
    assert for_this_card({"device": "H200", "tokens": 64}, {}) == {"tokens": 64}
    assert for_this_card({"device": "H200", "tokens": 64}, {"device": "cpu"}) == {"device": "cpu", "tokens": 64}


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (5.0, 5.0, "agrees: confirmed on this card too; the effects' intervals overlap"),
        (5.0, 6.0, "agrees: confirmed on this card too; the sizes of the effect differ"),
        (5.0, 3.0, "differs: confirmed there, refuted on this card; both are true of their own card"),
        (4.0, 5.0, "not settled there: neither agreement nor difference can be claimed"),
        (4.0, 4.0, "not settled there and here"),
    ],
)
def test_two_cards_agree_or_differ_or_cannot_be_told(lab: Path, there: float, here: float, words: str) -> None:
    lines = compare_here(*pair(lab, there, here))
    assert lines[0] == "cards: there A card, here B card"
    assert words in lines[-1]


def test_both_numbers_are_shown(lab: Path) -> None:
    lines = compare_here(*pair(lab, 5.0, 3.0))
    assert lines[1] == (
        "verdict: there confirmed 5.000× [4.972, 5.028] (session result), here refuted 3.000× [2.983, 3.017] (session result)"
    )


def test_a_record_s_own_verdict_is_not_believed(lab: Path) -> None:
    then, now = pair(lab, 5.0, 5.0)
    update_record(then.folder, lambda _: {"verdict": {"outcome": "refuted"}})
    assert "agrees" in compare_here(stored(then.folder), now)[-1]


def test_the_same_card_is_said_to_be_the_same(lab: Path) -> None:
    lines = compare_here(*pair(lab, 5.0, 5.0, device=DEVICE))
    assert lines[0] == "cards: the same card, A card"
    assert "this card again" in lines[-1]


def test_another_rule_is_another_question(lab: Path) -> None:
    lines = compare_here(*pair(lab, 5.0, 5.0, plan=make_plan(rule={"threshold": 2.0})))
    assert "the rule was changed since" in lines[-1]


def test_runs_without_a_plan_answer_nothing(lab: Path) -> None:
    then, now = pair(lab, 5.0, 5.0)
    (now.folder / "plan.json").unlink()
    assert "no plan" in compare_here(then, now)[-1]


def test_the_verb_repeats_one_run_and_says_how_the_cards_compare(tmp_path: Path) -> None:
    throwaway = ThrowawayLab(tmp_path / "lab")
    throwaway.run("sweep")
    [first] = throwaway.runs.iterdir()
    done = throwaway.lab("rerun", first.name, "--here", "--no-ledger", "--no-page")
    assert done.returncode == 0, done.stderr
    assert "cards: " in done.stdout
    assert "no plan: without one a run answers no question" in done.stdout
    assert len(list(throwaway.runs.iterdir())) == 2
    refused = throwaway.lab("rerun", first.name, "--here", "--budget", "1h")
    assert refused.returncode == 2
    assert refused.stderr == "lab: --here repeats one RUN, without --budget, --resume or --dry-run\n"
