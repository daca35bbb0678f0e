"""Sweeps, with real processes: what is missing runs, whatever was killed, and nothing runs twice."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_harness import ThrowawayLab, eventually, read

from labkit.lab.lab import Lab, StoredRun
from labkit.lab.series import How, Night, Series, state_of
from labkit.lab.sweep_file import SweepFile, read_sweep

THREE = ("sweep", "sweep", "--grid", "widths=1,2,4", "-p", "repetitions", "2", "--no-page")
PLANNED = (*THREE[:3], "widths=[1,2],[1,4],[1,8]", *THREE[4:], "-p", "planned", "true")
OWN_LEVER = """[pause_s]
about = "seconds between samples"
values = "seconds"
acts = "schedule"
witness = "workload"
read = "times"
"""


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    lab = ThrowawayLab(tmp_path / "lab")
    (lab.root / "data").mkdir()
    (lab.root / "data" / "levers.toml").write_text(OWN_LEVER)
    return lab


def start(lab: ThrowawayLab, *arguments: str) -> "subprocess.Popen[str]":
    """A sweep as a process."""
    return subprocess.Popen(
        lab.command(*arguments), env=lab.environment, cwd=lab.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def sweep_files(lab: ThrowawayLab) -> list[dict[str, Any]]:
    return [read(path) for path in sorted((lab.root / "data" / "sweeps").glob("*.json"))]


def runner_of(folder: Path) -> int:
    return int(read(folder / "heartbeat.json")["runner_pid"])


def ledger_runs(lab: ThrowawayLab) -> list[str]:
    """The runs the ledger's events speak of, one each time it is entered."""
    return [read(path)["run"] for path in (lab.root / "data" / "ledger").glob("*.json") if "run" in read(path)]


