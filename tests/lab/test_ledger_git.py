"""Two git branches that each added entries: they merge without a conflict, and the ledgers are those of both."""

import os
import subprocess
from pathlib import Path

import pytest
from ledger_runs import make_lab, make_run

from labkit.lab.entries import read_book
from labkit.lab.events import HandEdit, read_events
from labkit.lab.ledger import append, correct, import_notes, note, render
from labkit.lab.recheck import verify
from labkit.lab.render import LEDGERS

ATTRIBUTES = Path(__file__).resolve().parents[2] / ".gitattributes"
WHO = {
    **{
        f"GIT_{role}_{what}": text
        for role in ("AUTHOR", "COMMITTER")
        for what, text in (("NAME", "A"), ("EMAIL", "a@b"))
    },
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(root: Path, *arguments: str, fails: bool = False) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], env=os.environ | WHO, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab under git with an entry of two sessions, a look, a note, and notes from elsewhere."""
    root = make_lab(tmp_path / "lab")
    (root / "labkit" / "__init__.py").touch()
    (root / ".gitattributes").write_bytes(ATTRIBUTES.read_bytes())
    git(root.parent, "init", "-q", "-b", "main", str(root))
    append(root, make_run(root, 5.0, number=1))
    append(root, make_run(root, 5.0, number=2))
    note(root, "the fan is loud")
    mine = tmp_path / "MISTAKES.md"
    mine.write_text("## 2026-09-01 · Believed the fan\n\nIt was not.\n")
    import_notes(root, [mine])
    commit(root)
    return root


def both_add(lab: Path) -> None:
    """`main` and `other` each go on by runs of the same scope, a note and a correction, and commit what was rendered."""
    git(lab, "switch", "-qc", "other")
    append(lab, make_run(lab, 4.9, number=11))
    note(lab, "the other branch's note")
    note(lab, "the other branch's mistake", "MISTAKES.md")
    commit(lab)
    git(lab, "switch", "-q", "main")
    append(lab, make_run(lab, 3.0, number=21))
    note(lab, "the main branch's note")
    correct(lab, read_runs(lab)[0], "the fan was off")
    commit(lab)


def read_runs(lab: Path) -> list[str]:
    return [event.run for entry in read_book(read_events(lab, fresh=True)).entries for event in entry.events]


def fresh(lab: Path, heads: dict[str, str]) -> dict[str, bytes]:
    """The ledgers rendered from nothing but the events and what stood above the line."""
    for name in LEDGERS:
        (lab / name).write_text(heads[name])
    render(lab)
    return {name: (lab / name).read_bytes() for name in LEDGERS}


def heads(lab: Path) -> dict[str, str]:
    return {name: (lab / name).read_text().partition("<!-- Below")[0] for name in LEDGERS}


def test_two_branches_merge_without_a_conflict_and_render_to_the_ledgers_of_both(lab: Path) -> None:
    above = heads(lab)
    both_add(lab)
    git(lab, "merge", "-q", "other", "-m", "both")
    assert git(lab, "status", "--porcelain") == ""
    faults = verify(lab).faults
    assert {(fault.kind, fault.where) for fault in faults} == {("stale", name) for name in LEDGERS}
    done = render(lab)
    assert done.kept == ()
    assert all("was merged by git line by line" in line for line in done.problems)
    assert verify(lab).faults == ()
    merged = {name: (lab / name).read_bytes() for name in LEDGERS}
    assert merged == fresh(lab, above)
    text = merged["FINDINGS.md"].decode()
    for words in ("the fan is loud", "the other branch's note", "the main branch's note", "the fan was off"):
        assert text.count(words) == 1, words
    assert sorted(read_runs(lab)) == sorted({*read_runs(lab)})
    assert len(read_runs(lab)) == 4
    assert render(lab).changed == ()
    commit(lab)


def test_a_run_after_the_merge_renders_the_ledgers_of_both_by_itself(lab: Path) -> None:
    both_add(lab)
    git(lab, "merge", "-q", "other", "-m", "both")
    append(lab, make_run(lab, 5.0, number=31))
    assert verify(lab).faults == ()
    assert len(read_runs(lab)) == 5


def test_what_both_wrote_above_the_line_is_kept(lab: Path) -> None:
    for branch, words in (("other", "Theirs."), ("main", "Ours.")):
        git(lab, "switch", "-q", "-C", branch, "main")
        path = lab / "FINDINGS.md"
        path.write_text(path.read_text().replace("What we found.", f"What we found. {words}", 1))
        note(lab, f"note of {branch}")
        commit(lab)
        if branch == "other":
            git(lab, "switch", "-q", "main")
    git(lab, "reset", "-q", "--hard", "main")
    git(lab, "merge", "-q", "other", "-m", "both")
    render(lab)
    above = heads(lab)["FINDINGS.md"]
    assert "Ours." in above
    assert "Theirs." in above
    assert verify(lab).faults == ()


def test_without_attributes_the_conflict_is_settled_by_rendering(lab: Path) -> None:
    above = heads(lab)
    git(lab, "rm", "-q", ".gitattributes")
    commit(lab)
    both_add(lab)
    git(lab, "merge", "-q", "other", "-m", "both", fails=True)
    assert "UU FINDINGS.md" in git(lab, "status", "--porcelain")
    render(lab)
    merged = {name: (lab / name).read_bytes() for name in LEDGERS}
    assert not any(b"<<<<<<<" in text or b">>>>>>>" in text for text in merged.values())
    assert merged == fresh(lab, above)
    commit(lab)
    assert verify(lab).faults == ()


def test_an_edit_by_hand_that_was_rendered_before_the_merge_survives_it(lab: Path) -> None:
    path = lab / "FINDINGS.md"
    path.write_text(path.read_text().replace("\n*Written by hand", "\nIt was the bearing.\n\n*Written by hand", 1))
    render(lab)
    commit(lab)
    both_add(lab)
    git(lab, "merge", "-q", "other", "-m", "both")
    render(lab)
    assert len(read_events(lab).of(HandEdit)) == 1
    assert "+ It was the bearing." in path.read_text()


def test_the_same_notes_imported_on_both_branches_stand_once(lab: Path, tmp_path: Path) -> None:
    mine = tmp_path / "FINDINGS.md"
    mine.write_text("## 2026-09-01 · Found on a train\n\nx\n")
    for branch in ("other", "main"):
        git(lab, "switch", "-q", *(["-c"] if branch == "other" else []), branch)
        import_notes(lab, [mine])
        commit(lab)
        if branch == "other":
            git(lab, "switch", "-q", "main")
    git(lab, "merge", "-q", "other", "-m", "both")
    render(lab)
    assert (lab / "FINDINGS.md").read_text().count("Found on a train") == 1
    assert verify(lab).faults == ()
