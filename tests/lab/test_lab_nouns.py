"""The lab's nouns show themselves: run, plan, verdict, claim, ledger; escaped, in any theme, readable without styles."""

from pathlib import Path

import pytest
from ledger_runs import make_plan, make_run
from page_rules import check_noun

from labkit.lab.events import Claim
from labkit.lab.lab import Lab
from labkit.lab.ledger import append
from labkit.lab.ledger_html import MOST_ENTRIES
from labkit.lab.record import read_record
from labkit.lab.run import Run
from labkit.lab.verdict import judge_folder

HOSTILE = "<script>alert(1)</script> is <b>faster</b> & 'better'"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / "FINDINGS.md").touch()
    (tmp_path / "labkit").mkdir()
    return Lab(tmp_path)


def test_a_run_shows_its_state_its_verdict_and_its_checks(lab: Lab) -> None:
    folder = make_run(lab.root, 5.0)
    bare = check_noun(Run(lab, read_record(folder), folder))
    assert "state completed" in bare
    assert "device A card" in bare
    assert "passed ids equal the reference 48 of 48" in bare
    assert folder.name in bare
    assert "completed" in check_noun_of_many(lab)


def check_noun_of_many(lab: Lab) -> str:
    assert lab.runs()[0].record.id in repr(lab.runs())
    return check_noun(lab) + check_noun(lab.runs()) + check_noun(lab.runs()[0])


def test_a_plan_and_a_verdict_say_all_their_facts(lab: Lab) -> None:
    plan, verdict = make_plan(belief=HOSTILE), judge_folder(make_run(lab.root, 5.0))
    for noun in (plan, verdict):
        bare = check_noun(noun)
        for name, text in noun.facts().items():
            assert f"{name} {' '.join(text.split())}" in bare


def test_a_claim_that_is_withheld_says_why() -> None:
    assert check_noun(Claim(text=HOSTILE)) == HOSTILE
    bare = check_noun(Claim(text="It is 9 times faster", withheld="9 × is not in the data of the run"))
    assert bare == "It is 9 times faster withheld 9 × is not in the data of the run"
    assert repr(Claim(text="so", withheld="no")) == "<Claim so (withheld: no)>"


def test_the_ledger_shows_what_holds_and_counts_what_stands_beside_it(lab: Lab) -> None:
    assert "No entry holds yet" in check_noun(lab.ledger())
    append(lab.root, make_run(lab.root, 5.0, plan=make_plan(belief=HOSTILE)))
    book = lab.ledger()
    (entry,) = book.live
    assert repr(book).startswith("<Ledger: 1 entry that holds, 0 struck through")
    assert f"confirmed session result {entry.verdict.number()} {HOSTILE} {entry.anchor}" in check_noun(book)
    assert "holds yes" in check_noun(entry)
    book.entries *= MOST_ENTRIES + 5
    assert check_noun(book).count(HOSTILE) == MOST_ENTRIES
    assert "5 older entries" in check_noun(book)
