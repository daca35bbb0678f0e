"""The ledger from runs to markdown: what goes where, what strikes what, and that events alone decide every byte."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ledger_runs import BELIEF, CHECK, DEVICE, make_lab, make_plan, make_run

from labkit.errors import LedgerError
from labkit.lab.entries import read_book
from labkit.lab.events import EntryEvent, events_folder, read_events
from labkit.lab.ledger import append, correct, import_notes, note, render, waive
from labkit.lab.recheck import verify
from labkit.lab.render import LEDGERS


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "lab")


def text(lab: Path, name: str) -> str:
    return (lab / name).read_text()


def headings(lab: Path, name: str) -> list[str]:
    return [line.removeprefix("## ") for line in text(lab, name).splitlines() if line.startswith("## ")]


def everything(lab: Path) -> dict[str, bytes]:
    return {name: (lab / name).read_bytes() for name in LEDGERS}


def test_a_confirmed_run_becomes_an_entry_with_its_evidence_and_limits(lab: Path) -> None:
    folder = make_run(lab, 5.0, should_not_claim=["Anything about depths over 40 tokens."])
    [path] = append(lab, folder)
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}\.json", path.name)
    assert headings(lab, "FINDINGS.md") == [f"{path.name[:4]}-{path.name[4:6]}-{path.name[6:8]} · Confirmed: {BELIEF}"]
    found = text(lab, "FINDINGS.md")
    for words in (
        "`decode_tok_s` at width=8 over width=1 is **5.000× [4.972, 5.028]**",
        "10 pairs in 1 session: a session result",
        f"[{folder.name}](data/runs/{folder.name}/)",
        "radv Mesa 25.0.7 Vulkan 1.4.305",
        "| width=1 | 24.33 | 10 |",
        "stored before the data, confirmatory",
        "ids equal the reference passed (48 of 48)",
        "**Can be claimed**\n\n- On A card with radv Mesa 25.0.7",
        "That it holds in other sessions: 1 session so far, three make a finding.",
        "Anything about depths over 40 tokens.",
    ):
        assert words in found, words
    assert found.startswith("# Findings\n\nWhat we found.\n\n<!-- Below this line")
    assert text(lab, "MISTAKES.md").endswith("*Nothing yet.*\n")
    assert "| width | width=1 | width=8 | decode_tok_s | 5.000× [4.972, 5.028] | confirmed |" in text(lab, "LEVERS.md")


def test_a_run_is_entered_once_however_often_it_is_appended(lab: Path) -> None:
    folder = make_run(lab)
    assert len(append(lab, folder)) == 1
    before = everything(lab)
    assert append(lab, folder) == []
    assert everything(lab) == before
    assert len(list(events_folder(lab).glob("*.json"))) == 1


@pytest.mark.parametrize("state", ["killed", "crashed", "failed", "timed-out", "stopped-early"])
def test_only_a_completed_run_is_entered(lab: Path, state: str) -> None:
    with pytest.raises(LedgerError, match=f"ended as {state}; only completed runs are entered"):
        append(lab, make_run(lab, state=state))
    assert not events_folder(lab).exists()


def test_a_run_without_a_plan_asks_nothing_and_leaves_no_entry(lab: Path) -> None:
    folder = make_run(lab, plan_hash=None, exploratory=True)
    (folder / "plan.json").unlink()
    assert append(lab, folder) == []


def test_a_look_is_one_line_that_the_next_replaces_and_a_result_removes(lab: Path) -> None:
    first = make_run(lab, 5.0, pairs=5, number=1)
    append(lab, first)
    second = make_run(lab, 5.2, pairs=5, number=2)
    append(lab, second)
    looks = text(lab, "FINDINGS.md")
    assert headings(lab, "FINDINGS.md") == ["Looks"]
    assert first.name not in looks
    assert looks.count("\n- ") == 1
    assert "10 pairs in 2 runs" in looks  # pooled, and it says how many there were
    result = make_run(lab, 5.0, pairs=10, number=3)
    append(lab, result)
    assert len(headings(lab, "FINDINGS.md")) == 1
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]
    assert "(look, 5.20×" in text(lab, "FINDINGS.md")


def test_a_quick_look_in_another_shape_gives_way_to_a_later_result_of_its_rule(lab: Path) -> None:
    quick = {"parameters": {"kv": "f16", "tokens": 4, "quick": True}}
    append(lab, make_run(lab, 5.0, pairs=3, number=1, **quick))
    assert headings(lab, "FINDINGS.md") == ["Looks"]
    append(lab, make_run(lab, 5.0, number=2))
    assert len(headings(lab, "FINDINGS.md")) == 1
    append(lab, make_run(lab, 5.0, pairs=3, number=3, **quick))
    assert headings(lab, "FINDINGS.md")[-1] == "Looks"


def test_looks_of_two_experiments_have_a_line_each(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, pairs=3, number=1))
    append(lab, make_run(lab, 5.0, number=2, plan=make_plan(3, experiment="kv-type"), pairs=3))
    assert text(lab, "FINDINGS.md").count("\n- ") == 2


def test_a_repeat_that_agrees_updates_its_entry_and_three_sessions_make_a_finding(lab: Path) -> None:
    anchors = set()
    for number, words in ((1, "in 1 session: a session result"), (2, "in 2 sessions: a session result"),
                          (3, "in 3 sessions: a finding")):  # fmt: skip
        append(lab, make_run(lab, 5.0 + number / 100, number=number))
        assert words in text(lab, "FINDINGS.md")
        assert len(headings(lab, "FINDINGS.md")) == 1
        anchors.add(read_book(read_events(lab)).live[0].anchor)
    assert len(anchors) == 1
    assert "That it holds in other sessions" not in text(lab, "FINDINGS.md")


def test_a_pooled_verdict_that_differs_strikes_the_entry_and_links_both_ways(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    old = read_book(read_events(lab)).live[0]
    append(lab, make_run(lab, 3.0, number=2))
    [new] = read_book(read_events(lab)).live
    assert new.verdict.outcome == "inconclusive"
    found, open_problems, mistakes = (text(lab, name) for name in ("FINDINGS.md", "OPEN-PROBLEMS.md", "MISTAKES.md"))
    assert re.search(r"^## ~~.*Confirmed: .*~~$", found, re.M)
    assert f"(OPEN-PROBLEMS.md#{new.anchor})" in found
    assert "Nothing: this entry no longer holds." in found
    assert f"**Overturns** [{old.day}, confirmed, 5.000× [4.972, 5.028]](FINDINGS.md#{old.anchor})" in open_problems
    assert f'<a id="{old.anchor}"></a>' in found
    assert "**Believed**: confirmed" in mistakes
    assert "pooled with the sessions before it" in mistakes


def test_an_open_problem_that_later_sessions_settle_is_struck_and_is_no_mistake(lab: Path) -> None:
    plan = make_plan(kind="exploratory")
    append(lab, make_run(lab, [3.9, 4.1] * 5, number=1, plan=plan))
    assert "Unsettled" in headings(lab, "OPEN-PROBLEMS.md")[0]
    for number in (2, 3, 4, 5):
        append(lab, make_run(lab, 4.2, number=number, plan=plan))
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]
    assert headings(lab, "OPEN-PROBLEMS.md")[0].startswith("~~")
    assert "**Settled**" in text(lab, "OPEN-PROBLEMS.md")
    assert headings(lab, "MISTAKES.md") == []


@pytest.mark.parametrize(
    ("fields", "mistakes"),
    [({}, 1), ({"kind": "exploratory"}, 0), ({"held": False}, 0), ({"kind": "exploratory", "held": True}, 1)],
    ids=["confirmatory-with-a-reason", "exploratory", "declared-not-held", "declared-held"],
)
def test_a_refuted_belief_is_a_mistake_only_when_it_was_held(lab: Path, fields: dict[str, Any], mistakes: int) -> None:
    append(lab, make_run(lab, 3.0, plan=make_plan(**fields)))
    assert "Refuted" in headings(lab, "FINDINGS.md")[0]
    assert len(headings(lab, "MISTAKES.md")) == mistakes
    if mistakes:
        told = text(lab, "MISTAKES.md")
        assert f"**Believed**: {BELIEF}" in told
        assert "**Why**: a step reads the weights once" in told
        assert "3.000× [2.983, 3.017]" in told


def test_a_published_claim_that_is_refuted_is_a_mistake_and_is_named(lab: Path) -> None:
    append(lab, make_run(lab, 3.0, plan=make_plan(kind="exploratory", believed_because="", claim="NIK-D13")))
    assert "**Published claim**: NIK-D13" in text(lab, "FINDINGS.md")
    assert "**Why**: it was published: NIK-D13" in text(lab, "MISTAKES.md")


def test_a_look_refutes_no_belief_for_good(lab: Path) -> None:
    append(lab, make_run(lab, 3.0, pairs=5))
    assert headings(lab, "MISTAKES.md") == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device": DEVICE | {"driver_info": "Mesa 26.0.0"}}, "driver radv Mesa 26.0.0"),
        ({"device": DEVICE | {"uuid": "11" * 16}}, "uuid 1111"),
        ({"shaders": {"linear.comp": "ee" * 32}}, "build labkit 0.1.0, kernels"),
        ({"model": {"name": "Another", "sha256": "cd" * 32}}, "model Another"),
        ({"parameters": {"kv": "f32", "tokens": 24}}, "shape kv=f32, tokens=24"),
    ],
    ids=["driver", "card", "build", "model", "shape"],
)
def test_other_conditions_have_an_entry_of_their_own_linked_as_differing(
    lab: Path, change: dict[str, Any], named: str
) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    append(lab, make_run(lab, 3.0, number=2, **change))
    found = text(lab, "FINDINGS.md")
    assert sum("Confirmed" in line for line in headings(lab, "FINDINGS.md")) == 1
    assert "~~" not in found
    assert found.count("**Differs under**") == 2
    assert named in found
    append(lab, make_run(lab, 3.0, number=3, **change, retrospective=True))
    assert "**Agrees under**: a rule younger than its data: refuted" in text(lab, "FINDINGS.md")


def test_the_number_of_repetitions_and_what_is_believed_do_not_make_another_scope(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    other = make_plan(12, belief="It is plain that eight streams give four times the tokens", question="How much?")
    append(lab, make_run(lab, 5.0, pairs=12, number=2, plan=other))
    assert "22 pairs in 2 sessions" in text(lab, "FINDINGS.md")


def test_data_older_than_their_rule_are_entered_as_retrospective_and_not_pooled(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    append(lab, make_run(lab, 3.0, number=2, retrospective=True))
    found = text(lab, "FINDINGS.md")
    assert "*retrospective*: the rule is younger than the data" in found
    assert "That it was predicted: the rule was written after the data." in found
    assert not any(line.startswith("~~") for line in headings(lab, "FINDINGS.md"))


def test_no_data_is_neither_a_pass_nor_a_failure(lab: Path) -> None:
    append(lab, make_run(lab, samples=[]))
    assert headings(lab, "FINDINGS.md") == []
    assert headings(lab, "MISTAKES.md") == []
    open_problems = text(lab, "OPEN-PROBLEMS.md")
    assert "No verdict" in headings(lab, "OPEN-PROBLEMS.md")[0]
    assert "Neither confirmed nor refuted" in open_problems
    assert "no data: decode_tok_s was not measured at width=8" in open_problems
    append(lab, make_run(lab, 5.0, number=1))
    assert headings(lab, "OPEN-PROBLEMS.md") == []
    assert "**Does not count**" in text(lab, "FINDINGS.md")


def test_a_failed_check_withholds_the_finding_until_a_person_waives_it_with_a_reason(lab: Path) -> None:
    failed = CHECK | {"passed": False, "detail": "47 of 48"}
    folder = make_run(lab, 5.0, checks=[failed])
    append(lab, folder)
    assert headings(lab, "FINDINGS.md") == []
    with pytest.raises(LedgerError, match="has no fault 'speed'; it has: ids equal the reference"):
        waive(lab, folder.name, "speed", "because")
    with pytest.raises(LedgerError, match="needs a reason"):
        waive(lab, folder.name, "ids equal the reference", " ")
    waive(lab, folder.name[-8:], "ids equal the reference", "two logits tie within 1e-7")
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]
    assert "**Waived**: ids equal the reference of" in text(lab, "FINDINGS.md")
    assert "two logits tie within 1e-7" in text(lab, "FINDINGS.md")
    assert headings(lab, "OPEN-PROBLEMS.md") == []


def test_an_unchecked_speed_can_be_waived_but_missing_data_cannot(lab: Path) -> None:
    unchecked, empty = make_run(lab, 5.0, number=1, checks=[]), make_run(lab, samples=[], number=2)
    append(lab, unchecked)
    append(lab, empty)
    waive(lab, unchecked.name, "unchecked", "checked by hand against another engine")
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]
    with pytest.raises(LedgerError, match="nothing about it can be waived"):
        waive(lab, empty.name, "unchecked", "no reason is enough")


def test_a_retraction_strikes_the_entry_and_its_runs_no_longer_count(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    anchor = read_book(read_events(lab)).live[0].anchor
    correct(lab, anchor, "the card was in its low-power state", retracts=True)
    assert headings(lab, "FINDINGS.md")[0].startswith("~~")
    assert "**Corrected by**: the card was in its low-power state" in text(lab, "MISTAKES.md")
    append(lab, make_run(lab, 3.0, number=2))
    [live] = read_book(read_events(lab)).live
    assert (live.verdict.outcome, live.verdict.runs) == ("refuted", 1)
    with pytest.raises(LedgerError, match="struck through already"):
        correct(lab, anchor, "again", retracts=True)


def test_a_correction_stands_on_the_entry_without_changing_it(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    correct(lab, folder.name, "the model's name was misspelt")
    assert "the model's name was misspelt" in text(lab, "FINDINGS.md")
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]
    with pytest.raises(LedgerError, match="there is no entry 'nothing'"):
        correct(lab, "nothing", "text")


def test_a_note_or_an_imported_piece_can_be_corrected_and_retracted(lab: Path, tmp_path: Path) -> None:
    note(lab, "The fan is loud\nSince May.")
    mine = tmp_path / "FINDINGS.md"
    mine.write_text("## 2026-09-01 · MTP pays at batch\n\nIt does.\n")
    import_notes(lab, [mine])
    names = re.findall(r'<a id="((?:note|imported)-[^"]+)"', text(lab, "FINDINGS.md"))
    assert len(names) == 2
    for name in names:
        correct(lab, name, "since April")
        correct(lab, name, "it was the pump", retracts=True)
        with pytest.raises(LedgerError, match="is struck through already"):
            correct(lab, name, "again", retracts=True)
    found = text(lab, "FINDINGS.md")
    assert re.search(r"^## ~~.* · The fan is loud~~$", found, re.M)
    assert found.count("**Correction** ") == found.count("**Retracted** ") == 2
    assert (
        "## 2026-09-01 · MTP pays at batch\n\nIt does.\n" in found
    )  # byte for byte, under the word that it is no more
    mistakes = text(lab, "MISTAKES.md")
    assert mistakes.count("**Corrected by**: it was the pump") == 2
    assert "**Believed**: 2026-09-01 · MTP pays at batch" in mistakes
    assert verify(lab).faults == ()


def test_an_entry_is_corrected_by_any_of_its_names(lab: Path) -> None:
    runs = [make_run(lab, 5.0, number=number) for number in (1, 2)]
    paths = [append(lab, run)[0] for run in runs]
    for name in (f"batch-decode-{paths[1].name[:8]}-{paths[1].name[-21:-13]}", runs[0].name):
        correct(lab, name, f"about {name}")
    assert read_book(read_events(lab)).problems == []
    assert text(lab, "FINDINGS.md").count("**Correction**: ") == 2


def test_notes_stand_in_the_ledger_they_were_written_for(lab: Path) -> None:
    note(lab, "The fan is loud\nIt was | replaced <b>today</b>.\n# not a heading")
    note(lab, "We believed the fan was fine", "MISTAKES.md")
    note(lab, "Why is it loud?", "OPEN-PROBLEMS.md")
    assert headings(lab, "FINDINGS.md")[0].endswith("· The fan is loud")
    assert "It was \\| replaced &lt;b>today&lt;/b>." in text(lab, "FINDINGS.md")
    assert "\\# not a heading" in text(lab, "FINDINGS.md")
    assert headings(lab, "MISTAKES.md")[0].endswith("· We believed the fan was fine")
    assert headings(lab, "OPEN-PROBLEMS.md")[0].endswith("· Why is it loud?")
    with pytest.raises(LedgerError, match="the note is empty"):
        note(lab, "  \n ")


def test_entries_stand_newest_first(lab: Path) -> None:
    note(lab, "first")
    append(lab, make_run(lab, 5.0, number=1))
    note(lab, "second")
    assert [re.sub(r"^.{10} · ", "", line) for line in headings(lab, "FINDINGS.md")] == [
        "second",
        f"Confirmed: {BELIEF}",
        "first",
    ]
    append(lab, make_run(lab, 5.0, number=2))  # a repeat moves its entry up
    assert "Confirmed" in headings(lab, "FINDINGS.md")[0]


def test_rendering_again_changes_no_byte(lab: Path) -> None:
    for number, ratio in enumerate((5.0, 3.0, 3.0, 5.0)):
        append(lab, make_run(lab, ratio, number=number))
    note(lab, "a note")
    before = everything(lab)
    assert render(lab).changed == ()
    for name in LEDGERS:
        if name != "FINDINGS.md":
            (lab / name).unlink()
    render(lab)
    assert everything(lab) == before


def test_two_branches_merge_to_the_same_ledgers_in_either_order(lab: Path, tmp_path: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    branches = [tmp_path / "one", tmp_path / "two"]
    for number, branch in enumerate(branches, start=2):
        shutil.copytree(lab, branch)
        append(branch, make_run(branch, 4.9, number=number))
        append(branch, make_run(branch, 3.0, number=10 * number))
        note(branch, f"from branch {number}")
        shared = make_run(branch, 5.0, number=99)
        append(branch, shared)  # the same run, entered on both
    results = []
    for first, second in itertools.permutations(branches):
        merged = tmp_path / f"merged-{first.name}"
        shutil.copytree(first, merged)
        shutil.copytree(second / "data", merged / "data", dirs_exist_ok=True)
        rendered = render(merged)
        assert rendered.kept == ()
        results.append(everything(merged))
        runs = [event.run for event in read_events(merged).of(EntryEvent)]
        assert len(runs) == len(set(runs)) + 1
        assert sum(len(entry.events) for entry in read_book(read_events(merged)).entries) == len(set(runs))
    assert results[0] == results[1]
    anchors = {anchor for result in results for anchor in re.findall(rb'<a id="([^"]+)"', result["FINDINGS.md"])}
    for branch in branches:  # a link made on a branch leads somewhere after the merge
        for anchor in re.findall(rb'<a id="(batch-decode[^"]+)"', (branch / "FINDINGS.md").read_bytes()):
            assert any(b'<a id="' + anchor + b'"' in text for text in results[0].values()), anchor
    assert anchors


def test_a_torn_event_is_reported_and_does_not_stop_the_ledger(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    folder = events_folder(lab)
    [event] = folder.glob("*.json")
    (folder / "20261201T000000.000000Z-0123456789abcdef.json").write_bytes(event.read_bytes()[:200])
    (folder / "notes.json").write_text("{}")
    (folder / f".{event.name}.ab12cd34").write_text("{")  # what a killed writer leaves
    append(lab, make_run(lab, 5.0, number=2))
    rendered = render(lab)
    assert len(rendered.problems) == 2
    assert any("20261201T000000.000000Z-0123456789abcdef.json is damaged" in line for line in rendered.problems)
    assert any("notes.json is not named as an event" in line for line in rendered.problems)
    assert "in 2 sessions" in text(lab, "FINDINGS.md")


def test_an_event_is_never_changed_and_a_changed_one_is_not_believed(lab: Path) -> None:
    [path] = append(lab, make_run(lab, 5.0))
    document = json.loads(path.read_text())
    assert document["kind"] == "entry"
    document["verdict"]["effect"] = 9.0
    path.write_text(json.dumps(document))
    events = read_events(lab, fresh=True)
    assert events.stored == ()
    assert "is damaged or was changed" in events.damaged[0]
