"""How runs end: each way a notebook, a kernel or a runner can go wrong leaves a record that says so."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from run_harness import ThrowawayLab, alive, cell_states, eventually, printed, read


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    return ThrowawayLab(tmp_path / "lab")


def test_a_run_that_goes_well_is_completed_judged_entered_and_shown(lab: ThrowawayLab) -> None:
    done = lab.lab("run", "sweep", "-p", "widths", "1,8", "-p", "planned", "true")
    record, folder = lab.only_run()
    assert done.returncode == 0, done.stderr
    assert record["state"] == "completed"
    assert record["cells"] == {"total": 5, "executed": 5, "failed": 0, "not_run": 0}
    assert record["parameters"] == {
        "quick": True,
        "widths": [1, 8],
        "repetitions": 3,
        "pause_s": 0.0,
        "planned": True,
        "device_uuid": "",
        "hang_after": None,
    }
    rows = (folder / "measurements.csv").read_text().splitlines()
    assert rows[0] == "block,order,cell,metric,value,utc"
    assert rows[2].startswith('0,1,"{""width"":8}",decode_tok_s,80.0,20')
    assert sorted(record["artefacts"]) == [
        *("conclusion.json", "log.txt", "measurements.csv", "notebook.ipynb", "plan.json"),
    ]
    assert (record["verdict"]["outcome"], record["verdict"]["pairs"]) == ("confirmed", 3)
    assert "verdict: confirmed: " in done.stderr
    assert [name.name for name in folder.glob(".*")] == []
    assert folder.name in (lab.root / "FINDINGS.md").read_text()
    page = lab.root / "site" / "runs" / folder.name / "index.html"
    assert "Does the made-up rate grow" in page.read_text()
    assert "[5/5]" in done.stderr
    for shown in (f"data/runs/{folder.name}", f"site/runs/{folder.name}/index.html", "FINDINGS.md", "lab notebook"):
        assert shown in done.stderr


def test_a_kernel_killed_from_outside_is_a_crash_within_seconds(lab: ThrowawayLab) -> None:
    run = lab.start("trouble", "-p", "trouble", "hang").wait_for("before the trouble", saved=True)
    begin = time.monotonic()
    run.kill("kernel")
    code, errors = run.end()
    record, folder = lab.only_run()
    assert (code, record["state"]) == (4, "crashed")
    assert time.monotonic() - begin < 8
    assert "SIGKILL" in record["reason"]
    assert "cell 4" in record["reason"]
    assert cell_states(folder) == ["executed", "executed", "executed", "interrupted", "not-run", "not-run"]
    assert record["cells"] == {"total": 6, "executed": 3, "failed": 0, "not_run": 3}
    assert "before the trouble" in printed(folder / "notebook.ipynb")
    assert record["reason"] in errors
    run.assert_nothing_survives()


def test_a_kernel_that_leaves_by_itself_is_a_crash_with_its_code(lab: ThrowawayLab) -> None:
    done = lab.run("trouble", "-p", "trouble", "os._exit")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (4, "crashed")
    assert "exited with code 3" in record["reason"]
    child = int((lab.root / "notebooks" / "child.pid").read_text())
    eventually(lambda: not alive(child), 5)
    assert cell_states(folder)[-2:] == ["not-run", "not-run"]


def test_a_cell_over_its_limit_times_out_and_shows_where_it_was(lab: ThrowawayLab) -> None:
    done = lab.run("trouble", "-p", "trouble", "hang", "--cell-timeout", "1.5")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (5, "timed-out")
    assert "cell 4" in record["reason"]
    assert "1.5 s a cell" in record["reason"]
    assert "KeyboardInterrupt" in printed(folder / "notebook.ipynb")
    assert cell_states(folder)[-3:] == ["interrupted", "not-run", "not-run"]


def test_a_run_over_its_limit_times_out(lab: ThrowawayLab) -> None:
    done = lab.run("sweep", "-p", "pause_s", "0.4", "--timeout", "3", "--cell-timeout", "50")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (5, "timed-out")
    assert "the run took longer than its limit of 3 s" in record["reason"]
    assert len((folder / "measurements.csv").read_text().splitlines()) > 1


def test_a_failing_cell_fails_the_run_with_its_error_on_stderr(lab: ThrowawayLab) -> None:
    done = lab.run("trouble", "-p", "trouble", "raise")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (1, "failed")
    assert record["reason"] == "cell 4 failed: ValueError: the device gave 41 of 42 rows"
    assert record["reason"] in done.stderr
    assert folder.name in done.stderr
    assert "Traceback" not in done.stderr
    assert cell_states(folder)[-3:] == ["failed", "not-run", "not-run"]
    assert "41 of 42 rows" in (folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("sys.exit", "cell 4 called sys.exit(0)"), ("stop", "the interval is narrow enough")],
)
def test_leaving_midway_is_not_a_success(lab: ThrowawayLab, trouble: str, reason: str) -> None:
    done = lab.run("trouble", "-p", "trouble", trouble)
    record, folder = lab.only_run()
    assert (done.returncode, record["state"], record["reason"]) == (1, "stopped-early", reason)
    assert cell_states(folder)[-2:] == ["not-run", "not-run"]
    assert "after the trouble" not in printed(folder / "notebook.ipynb")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_lab_run_closes_the_record_and_stops_the_kernel(lab: ThrowawayLab, number: signal.Signals) -> None:
    run = lab.start("trouble", "-p", "trouble", "hang").wait_for("before the trouble")
    run.kill("lab", number)
    code, _ = run.end()
    record, _ = lab.only_run()
    assert code == 1
    assert record["state"] == "killed"
    run.assert_nothing_survives()


def test_a_run_that_was_stopped_resumes_with_what_it_lacks(lab: ThrowawayLab) -> None:
    run = lab.start("sweep", "-p", "hang_after", "4").wait_for("measured {'width': 1} 1")
    run.kill("lab", signal.SIGTERM)
    code, errors = run.end()
    record, folder = lab.only_run()
    assert (code, record["state"]) == (1, "killed")
    assert f"next: ./lab run --resume {record['id']} measures what is missing" in errors
    before = (folder / "measurements.csv").read_text()
    assert len(before.splitlines()) == 1 + 4
    resumed = lab.run("--resume", record["id"])
    assert resumed.returncode == 0, resumed.stderr
    again, folder = lab.only_run()
    assert (again["id"], again["state"]) == (record["id"], "completed")
    after = (folder / "measurements.csv").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 1 + 9


def test_killing_lab_run_still_closes_the_record(lab: ThrowawayLab) -> None:
    run = lab.start("trouble", "-p", "trouble", "hang").wait_for("before the trouble")
    run.kill("lab")
    run.end()
    eventually(lambda: len(lab.folders()) == 1, 10)
    record, _ = lab.only_run()
    assert record["state"] == "killed"
    assert "started the run was killed" in record["reason"]
    run.assert_nothing_survives()
    eventually(lambda: list((lab.root / "runtime").glob("lab-*")) == [], 5)
    assert not Path(run.heartbeat["scratch"]).exists()


def test_killing_the_runner_is_seen_by_lab_run(lab: ThrowawayLab) -> None:
    run = lab.start("trouble", "-p", "trouble", "hang").wait_for("before the trouble", saved=True)
    run.kill("runner")
    code, _ = run.end()
    record, folder = lab.only_run()
    assert code == 1
    assert record["state"] == "killed"
    assert "in cell 4 of 6" in record["reason"]
    assert record["cells"] == {"total": 6, "executed": 3, "failed": 0, "not_run": 3}
    assert "before the trouble" in printed(folder / "notebook.ipynb")
    run.assert_nothing_survives()
    assert list((lab.root / "runtime").glob("lab-*")) == []


def test_a_sweep_killed_half_way_is_readable_then_resumed_for_the_rest_alone(lab: ThrowawayLab) -> None:
    run = lab.start("sweep", "-p", "hang_after", "4").wait_for("measured {'width': 1} 1")
    os.kill(run.process.pid, signal.SIGSTOP)  # so that nobody is left to close the record
    run.kill("runner")
    run.kill("lab")
    run.end()
    (partial,) = lab.partials()
    assert read(partial / "run.json")["state"] == "running"
    assert len((partial / "measurements.csv").read_text().splitlines()) == 1 + 4

    listed = json.loads(lab.lab("runs", "--json").stdout)
    assert [(row["state"], row["experiment"]) for row in listed] == [("killed", "sweep")]
    run.assert_nothing_survives()
    record, _ = lab.only_run()

    notebook = lab.root / "notebooks" / "sweep.ipynb"
    text = notebook.read_text()
    notebook.write_text(text.replace("10.0 *", "11.0 *"))
    other_code = lab.run("--resume", record["id"])
    assert other_code.returncode == 2
    assert "the code of notebooks/sweep.ipynb has changed since" in other_code.stderr
    notebook.write_text(text)

    resumed = lab.run("--resume", record["id"])
    again, folder = lab.only_run()
    assert resumed.returncode == 0, resumed.stderr
    assert (again["id"], again["state"], again["started"]) == (record["id"], "completed", record["started"])
    assert [(one["state"], one["reason"]) for one in again["resumed"]] == [("killed", record["reason"])]
    assert "to do: 5" in printed(folder / "notebook.ipynb")
    rows = [line.split(",") for line in (folder / "measurements.csv").read_text().splitlines()[1:]]
    pairs = [(row[0], row[2]) for row in rows]
    assert len(pairs) == len(set(pairs)) == 9
    assert [int(row[1]) for row in rows] == list(range(9))

    refused = lab.run("--resume", record["id"])
    assert refused.returncode == 2
    assert "is completed" in refused.stderr


def test_a_runs_notebook_is_whole_json_whenever_it_is_read(lab: ThrowawayLab) -> None:
    run = lab.start("sweep", "-p", "pause_s", "0.15")
    reads = 0
    while run.process.poll() is None:
        for name, field, want in (("notebook.ipynb", "nbformat", 4), ("run.json", "experiment", "sweep")):
            for path in lab.runs.glob(f"*/{name}"):
                try:
                    text = path.read_text()
                except FileNotFoundError:  # its folder was renamed in between
                    continue
                assert json.loads(text)[field] == want
                reads += 1
    assert run.end()[0] == 0
    assert reads > 100


def test_a_flood_of_output_is_kept_whole(lab: ThrowawayLab) -> None:
    done = lab.run("trouble", "-p", "trouble", "flood")
    record, folder = lab.only_run()
    assert (done.returncode, record["state"]) == (0, "completed")
    assert "line 0\nline 1\n" in printed(folder / "notebook.ipynb")
    assert "line 59998\nline 59999\n" in printed(folder / "notebook.ipynb")
