"""What people write into the ledgers: kept above the line, reported and kept as an event below it."""

import re
from pathlib import Path

import pytest
from ledger_runs import make_lab, make_run

from labkit.lab.events import HandEdit, read_events
from labkit.lab.ledger import append, note, render
from labkit.lab.ledger_files import edit_lines, read_ledger
from labkit.lab.recheck import verify


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    root = make_lab(tmp_path / "lab")
    append(root, make_run(root, 5.0, number=1))
    note(root, "a note")
    return root


def edit(lab: Path, old: str, new: str, name: str = "FINDINGS.md") -> None:
    path = lab / name
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def test_what_a_person_wrote_above_the_first_entry_stays(lab: Path) -> None:
    mine = "What we found.\n\n## Reading guide\n\nStart at the top. <!-- a comment -->"
    edit(lab, "What we found.", mine)
    append(lab, make_run(lab, 5.0, number=2))
    text = (lab / "FINDINGS.md").read_text()
    assert text.startswith(
        "# Findings\n\nWhat we found.\n\n## Reading guide\n\nStart at the top. <!-- a comment -->\n\n<!-- Below"
    )
    assert read_events(lab).of(HandEdit) == []


def test_a_hand_edited_entry_is_reported_rendered_again_and_kept(lab: Path) -> None:
    edit(lab, "is **5.000×", "is **9.000×")
    [fault] = verify(lab).faults
    assert (fault.kind, fault.where) == ("edited", "FINDINGS.md")
    assert "was edited by hand" in fault.text
    rendered = render(lab)
    [kept] = rendered.kept
    assert [line[:2] for line in kept.diff] == ["- ", "+ "]
    assert "9.000×" in kept.diff[1]
    text = (lab / "FINDINGS.md").read_text()
    assert "is **5.000× [4.972, 5.028]**" in text
    assert "**Edited by hand**, found" in text
    assert "+ `decode_tok_s` at width=8 over width=1 is **9.000×" in text
    assert verify(lab).sound
    assert render(lab).changed == ()


def test_an_edit_is_kept_when_a_run_renders_and_is_told_from_what_the_run_changed(lab: Path) -> None:
    edit(lab, "\n- **Question**: How much", "\n- **Mine**: the fan was off\n- **Question**: How much")
    append(lab, make_run(lab, 5.0, number=2))
    [kept] = read_events(lab).of(HandEdit)
    assert kept.diff == ("+ - **Mine**: the fan was off",)
    text = (lab / "FINDINGS.md").read_text()
    assert "20 pairs in 2 sessions" in text
    assert "the fan was off" in text


def test_text_put_between_entries_and_above_them_is_kept(lab: Path) -> None:
    edit(lab, "\n*Written by hand", "\nA line between.\n\n*Written by hand")
    edit(lab, '<a id="note-', 'A line below the line.\n\n<a id="note-')
    assert {fault.kind for fault in verify(lab).faults} == {"edited"}
    assert {kept.anchor[:4] for kept in render(lab).kept} == {"note", ""}
    text = (lab / "FINDINGS.md").read_text()
    assert "+ A line between." in text
    assert "## Kept from edits by hand" in text
    assert "+ A line below the line." in text
    assert render(lab).kept == ()


def test_an_entry_removed_by_hand_is_reported_and_comes_back(lab: Path) -> None:
    before = (lab / "FINDINGS.md").read_text()
    file = read_ledger(lab / "FINDINGS.md")
    start = before.index(f'<a id="{file.blocks[-1].anchor}"')
    (lab / "FINDINGS.md").write_text(before[:start].rstrip() + "\n")
    [fault] = verify(lab).faults
    assert fault.text.endswith("was removed by hand; `lab ledger render` brings it back")
    render(lab)
    assert (lab / "FINDINGS.md").read_text() == before


def test_a_deleted_line_loses_neither_the_text_above_it_nor_the_entries(lab: Path) -> None:
    before = (lab / "FINDINGS.md").read_text()
    above, line, below = re.split(r"(<!-- Below this line .*?-->)", before, maxsplit=1, flags=re.DOTALL)
    assert " state " in line
    (lab / "FINDINGS.md").write_text(above + below)
    assert render(lab).kept == ()
    assert (lab / "FINDINGS.md").read_text() == before


def test_the_marks_of_a_merge_conflict_are_rendered_away_and_not_kept(lab: Path) -> None:
    conflict = "<<<<<<< ours\n- **Question**: A\n=======\n- **Question**: B\n>>>>>>> theirs\n- **X**: How much"
    edit(lab, "- **Question**: How much", conflict)
    rendered = render(lab)
    assert rendered.kept == ()
    assert any("FINDINGS.md was merged by git line by line" in line for line in rendered.problems)
    assert "<<<<<<<" not in (lab / "FINDINGS.md").read_text()


def test_an_edit_with_a_fence_of_its_own_stays_inside_its_fence(lab: Path) -> None:
    edit(lab, "\n*Written by hand", "\n`````\n## not a heading\n`````\n\n*Written by hand")
    render(lab)
    text = (lab / "FINDINGS.md").read_text()
    assert "``````diff\n+ `````\n+ ## not a heading\n+ `````\n``````" in text
    assert render(lab).changed == ()


def test_blank_lines_are_no_edit() -> None:
    assert edit_lines("a\n\nb", "a\n\n\n\nb\n") == ()
    assert edit_lines("a\nb", "a\nc") == ("- b", "+ c")
