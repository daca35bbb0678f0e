"""`lab run`, `lab runs` and `lab rerun` as real processes: parameters, privacy, odd surroundings, many at once."""

import json
import os
import pty
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from run_harness import ThrowawayLab, printed, read

from labkit.cli import lab as command_line
from labkit.errors import LabError
from labkit.lab.lock import device_lock


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    return ThrowawayLab(tmp_path / "lab")


def echoed(folder: Path) -> dict[str, Any]:
    """The values the echo notebook saw, as Python."""
    values = json.loads(printed(folder / "notebook.ipynb"))
    return {name: eval(text, {"nan": float("nan"), "inf": float("inf")}) for name, text in values.items()}


def tagged(source: str, *tags: str) -> dict[str, Any]:
    """A code cell."""
    return {
        "cell_type": "code",
        "id": f"cell{abs(hash((source, tags))) % 10**6}",
        "source": source,
        "metadata": {"tags": list(tags)},
        "outputs": [],
        "execution_count": None,
    }


def write_notebook(lab: ThrowawayLab, name: str, *cells: dict[str, Any]) -> None:
    document = {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (lab.root / "notebooks" / f"{name}.ipynb").write_text(json.dumps(document))


def test_parameters_arrive_as_they_were_given_and_rerun_gives_them_again(lab: ThrowawayLab) -> None:
    given = {
        "text": "quotes \" ' braces {x} back\\slash\nnewline naïve 🙂",
        "path": "12e4567",
        "count": str(2**70),
        "rate": "-inf",
        "flags": "false,true",
        "sizes": "[]",
        "words": "007,yes",
        "options": '{"depth": 3, "kind": "None"}',
        "pair": "3,4",
        "choice": "007",
        "limit": "5",
        "anything": '{"a": [1, null, "é"]}',
    }
    expected = {
        "quick": False,
        "text": given["text"],
        "path": "12e4567",
        "count": 2**70,
        "rate": float("-inf"),
        "flags": [False, True],
        "sizes": [],
        "words": ["007", "yes"],
        "options": {"depth": 3, "kind": "None"},
        "pair": [3, 4],
        "choice": "007",
        "limit": 5,
        "anything": {"a": [1, None, "é"]},
    }
    arguments = [word for name, value in given.items() for word in ("-p", name, value)]
    done = lab.run("echo", "--full", "--name", "by hand", *arguments)
    assert done.returncode == 0, done.stderr
    record, folder = lab.only_run()
    assert echoed(folder) == expected
    assert record["parameters"] == expected | {"rate": "-Infinity"}
    assert (record["quick"], record["name"]) == (False, "by hand")

    again = lab.lab("rerun", record["id"][-8:], "-p", "count", "4", "--no-ledger", "--no-page", "--json")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert echoed(lab.runs / second["id"]) == expected | {"count": 4}
    assert second["id"] != record["id"]

    listed = json.loads(lab.lab("runs", "--json").stdout)
    assert [row["id"] for row in listed] == [second["id"], record["id"]]
    assert json.loads(lab.lab("runs", "show", record["id"], "--json").stdout) == record
    assert "by hand" not in lab.lab("runs", "show", second["id"][-8:]).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["sweep", "-p", "widht", "8"],
            "unknown parameter 'widht'; this experiment takes: quick=True, widths=[1, 2, 4]",
        ),
        (["sweep", "-p", "repetitions", "1.5"], "repetitions takes a whole number, not '1.5'"),
        (["sweep", "-p", "quick", "true", "-p", "quick", "false"], "parameter quick is given 2 times"),
        (["sweep", "-p", "quick", "true", "--full"], "not both"),
        (["trouble", "--quick"], "no parameter `quick`"),
        (["swep"], "no experiment 'swep'"),
        (["no/such.ipynb"], "no notebook no/such.ipynb"),
        (["sweep", "--params", "gone.yaml"], "cannot read the parameter file gone.yaml"),
        (["sweep", "--timeout", "-1"], "-1.0 is not in the range"),
        (["--resume", "20260101T000000Z-sweep-00000000"], "there is no run"),
        (["sweep", "--resume", "x"], "takes a run's id alone"),
        (["untagged"], "exactly one code cell tagged `parameters`, it has 0"),
        (["twice"], "exactly one code cell tagged `parameters`, it has 2"),
        (["derived"], "total is not a literal"),
        (["secret"], "hf_token would put a secret into the run's record"),
        (["broken"], "is not a notebook that can be read"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    lab: ThrowawayLab, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    write_notebook(lab, "untagged", tagged("n = 1"))
    write_notebook(lab, "twice", tagged("n = 1", "parameters"), tagged("n = 2", "parameters"))
    write_notebook(lab, "derived", tagged("n = 1\ntotal = n * 2", "parameters"))
    write_notebook(lab, "secret", tagged("hf_token = ''", "parameters"))
    (lab.root / "notebooks" / "broken.ipynb").write_text('{"cells": [')
    monkeypatch.setenv("LABKIT_LAB", str(lab.root))
    with pytest.raises((LabError, click.UsageError)) as refusal:
        command_line.main(["run", *arguments], prog_name="lab", standalone_mode=False)
    assert refusal.value.exit_code == 2
    assert says in str(refusal.value)
    assert not lab.runs.exists()


def test_a_refusal_is_one_line_on_stderr(lab: ThrowawayLab) -> None:
    done = lab.run("sweep", "-p", "widht", "8")
    assert done.returncode == 2
    assert done.stderr.startswith("lab: unknown parameter 'widht'")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not lab.runs.exists()


def test_the_experiments_and_their_parameters_are_listed(lab: ThrowawayLab) -> None:
    (lab.root / "notebooks" / "broken.ipynb").write_text('{"cells": [')
    listed = lab.lab("run")
    assert listed.returncode == 0
    assert "sweep    Does the made-up rate grow with the width?" in listed.stdout
    assert "broken.ipynb is not a notebook" in listed.stderr
    rows = json.loads(lab.lab("run", "--list", "--json").stdout)
    assert [row.get("name", "?") for row in rows] == ["?", "echo", "sweep", "trouble"]
    shown = lab.lab("run", "sweep", "--help-parameters")
    assert "widths = [1, 2, 4]  (list)" in shown.stdout
    assert "quick = True  (bool)  # a look: two repetitions" in shown.stdout
    assert not lab.runs.exists()


def test_no_secret_home_or_host_reaches_the_record(lab: ThrowawayLab) -> None:
    home = lab.root / "home of margaret"
    home.mkdir()
    lab.environment |= {
        "HF_TOKEN": "tok-12345-very-secret",
        "HOME": str(home),
        "USER": "margaret",
        "LOGNAME": "margaret",
    }
    done = lab.run("trouble", "-p", "trouble", "print secrets", "-p", "note", "for margaret with hf_abcdefghijklmnopqr")
    record, folder = lab.only_run()
    assert done.returncode == 0, done.stderr
    stored = {path.name: path.read_text() for path in folder.iterdir()}
    secrets = ("very-secret", "abcdefghijklmnop", "AKIA", "margaret", str(home), "hf_abc")
    hostname = socket.gethostname()
    for name, text in stored.items():
        for secret in secrets:
            assert secret not in text, f"{secret} is in {name}"
        if hostname not in ("localhost", "test", "lab"):
            assert f'"{hostname}"' not in text
    assert "token <secret> in ~/models" in printed(folder / "notebook.ipynb")
    assert "Authorization: Bearer <secret>" in stored["log.txt"]
    assert "driver says <secret>" in stored["log.txt"]
    assert json.loads(stored["requests.jsonl"])["error"] == "refused <secret>"
    assert record["checks"] == [{"name": "shown", "passed": True, "detail": "<secret>"}]
    assert record["parameters"]["note"] == "for <user> with <secret>"
    assert json.loads(stored["conclusion.json"])["claims"] == ["nothing for <user> with <secret>"]

    again = lab.lab("rerun", record["id"])
    assert again.returncode == 2
    assert "does not hold parameter note as it was, but redacted; give it with -p" in again.stderr


def test_the_kernel_is_this_python_whatever_else_is_installed(tmp_path: Path) -> None:
    lab = ThrowawayLab(tmp_path / "a lab with spaces" / ("deep" * 20) / "{braces}")
    hostile = tmp_path / "share"
    kernel = hostile / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    profile = tmp_path / "home" / ".ipython" / "profile_default" / "startup"
    profile.mkdir(parents=True)
    (profile / "00-start.py").write_text("raise SystemExit('a start-up file of the user ran')")
    lab.environment |= {
        "JUPYTER_PATH": str(hostile),
        "JUPYTER_DATA_DIR": str(hostile),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(lab.root / "runtime"),
    }
    done = lab.run("echo")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (0, "completed"), done.stderr
    assert echoed(folder)["text"] == "plain"
    assert [path for path in lab.root.rglob("*") if path.is_socket()] == []
    assert [path.name for path in (lab.root / "runtime").iterdir()] == []


def test_runs_started_together_keep_apart(lab: ThrowawayLab) -> None:
    started = [lab.start("sweep", "-p", "widths", f"{width},{width + 1}") for width in (1, 10, 20, 30)]
    for run in started:
        code, errors = run.end(within_s=60)
        assert code == 0, errors
    folders = lab.folders()
    assert len(folders) == 4
    assert lab.partials() == []
    seen = []
    for folder in folders:
        widths = read(folder / "run.json")["parameters"]["widths"]
        lines = (folder / "measurements.csv").read_text().splitlines()[1:]
        assert len(lines) == 6
        assert {f'"{{""width"":{width}}}"' for width in widths} == {line.split(",")[2] for line in lines}
        seen.append(widths[0])
    assert sorted(seen) == [1, 10, 20, 30]


def test_a_second_timed_run_waits_for_the_device_or_refuses(lab: ThrowawayLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", lab.environment["XDG_RUNTIME_DIR"])
    with device_lock("u-7", "batch-decode", wait=False):
        refused = lab.run("sweep", "-p", "device_uuid", "u-7", "--no-wait")
        assert refused.returncode == 2
        assert f"in use by batch-decode (process {os.getpid()}" in refused.stderr
        waiting = lab.start("sweep", "-p", "device_uuid", "u-7")
        assert waiting.process.stderr is not None
        lines = []
        while "waiting for the device" not in (lines or [""])[-1]:
            lines.append(waiting.process.stderr.readline())
            assert lines[-1], lines
        assert f"in use by batch-decode (process {os.getpid()}" in lines[-1]
    code, errors = waiting.end()
    assert code == 0, errors
    assert [read(folder / "run.json")["state"] for folder in lab.folders()] == ["failed", "completed"]


def test_a_terminal_sees_how_far_a_long_cell_is(lab: ThrowawayLab) -> None:
    ours, theirs = pty.openpty()
    arguments = lab.command("run", "sweep", "-p", "pause_s", "0.3", "--no-ledger", "--no-page")
    process = subprocess.Popen(arguments, env=lab.environment, cwd=lab.root, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the terminal's other end is closed
            break
    os.close(ours)
    assert process.wait(10) == 0
    text = seen.decode()
    assert "[4/5] " in text
    assert re.search(r"█+░+ [3-8]/9 width \d \(about \d s left\)", text), text
    assert "sweep: completed" in text


def test_an_exploration_is_promoted_its_notebook_run_again_with_a_plan_stored_first(lab: ThrowawayLab) -> None:
    done = lab.run("sweep")
    assert done.returncode == 0, done.stderr
    explored, _ = lab.only_run()
    assert explored["plan_hash"] is None
    promoted = lab.lab("promote", explored["id"], "Wider is faster", "--repetitions", "4", "--no-page", "--json")
    assert promoted.returncode == 0, promoted.stderr
    record = json.loads(promoted.stdout)
    plan = read(lab.runs / record["id"] / "plan.json")
    assert [cell["width"] for cell in plan["cells"]] == [1, 2, 4]
    assert (plan["belief"], plan["repetitions"], plan["rule"]["cell"]) == ("Wider is faster", 4, {"width": 4})
    assert plan["believed_because"].startswith(f"{explored['id']} found 3.")
    assert (record["exploratory"], record["retrospective"], record["name"]) == (
        False,
        False,
        f"promoted from {explored['id']}",
    )
    assert record["parameters"]["repetitions"] == 4
    assert record["verdict"]["outcome"] == "invalid"  # this notebook checks nothing unless it is told to plan
    assert "no correctness check" in record["verdict"]["reason"]
    again = lab.lab("promote", record["id"], "Wider is faster")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "has a plan; `lab rerun" in again.stderr
    wrong = lab.lab("promote", explored["id"], "Wider is faster", "--control", "{width: 1}")
    assert (wrong.returncode, "is not a cell as JSON" in wrong.stderr) == (2, True)
    assert len(lab.folders()) == 2