def test_a_sweep_killed_half_way_resumes_with_the_rest_and_neither_runs_nor_enters_anything_twice(
    lab: ThrowawayLab,
) -> None:
    sweep = (*PLANNED, "-p", "pause_s", "0.15")
    process = start(lab, *sweep)
    eventually(lambda: len(lab.folders()) == 1 and any(p.name.startswith(".partial") for p in lab.partials()), 30)
    (partial,) = [path for path in lab.partials() if path.name.startswith(".partial")]
    eventually(lambda: (partial / "heartbeat.json").exists() and (partial / "measurements.csv").exists(), 20)
    os.kill(process.pid, signal.SIGSTOP)  # nobody is left to close the record
    os.kill(runner_of(partial), signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    (before,) = sweep_files(lab)
    assert [bool(point["run"]) for point in before["points"]] == [True, True, False]

    refused = lab.lab(*sweep)
    assert refused.returncode == 2
    assert "lacks 2 of 3 points; --resume runs those" in refused.stderr
    done = lab.lab(*sweep, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    (after,) = sweep_files(lab)
    assert [point["run"] for point in after["points"]][:2] == [point["run"] for point in before["points"]][:2]
    assert "2 of 3 points to run" in done.stderr
    rows = json.loads(done.stdout)["points"]
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert len(lab.folders()) == 3
    assert lab.partials() == []
    for folder in lab.folders():
        with (folder / "measurements.csv").open(newline="") as file:
            samples = [(row["block"], row["cell"]) for row in csv.DictReader(file)]
        assert len(samples) == len(set(samples)) == 4
    assert sorted(ledger_runs(lab)) == sorted(folder.name for folder in lab.folders())

    again = lab.lab(*sweep, "--resume")
    assert again.returncode == 0
    assert len(lab.folders()) == 3


def test_a_point_that_finishes_after_its_parent_was_killed_counts_as_done(
    lab: ThrowawayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = (*PLANNED[:3], "widths=[1,2],[1,4]", *PLANNED[4:], "--no-ledger")
    assert lab.lab(*sweep).returncode == 0
    (path,) = (lab.root / "data" / "sweeps").glob("*.json")
    document = read(path)
    last = document["points"][1]["run"]
    document["points"][1]["settled"], document["ended"] = False, None
    path.write_text(json.dumps(document))
    looks = iter(["running", "running", "running"])  # the child goes on while the series takes stock, and then is done

    def seen(root: Path, run: str | None) -> str:
        return next(looks, "completed") if run == last else state_of(root, run)

    class Kept(Series[SweepFile]):
        what = "sweep"

        def read(self) -> SweepFile:
            return read_sweep(self.path)

        def changed(self, number: int, fields: Mapping[str, Any]) -> SweepFile:
            return self.file.with_point(number, **fields)

        def start(self, number: int, made: Any, limits: Mapping[str, Any]) -> StoredRun:
            raise AssertionError("it runs twice")

        def words(self, number: int) -> str:
            return str(number)

    monkeypatch.setattr("labkit.lab.series.state_of", seen)
    settled: list[str] = []
    with Kept(Lab(lab.root), read_sweep(path), path.parent) as series:
        series.run(Night(), How(settle=lambda run: settled.append(run.record.id)))
        assert series.missing() == []
    assert settled == [last]
    assert next(looks, None) is None
    assert not read(lab.runs / last / "run.json")["resumed"]


def test_a_kill_between_two_steps_costs_nothing(lab: ThrowawayLab) -> None:
    sweep = (*PLANNED[:3], "widths=[1,2],[1,4]", *PLANNED[4:])
    assert lab.lab(*sweep).returncode == 0
    (path,) = (lab.root / "data" / "sweeps").glob("*.json")
    document = read(path)
    kept, gone = (point["run"] for point in document["points"])
    shutil.rmtree(lab.runs / gone)  # killed after the run's name was kept and before its folder was there
    for point in document["points"]:
        point["settled"] = False  # killed after the ledger had it and before that was kept
    document["ended"] = None
    path.write_text(json.dumps(document))
    done = lab.lab(*sweep, "--resume")
    assert done.returncode == 0, done.stderr
    again = [point["run"] for point in read(path)["points"]]
    assert again[0] == kept
    assert again[1] != gone
    assert sorted(ledger_runs(lab)) == sorted([kept, gone, again[1]])
    path.write_text(path.read_text()[:100])
    torn = lab.lab(*sweep, "--resume")
    assert (torn.returncode, f"{path} is not a sweep that can be read" in torn.stderr) == (2, True)


def test_ctrl_c_closes_the_point_that_runs_starts_no_other_and_says_what_is_missing(lab: ThrowawayLab) -> None:
    process = start(lab, *THREE, "-p", "pause_s", "2", "--no-ledger")
    eventually(lambda: any((path / "heartbeat.json").exists() for path in lab.partials()), 30)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "3 of 3 points are missing (stopped); --resume runs them" in errors
    assert "Traceback" not in errors
    record, _ = lab.only_run()
    assert record["state"] == "killed"
    assert list((lab.root / "data" / "sweeps").glob(".*")) == []


def test_one_process_has_a_sweep_and_another_is_told_so(lab: ThrowawayLab) -> None:
    process = start(lab, *THREE, "-p", "pause_s", "1", "--no-ledger")
    eventually(lambda: bool(list((lab.root / "data").glob("sweeps/*.json"))), 20)
    other = lab.lab(*THREE, "-p", "pause_s", "1", "--no-ledger", "--resume")
    assert (other.returncode, "is being run by another process" in other.stderr) == (2, True)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)


def test_the_log_of_a_night_is_a_line_a_point_and_ends_with_the_table_and_the_effects(lab: ThrowawayLab) -> None:
    done = lab.lab(*THREE, "--no-ledger")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[-4].endswith("3 of 3 points to run")
    assert [re.sub(r"about \d+ s", "about", line) for line in lines[-3:]] == [
        "[1/3] widths=[1]", "[2/3] widths=[2] (about left)", "[3/3] widths=[4] (about left)",
    ]  # fmt: skip
    assert not set("█░\r\x1b") & set(done.stderr)
    table = done.stdout.splitlines()
    assert table[0].split() == ["widths", "state", "verdict", "run"]
    assert [line.split()[1] for line in table[1:4]] == ["completed"] * 3
    assert table[4].startswith("widths=[1] to widths=[2]: decode_tok_s 1.95×")  # √(20·21) / √(10·11)
    (kept,) = sweep_files(lab)
    assert kept["ended"]
    assert [effect["new"] for effect in kept["effects"]] == ["widths=[2]", "widths=[4]"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--grid", "widths=x"), "parameter widths takes a whole number, not 'x'"),
        (("--grid", "flux=1,2"), "unknown parameter 'flux'"),
        (("--grid", "repetitions=1,2"), "repetitions says what is asked or how often, and is no lever"),
        (("--grid", "hang_after=1,2"), "hang_after is not a declared lever"),
        (("--grid", "widths=1,2", "-p", "widths", "3"), "widths is both varied by --grid and set"),
        (("--grid", "widths=1,2", "--set", "widths"), "--set 'widths' is not NAME=VALUE"),
        (("--grid", "widths=1,2", "--negative-control", "pause_s"), "--negative-control pause_s is not in the grid"),
        (("--grid", "widths=1,2", "--budget", "soon"), "--budget 'soon' is not a time"),
        (("--grid", "widths=1,2", "--resume", "--anew"), "give either --resume or --anew"),
    ],
)
def test_bad_input_is_one_line_and_nothing_starts(lab: ThrowawayLab, arguments: tuple[str, ...], says: str) -> None:
    done = lab.lab("sweep", "sweep", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (lab.root / "data" / "sweeps").exists()
    assert not lab.runs.exists()


def test_a_dry_run_checks_and_shows_but_starts_nothing(lab: ThrowawayLab) -> None:
    done = lab.lab(*THREE, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["state"] for row in json.loads(done.stdout)["points"]] == ["missing"] * 3
    assert not (lab.root / "data" / "sweeps").exists()


def test_a_budget_ends_a_night_and_leaves_what_does_not_fit(lab: ThrowawayLab) -> None:
    done = lab.lab(*THREE, "-p", "pause_s", "0.6", "--no-ledger", "--budget", "3s")
    assert done.returncode == 1
    states = [read(folder / "run.json")["state"] for folder in lab.folders()]
    assert states[0] == "completed"
    assert len(states) < 3 or states[-1] == "timed-out"
    assert "points are missing" in done.stderr


def test_a_point_that_fails_does_not_keep_the_others_from_running(lab: ThrowawayLab) -> None:
    notebook = lab.root / "notebooks" / "sweep.ipynb"
    notebook.write_text(
        notebook.read_text().replace("todo = run.missing(", "assert widths != [2]\\ntodo = run.missing(")
    )
    done = lab.lab(*THREE, "--no-ledger")
    assert done.returncode == 1, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[1:4]] == ["completed", "failed", "completed"]
    assert "1 of 3 points are missing (they did not fit or failed)" in done.stderr


def test_points_of_another_code_are_never_mixed(lab: ThrowawayLab) -> None:
    stopped = lab.lab(*THREE, "--no-ledger", "--budget", "0.01s")
    assert stopped.returncode == 1
    notebook = lab.root / "notebooks" / "sweep.ipynb"
    notebook.write_text(notebook.read_text().replace("10.0 *", "11.0 *"))
    done = lab.lab(*THREE, "--no-ledger", "--resume")
    assert done.returncode == 2
    assert "has changed since the sweep began" in done.stderr


def test_a_negative_control_that_moves_condemns_the_sweep(lab: ThrowawayLab) -> None:
    controlled = ("sweep", "sweep", "--grid", "seed_of_noise=0,1", "--negative-control", "seed_of_noise", "--no-page")
    notebook = lab.root / "notebooks" / "sweep.ipynb"
    text = notebook.read_text().replace('"planned = False', '"seed_of_noise = 0\\n",\n    "planned = False')
    notebook.write_text(
        text.replace("decode_tok_s=10.0 *", "decode_tok_s=(1 + seed_of_noise) * 10.0 *").replace(
            " + block)", " + 0 * block)"
        )
    )
    done = lab.lab(*controlled, "-p", "widths", "1", "--no-ledger")
    assert done.returncode == 3, done.stderr
    assert "a negative control moved" in done.stderr
    assert "decode_tok_s 2.00" in done.stdout
    assert "NEGATIVE CONTROL MOVED" in done.stdout


def test_a_finished_sweep_writes_what_its_lever_did_to_levers_md_once(lab: ThrowawayLab) -> None:
    sweep = ("sweep", "sweep", "--grid", "batch=1,4", "-p", "repetitions", "3", "--no-page")
    done = lab.lab(*sweep)
    assert done.returncode == 0, done.stderr
    assert "batch is the parameter widths here" in done.stderr
    assert lab.lab(*sweep, "--resume").returncode == 0
    rows = [line for line in (lab.root / "LEVERS.md").read_text().splitlines() if line.startswith("| widths |")]
    assert len(rows) == 1
    for words in ("widths=[1] | widths=[4]", "decode_tok_s | 3.7", "faster", "3 and 3 blocks, one run each"):
        assert words in rows[0]
    assert lab.lab("ledger", "verify").returncode == 0


def test_a_point_whose_process_dies_is_not_run_again_by_itself_and_the_next_are(lab: ThrowawayLab) -> None:
    process = start(lab, *THREE, "-p", "pause_s", "0.4", "--no-ledger")
    eventually(lambda: any((partial / "measurements.csv").exists() for partial in lab.partials()), 30)
    (partial,) = [path for path in lab.partials() if path.name.startswith(".partial")]
    os.kill(runner_of(partial), signal.SIGKILL)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "  killed: the run's process was killed in cell" in errors
    assert [read(folder / "run.json")["state"] for folder in lab.folders()] == ["killed", "completed", "completed"]
    assert [point["run"] for point in sweep_files(lab)[0]["points"]] == [folder.name for folder in lab.folders()]
