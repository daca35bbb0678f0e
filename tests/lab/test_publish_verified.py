"""Publishing verifies: an entry that does not agree with its data is marked on every page, and --strict refuses it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from ledger_runs import DEVICE, make_lab, make_run

from labkit.cli import lab as lab_command
from labkit.errors import LedgerError
from labkit.lab.entries import read_book
from labkit.lab.events import read_events
from labkit.lab.ledger import append, note
from labkit.lab.publish import publish, publish_run
from labkit.lab.publish.standing import MISSING

MARK = "does not agree with its data"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab with an honest entry and one whose samples will be changed, on two cards."""
    root = make_lab(tmp_path / "lab")
    append(root, make_run(root, 5.0, number=1))
    append(root, make_run(root, 6.0, number=2, device=DEVICE | {"uuid": "11" * 16}))
    note(root, "the fan is loud")
    return root


def runs(lab: Path) -> list[Path]:
    return sorted((lab / "data" / "runs").iterdir())


def anchors(lab: Path) -> list[str]:
    return [entry.anchor for entry in sorted(read_book(read_events(lab)).entries, key=lambda e: e.newest.run)]


def change_a_sample(lab: Path) -> None:
    path = runs(lab)[1] / "measurements.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace(",1", ",2", 1)
    path.write_text("".join(lines))


def page(lab: Path, name: str) -> str:
    return (lab / "site" / name).read_text()


def test_a_sound_ledger_is_published_strictly_and_without_a_mark(lab: Path) -> None:
    assert publish(lab, strict=True).problems == ()
    assert not any(MARK in path.read_text() for path in (lab / "site").rglob("*.html"))


def test_a_changed_sample_marks_its_entry_on_its_page_its_run_and_in_the_index(lab: Path) -> None:
    change_a_sample(lab)
    report = publish(lab)
    assert any(runs(lab)[1].name in problem and "SHA-256 differs" in problem for problem in report.problems)
    index, findings = page(lab, "index.html"), page(lab, "findings.html")
    assert index.count(f"</span> {MARK}</span>") == 1
    line = next(line for line in index.splitlines() if MARK in line)
    assert f"findings.html#{anchors(lab)[1]}" in line
    assert findings.count(MARK) == 1
    honest, wrong = (findings.index(f'id="{anchor}"') for anchor in anchors(lab))
    assert wrong < findings.index(MARK) < honest  # newest first
    assert MARK in page(lab, f"runs/{runs(lab)[1].name}/index.html")
    assert MARK not in page(lab, f"runs/{runs(lab)[0].name}/index.html")


def test_the_page_of_one_run_keeps_the_mark_of_another(lab: Path) -> None:
    change_a_sample(lab)
    publish_run(lab, runs(lab)[0])
    assert MARK in page(lab, "index.html")


def edit_by_hand(lab: Path) -> None:
    path = lab / "FINDINGS.md"
    path.write_text(path.read_text().replace("is **6.000×", "is **9.000×"))


def tear_an_event(lab: Path) -> None:
    event = sorted((lab / "data" / "ledger").glob("*.json"))[1]
    event.write_bytes(event.read_bytes()[:-30])


def reword_the_rule(lab: Path) -> None:
    path = runs(lab)[1] / "plan.json"
    path.write_text(path.read_text().replace('"threshold": 4.0', '"threshold": 7.0'))


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (change_a_sample, lambda lab: f"the entry {anchors(lab)[1]} {MARK}: {runs(lab)[1].name}: "),
        (reword_the_rule, lambda lab: f"the entry {anchors(lab)[1]} {MARK}: {runs(lab)[1].name}: "),
        (
            edit_by_hand,
            lambda lab: f"the entry {anchors(lab)[1]} {MARK}: the entry {anchors(lab)[1]} was edited by hand",
        ),
        (tear_an_event, lambda lab: sorted((lab / "data" / "ledger").glob("*.json"))[1].name),
    ],
    ids=["sample", "rule", "edited", "torn-event"],
)
def test_strict_publishes_nothing_and_names_the_entry(
    lab: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], named: Callable[[Path], str]
) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    words = named(lab)
    harm(lab)
    done = CliRunner().invoke(lab_command, ["publish", "--strict"])
    assert isinstance(done.exception, LedgerError)
    assert done.exception.exit_code == 2
    assert words in str(done.exception)
    assert "nothing was published" in str(done.exception)
    assert not (lab / "site").exists()


def test_an_entry_whose_run_is_not_here_is_marked_so_and_strict_names_it(lab: Path) -> None:
    """It is no disagreement: nothing says that the entry is wrong, and nothing can show that it is right."""
    gone, anchor = runs(lab)[1].name, anchors(lab)[1]
    runs(lab)[1].rename(lab / "elsewhere")
    with pytest.raises(LedgerError, match=f"the entry {anchor} {MISSING} .{gone}.; nothing was published"):
        publish(lab, strict=True)
    assert not (lab / "site").exists()
    assert publish(lab).problems == (f"{gone}: its entry {MISSING}",)
    index, findings = page(lab, "index.html"), page(lab, "findings.html")
    assert index.count(f"</span> {MISSING}</span>") == 1
    assert findings.count(f"</span> {MISSING}</span>") == 1
    assert findings.index(f'id="{anchor}"') < findings.index(MISSING)
    assert f"<li>{gone}</li>" in findings
    assert MARK not in index + findings


def test_a_forged_entry_with_a_hash_of_its_own_is_found(lab: Path) -> None:
    from labkit.lab.events import digest
    from labkit.lab.ledger_files import read_ledger

    path, anchor = lab / "FINDINGS.md", anchors(lab)[1]
    block = next(block for block in read_ledger(path).blocks if block.anchor == anchor)
    forged = block.text.replace("6.000×", "9.000×")
    text = path.read_text().replace(block.text, forged).replace(block.hash, digest(f"{anchor}\n{forged}"))
    path.write_text(text)
    assert not any(block.edited for block in read_ledger(path).blocks)
    with pytest.raises(LedgerError, match=f"the entry {anchor} is not what its events give"):
        publish(lab, strict=True)
