"""A run.json that is newer, torn, endless or no text: one clear line from every verb that meets it, nothing changed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from ledger_runs import make_lab, make_run

from labkit.cli import lab as lab_command
from labkit.errors import LabError, RunError
from labkit.lab.lab import Lab
from labkit.lab.ledger import append
from labkit.lab.publish import publish
from labkit.lab.recheck import verify
from labkit.lab.record import read_record


def newer(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2, "new_field": {}}))


def endless(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 30)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "newer": (newer, "is of schema 2, and this labkit reads schema 1: update labkit"),
    "torn": (lambda path: path.write_bytes(path.read_bytes()[:200]), "is not a run record"),
    "empty": (lambda path: path.write_bytes(b""), "is not a run record"),
    "no-text": (lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()), "is not a run record"),
    "deep": (lambda path: path.write_bytes(b"[" * 200_000), "is not a run record"),
    "list": (lambda path: path.write_bytes(b"[]"), "is not a run record"),
    "endless": (endless, "is not a run record: it has 1,073,741,824 bytes"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "lab")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    append(root, make_run(root, 5.0, number=1))
    append(root, make_run(root, 5.0, number=2))
    return root


@pytest.mark.parametrize("kind", HARMS)
def test_every_verb_that_meets_a_harmed_record_says_so_in_a_line(lab: Path, kind: str) -> None:
    harm, words = HARMS[kind]
    folder = sorted((lab / "data" / "runs").iterdir())[1]
    harm(folder / "run.json")
    ledgers = {path.name: path.read_bytes() for path in lab.glob("*.md")}
    with pytest.raises(RunError) as met:
        read_record(folder)
    assert words in str(met.value)
    assert "\n" not in str(met.value)
    if kind != "folder":
        assert any(words in line for line in Lab().runs().damaged)
    for arguments in (["export", folder.name], ["rerun", folder.name], ["runs", "show", folder.name]):
        done = CliRunner().invoke(lab_command, arguments)
        assert isinstance(done.exception, LabError), (arguments, done.exception)
        assert "\n" not in str(done.exception)
    [fault] = [fault for fault in verify(lab).faults if fault.where == folder.name]
    assert "cannot be recomputed" in fault.text or fault.kind == "missing"
    report = publish(lab)
    assert any(folder.name in problem for problem in report.problems) or kind == "folder"
    assert {path.name: path.read_bytes() for path in lab.glob("*.md")} == ledgers
