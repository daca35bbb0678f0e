"""`lab ledger` and `lab note` from the command line, and verify: every disagreement between ledger and data named."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ledger_runs import DEVICE, make_lab, make_plan, make_run

from labkit.audit.stored import run_audit
from labkit.cli import lab as lab_command
from labkit.errors import LedgerError
from labkit.lab.events import EntryEvent, Scope, events_folder, read_events
from labkit.lab.ledger import append
from labkit.lab.recheck import verify

SOURCE = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "lab")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    return root


def call(*arguments: str, **settings: str | bytes) -> Result:
    return CliRunner().invoke(lab_command, arguments, **settings)


def faults(lab: Path) -> list[str]:
    return [str(fault) for fault in verify(lab).faults]


def test_a_ledger_that_was_left_alone_verifies(lab: Path) -> None:
    for number, ratio in enumerate((5.0, 5.1, 3.0)):
        append(lab, make_run(lab, ratio, number=number, claims=["Eight streams decode at least 2 times the tokens."]))
    found = verify(lab)
    assert (found.entries, found.faults, found.sound) == (3, (), True)
    done = call("ledger", "verify")
    assert (done.exit_code, done.output) == (0, "3 of 3 entries recomputed from their data; all agree\n")


def test_a_changed_number_in_measurements_is_caught_and_named(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    path = folder / "measurements.csv"
    lines = path.read_text().splitlines(keepends=True)
    row = lines[2].split(",")
    assert row[-2] == repr(20.0 * float(row[-2]) / 20.0)
    lines[2] = lines[2].replace(row[-2], repr(float(row[-2]) * 1.001))
    path.write_text("".join(lines))
    found = faults(lab)
    assert any("measurements.csv is not the file that was entered" in line for line in found)
    assert any("effect is 5 in the ledger; the data give 5.0005" in line for line in found)
    assert any("decode_tok_s at width=8 is 121.7" in line or "decode_tok_s at width=8 is" in line for line in found)
    assert all(folder.name in line for line in found)
    done = call("ledger", "verify")
    assert isinstance(done.exception, LedgerError)
    assert done.exception.exit_code == 2
    assert "do not agree with its data" in str(done.exception)


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("plan.json", '"threshold": 4.0', '"threshold": 3.0', "plan"),
        ("run.json", "Mesa 25.0.7", "Mesa 24.0.0", "its driver was radv Mesa 25.0.7"),
        ("run.json", '"passed": true', '"passed": false', "its checks was changed since"),
        ("measurements.csv", "decode_tok_s", "ttft_s", "measurements.csv has none"),
    ],
)
def test_any_change_of_the_record_behind_an_entry_is_caught(
    lab: Path, file: str, old: str, new: str, named: str
) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    assert any(named in line for line in faults(lab)), faults(lab)
    assert not verify(lab).sound


def test_a_rule_written_in_full_by_another_version_is_the_same_scope(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, plan=make_plan(rule={"margin": 0.0})))
    [entry] = read_events(lab).of(EntryEvent)
    full = Scope(**entry.scope.model_dump() | {"rule": entry.plan.rule.canonical()})
    assert full.rule != entry.plan.rule.canonical()
    assert (full.id, full.question) == (entry.scope.id, entry.scope.question)


def test_a_damaged_record_is_a_fault_and_not_a_crash(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    (folder / "run.json").write_text("{")
    assert any("cannot be recomputed" in line for line in faults(lab))


def test_a_run_that_is_not_here_cannot_be_judged_which_is_no_disagreement(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    folder.rename(lab / "elsewhere")
    found = verify(lab)
    assert [fault.kind for fault in found.faults] == ["missing"]
    assert found.sound
    done = call("ledger", "verify")
    assert done.exit_code == 0
    assert "0 of 1 entries recomputed" in done.output


def test_damaged_events_and_stale_files_are_faults(lab: Path) -> None:
    [event] = append(lab, make_run(lab, 5.0, number=1))
    (events_folder(lab) / "20261201T000000.000000Z-0123456789abcdef.json").write_bytes(event.read_bytes()[:-20])
    assert [fault.kind for fault in verify(lab).faults] == ["damaged"]
    event.unlink()
    assert {fault.kind for fault in verify(lab).faults} == {"damaged", "stale"}
    done = call("ledger", "verify", "--json")
    document = json.loads(done.stdout)
    assert document["sound"] is False
    assert {fault["kind"] for fault in document["faults"]} == {"damaged", "stale"}


def test_a_torn_event_is_the_one_fault_and_its_run_can_be_entered_again_without_git(lab: Path) -> None:
    folder = make_run(lab, 5.0, number=1)
    append(lab, make_run(lab, 5.0, number=2))
    [event] = append(lab, folder)
    event.write_bytes(event.read_bytes()[:-30])
    [fault] = verify(lab).faults
    assert (fault.kind, fault.where) == ("damaged", f"data/ledger/{event.name}")
    assert "restore it from git or a backup; without either remove it and enter its run again" in fault.text
    event.unlink()
    packed = lab.parent / "again.zip"
    assert call("export", folder.name, "--out", str(packed)).exit_code == 0
    assert call("import", str(packed), "--no-page").exit_code == 0
    assert verify(lab).faults == ()
    assert verify(lab).entries == 2


def test_an_audit_that_was_written_by_hand_is_caught(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    append(lab, folder)
    run_audit(folder)
    assert verify(lab).faults == ()
    path = folder / "audit.json"
    document = json.loads(path.read_text())
    document["audit"]["name"] = "another"
    path.write_text(json.dumps(document))
    assert any("audit.json is not what the detectors give" in line for line in faults(lab))


def test_an_event_of_a_newer_version_is_named_and_stays(lab: Path) -> None:
    [event] = append(lab, make_run(lab, 5.0, number=1))
    content = event.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2')
    newer = event.with_name(f"20261201T000000.000000Z-{hashlib.sha256(content).hexdigest()[:16]}.json")
    newer.write_bytes(content)
    [fault] = verify(lab).faults
    assert str(fault).endswith("is of schema 2, and this labkit reads schema 1: update labkit")
    append(lab, make_run(lab, 5.0, number=2))
    assert newer.read_bytes() == content


def test_list_and_show_tell_the_same_as_json_and_as_text(lab: Path) -> None:
    assert "no entries yet" in call("ledger", "list").output
    folder = make_run(lab, 5.0, number=1)
    append(lab, folder)
    append(lab, make_run(lab, 3.0, number=2, device=DEVICE | {"driver_info": "Mesa 26"}))
    [newest, oldest] = json.loads(call("ledger", "list", "--json").output)
    assert (newest["outcome"], oldest["outcome"]) == ("refuted", "confirmed")
    assert oldest["runs"] == [folder.name]
    assert oldest["effect"] == pytest.approx(5.0)
    listed = call("ledger", "list").output
    assert oldest["anchor"] in listed
    assert "confirmed (session result)  5.000× [4.972, 5.028]" in listed
    for name in (oldest["anchor"], folder.name):
        assert f"({folder.name}" in call("ledger", "show", name).output.replace("data/runs/", "")
        assert json.loads(call("ledger", "show", name, "--json").output)["events"][0]["run"] == folder.name
    missing = call("ledger", "show", "nothing")
    assert "there is no entry 'nothing'; `lab ledger list` names them" in str(missing.exception)


def test_struck_entries_are_listed_on_request(lab: Path) -> None:
    for number, ratio in enumerate((5.0, 3.0)):
        append(lab, make_run(lab, ratio, number=number))
    assert call("ledger", "list").output.count("\n") == 1
    assert "struck, confirmed" in call("ledger", "list", "--all").output


def test_render_says_what_it_did(lab: Path) -> None:
    append(lab, make_run(lab, 5.0))
    assert call("ledger", "render").output == "nothing to change\n"
    (lab / "LEVERS.md").unlink()
    assert call("ledger", "render").output == "rendered LEVERS.md\n"
    path = lab / "FINDINGS.md"
    path.write_text(path.read_text().replace("5.000×", "9.000×", 1))
    done = json.loads(call("ledger", "render", "--json").output)
    assert "FINDINGS.md" in done["changed"]
    assert done["kept"][0]["ledger"] == "FINDINGS.md"


def test_notes_waivers_and_corrections_from_the_command_line(lab: Path) -> None:
    assert call("note", "finding", "the fan is loud").output.startswith("noted in FINDINGS.md (data/ledger/")
    assert call("note", "mistake", "-", input="from stdin\nwith more\n").exit_code == 0
    assert call("note", "problem", "why?").exit_code == 0
    assert "from stdin" in (lab / "MISTAKES.md").read_text()
    assert "why?" in (lab / "OPEN-PROBLEMS.md").read_text()
    folder = make_run(lab, 5.0, checks=[])
    append(lab, folder)
    assert call("ledger", "waive", folder.name, "unchecked", "--reason", "by hand").exit_code == 0
    assert call("ledger", "correct", folder.name, "not so", "--retract").exit_code == 0
    assert "not so" in (lab / "MISTAKES.md").read_text()


def test_what_is_no_text_on_stdin_is_refused(lab: Path) -> None:
    done = call("note", "finding", "-", input=b"\xff\xfe")
    assert "not UTF-8" in str(done.exception)
    assert not events_folder(lab).exists()


def test_a_ledger_that_cannot_be_written_is_one_line(lab: Path) -> None:
    (lab / "data").write_text("in the way")
    done = call("note", "finding", "the fan is loud")
    assert isinstance(done.exception, LedgerError)
    assert "cannot be written: " in str(done.exception)


def test_a_persons_mistake_is_one_line_and_exit_code_2(lab: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labkit.cli", "note", "finding", "  "],
        env=os.environ | {"LABKIT_LAB": str(lab), "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lab: the note is empty; give it at least a line of text\n"
