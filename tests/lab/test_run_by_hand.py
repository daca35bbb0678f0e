"""`Lab` and `Run` in a process of one's own: exploring by hand, the record's folder, the device lock."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_harness import SOURCE, read

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.folder import close_dead_runs
from labkit.lab.lab import Lab, _open_runs, experiment_name
from labkit.lab.lock import device_lock_path, read_holder
from labkit.lab.measurements import read_rows
from labkit.lab.plan import Plan, Rule, read_plan
from labkit.lab.record import RunRecord, canonical_cell
from labkit.vulkan.device import Device


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("LABKIT_LAB", raising=False)
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    deep = tmp_path / "notebooks" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    yield Lab()
    for run in _open_runs.values():
        run.close()
    _open_runs.clear()


def folders(lab: Lab) -> list[str]:
    runs = lab.root / "data" / "runs"
    return sorted(path.name for path in runs.iterdir()) if runs.exists() else []


def other_process(lab: Lab, code: str) -> "subprocess.Popen[str]":
    """A Python that has the lab as `lab` and says "ready" when it wants to be waited for."""
    environment = os.environ | {
        "LABKIT_LAB": str(lab.root),
        "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}",
    }
    return subprocess.Popen(
        [sys.executable, "-c", f"from labkit.lab.lab import Lab\nlab = Lab()\n{code}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_lab_is_found_upward_or_by_its_variable_and_nothing_is_made(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.root == tmp_path
    elsewhere = tmp_path.parent
    monkeypatch.chdir(elsewhere)
    with pytest.raises(LabError, match=r"no lab at .*LABKIT_LAB"):
        Lab()
    with pytest.raises(LabError, match="is not a lab"):
        Lab(elsewhere)
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    assert Lab().root == tmp_path
    assert folders(lab) == []


def test_a_run_by_hand_leaves_nothing_until_something_is_stored(lab: Lab) -> None:
    run = lab.run("by_hand", parameters={"width": 8})
    assert folders(lab) == []
    run.check("ids", passed=True)
    assert folders(lab) == [f".partial-{run.id}"]
    run.close()
    assert folders(lab) == []


def test_an_open_run_is_closed_as_stopped_early_when_another_begins(lab: Lab) -> None:
    first = lab.run("by-hand")
    first.measure(cell={"width": 8}, block=0, decode_tok_s=41.2)
    second = lab.run("by-hand")
    assert folders(lab) == [first.id]
    record = read(lab.root / "data" / "runs" / first.id / "run.json")
    assert (record["state"], record["interactive"], record["exploratory"]) == ("stopped-early", True, True)
    with pytest.raises(RunError, match="is closed; start another"):
        first.measure(cell={"width": 8}, block=1, decode_tok_s=41.2)
    assert second.id != first.id


def test_a_process_that_ends_closes_its_run_and_a_killed_one_is_closed_by_the_next(lab: Lab) -> None:
    code = "run = lab.run('by-hand')\nrun.measure(cell={}, block=0, decode_tok_s=1.0)\n"
    left = other_process(lab, code)
    _, errors = left.communicate(timeout=20)
    assert left.returncode == 0, errors
    killed = other_process(lab, f"{code}print('ready', flush=True)\nimport time; time.sleep(60)")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ready\n"
    assert sorted(run.record.state for run in lab.runs()) == ["running", "stopped-early"]
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=10)
    assert sorted(run.record.state for run in lab.runs()) == ["killed", "stopped-early"]
    assert close_dead_runs(lab.root) == []
    assert [run.record.state for run in lab.runs(state="killed")] == ["killed"]
    assert len(lab.runs(experiment="by_hand")) == 2
    assert lab.runs(experiment="other") == []


def test_measurements_come_back_as_they_went_in(lab: Lab) -> None:
    run = lab.run("by-hand")
    value = 0.1 + 0.2
    run.measure(cell={"width": 8, "kv": 'f"16,'}, block=3, decode_tok_s=value)
    run.measure(cell={"kv": 'f"16,', "width": 8}, block=4, decode_tok_s=7)
    rows = read_rows(run.folder / "measurements.csv")
    assert [(row.block, row.order, row.value) for row in rows] == [(3, 0, value), (4, 1, 7.0)]
    assert rows[0].cell == rows[1].cell == '{"kv":"f\\"16,","width":8}'
    frame = run.table("decode_tok_s")
    assert list(frame["width"]) == [8, 8]
    assert list(frame["value"]) == [value, 7.0]
    assert run.missing([{"width": 8, "kv": 'f"16,'}, {"width": 9}], [3, 5]) == [
        ({"width": 9}, 3),
        ({"width": 8, "kv": 'f"16,'}, 5),
        ({"width": 9}, 5),
    ]


def test_what_is_not_a_measurement_is_refused(lab: Lab) -> None:
    run = lab.run("by-hand")
    with pytest.raises(ParameterError, match=r"decode_tok\b.*did you mean decode_tok_s"):
        run.measure(cell={}, block=0, decode_tok=1.0)
    with pytest.raises(ParameterError, match="decode_tok_s is inf"):
        run.measure(cell={}, block=0, decode_tok_s=float("inf"))
    with pytest.raises(ParameterError, match="must be a number, not 'fast'"):
        run.measure(cell={}, block=0, decode_tok_s="fast")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="has no metric"):
        run.measure(cell={}, block=0)
    assert folders(lab) == []


def test_conditions_are_kept_and_shown(lab: Lab) -> None:
    run = lab.run("by-hand", parameters={"width": 8})
    run.describe(device={"name": "Made-up 1", "uuid": "u-1"}, model={"name": "tiny"}, programs={"decode@8": "abc"})
    run.describe(programs={"decode@16": "def"}, clock="fixed at 2.4 GHz")
    run.check("ids equal the reference", passed=False, detail="47 of 48")
    record = RunRecord.model_validate_json((run.folder / "run.json").read_text())
    assert record.device == {"name": "Made-up 1", "uuid": "u-1"}
    assert record.program_fingerprints == {"decode@8": "abc", "decode@16": "def"}
    assert record.notes == ("clock: fixed at 2.4 GHz",)
    assert record.host.cores >= 1
    assert record.host.ram_bytes > 2**28
    assert record.packages["numpy"]
    assert len(record.shaders["spv/manifest.json"]) == 64
    assert "Made-up 1" in run._repr_html_()
    assert ">ids equal the reference</td>" in run._repr_html_()
    assert "FAILED" in run._repr_html_()
    assert run.id in repr(run)
    assert "Made-up 1" in repr(lab.runs())
    assert run.id in lab._repr_html_()


def a_plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "experiment": "by-hand",
        "belief": "Eight are faster than one",
        "knob": "width",
        "cells": [{"width": 1}, {"width": 8}],
        "control": {"width": 1},
        "repetitions": 3,
        "rule": Rule(metric="decode_tok_s", cell={"width": 8}, against={"width": 1}, comparison=">=", threshold=4.0),
    }
    return Plan(**(fields | changes))


def test_a_plan_is_stored_with_its_hash_before_the_data(lab: Lab) -> None:
    run = lab.run("by-hand")
    plan = a_plan()
    run.plan(plan).measure(cell={"width": 8}, block=0, decode_tok_s=41.2)
    assert read_plan(run.folder / "plan.json").hash == plan.hash == run.record.plan_hash
    assert (run.record.exploratory, run.record.retrospective) == (False, False)
    run.plan(a_plan())  # the same again changes nothing
    assert run.record.deviations == ()
    run.plan(a_plan(belief="Eight are slower than one"))  # kept as a deviation; see test_promote.py
    assert [change.field for change in run.record.deviations[0].changes] == ["belief"]
    assert read_plan(run.folder / "plan.json").hash == plan.hash


def test_a_plan_after_the_data_is_retrospective(lab: Lab) -> None:
    run = lab.run("by-hand").measure(cell={"width": 8}, block=0, decode_tok_s=41.2)
    run.plan(a_plan())
    assert (run.record.exploratory, run.record.retrospective) == (False, True)


def test_only_a_plan_of_this_experiment_is_taken(lab: Lab) -> None:
    run = lab.run("by-hand")
    with pytest.raises(ParameterError, match="the plan is for 'other', this is a run of 'by-hand'"):
        run.plan(a_plan(experiment="other"))
    with pytest.raises(ParameterError, match="takes a labkit Plan, not dict"):
        run.plan({"belief": "x"})
    with pytest.raises(RunError, match="has no plan to judge by"):
        run.verdict()


def test_a_device_is_held_by_one_run_at_a_time_and_names_its_holder(lab: Lab) -> None:
    holder = other_process(
        lab,
        "import time\nwith lab.device_lock('uuid/1', 'batch-decode'):\n print('ready', flush=True)\n time.sleep(60)",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    assert read_holder(device_lock_path("uuid/1"))["pid"] == holder.pid
    with (
        pytest.raises(RunError, match=rf"in use by batch-decode \(process {holder.pid}, since 20.*Z\)"),
        lab.device_lock("uuid/1", "mine", wait=False),
    ):
        pass
    with lab.device_lock("uuid/2", "another device", wait=False):
        pass
    waiter = other_process(lab, "with lab.device_lock('uuid/1', 'second'):\n    print('mine', flush=True)")
    assert waiter.stdout is not None
    assert "waiting for the device: in use by batch-decode" in waiter.stdout.readline()
    begin = time.monotonic()
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=10)
    assert waiter.stdout.readline() == "mine\n"
    assert time.monotonic() - begin < 5
    waiter.communicate(timeout=10)
    with lab.device_lock("uuid/1", "mine", wait=False), lab.device_lock("uuid/1", "mine again", wait=False):
        assert read_holder(device_lock_path("uuid/1"))["pid"] == os.getpid()
    assert read_holder(device_lock_path("uuid/1")) == {}


def test_a_run_holds_its_device_until_it_is_closed(lab: Lab) -> None:
    run = lab.run("by-hand")
    run.describe(device={"name": "Made-up 1", "uuid": "u-2"})
    assert read_holder(device_lock_path("u-2"))["label"] == "by-hand"
    run.close()
    assert read_holder(device_lock_path("u-2")) == {}


def test_a_writer_that_died_in_mid_line_costs_that_line_alone(lab: Lab) -> None:
    run = lab.run("by-hand")
    run.measure(cell={"width": 8}, block=0, decode_tok_s=41.2)
    with (run.folder / "measurements.csv").open("a") as file:
        file.write('1,1,"{""wid')
    run.close()
    folder = lab.root / "data" / "runs" / run.id
    assert len(read_rows(folder / "measurements.csv")) == 1
    assert read(folder / "run.json")["artefacts"].keys() == {"log.txt", "measurements.csv"}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ({"b": 1, "a": "é"}, '{"a":"é","b":1}'),
        ({"width": 8, "kv": None, "on": True}, '{"kv":null,"on":true,"width":8}'),
        ({"rate": 0.1, "shape": (1, 2)}, '{"rate":0.1,"shape":[1,2]}'),
        ({}, "{}"),
    ],
)
def test_a_cell_has_one_spelling(cell: dict[str, object], text: str) -> None:
    assert canonical_cell(cell) == text
    assert canonical_cell(json.loads(text)) == text


def test_numpy_values_spell_like_python_ones() -> None:
    import numpy as np

    cell = {"width": np.int64(8), "rate": np.float32(0.5), "on": np.bool_(True), "shape": np.array([1, 2])}
    assert canonical_cell(cell) == '{"on":true,"rate":0.5,"shape":[1,2],"width":8}'


@pytest.mark.parametrize(("text", "name"), [("batch_decode", "batch-decode"), (" KV-16 ", "kv-16")])
def test_experiments_have_one_spelling(text: str, name: str) -> None:
    assert experiment_name(text) == name


@pytest.mark.parametrize("text", ["", "a b", "../x", "-a", "a--b", "ä"])
def test_a_name_that_could_leave_its_folder_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="not an experiment's name"):
        experiment_name(text)


def test_a_damaged_record_is_reported_with_its_place(lab: Lab) -> None:
    run = lab.run("by-hand")
    run.measure(cell={}, block=0, decode_tok_s=1.0)
    run.close()
    path = lab.root / "data" / "runs" / run.id / "run.json"
    path.write_text(path.read_text().replace('"stopped-early"', '"gone"'))
    other = lab.run("by-hand")
    other.measure(cell={}, block=0, decode_tok_s=1.0)
    other.close()
    runs = lab.runs()
    assert [one.record.id for one in runs] == [other.id]
    assert len(runs.damaged) == 1
    assert "run.json is not a run record: state" in runs.damaged[0]
    with pytest.raises(RunError, match=r"run.json is not a run record: state"):
        lab.find_run(run.id)


def test_in_jupyter_each_cell_shows_its_own_progress_in_place(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook()
    steps = "for step in range(3):\n    run.progress(step + 1, 3, 'width <8>')\n    time.sleep(0.11)"
    for source in (f"import time\nfrom labkit.lab.lab import Lab\nrun = Lab().run('by-hand')\n{steps}", steps):
        notebook.cells.append(nbformat.v4.new_code_cell(source))
    monkeypatch.setenv("LABKIT_LAB", str(lab.root))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
    for cell in notebook.cells:
        (output,) = cell.outputs
        assert output.data["text/plain"] == "3/3 width <8>"
        assert "3/3 width &lt;8&gt;" in output.data["text/html"]


def test_many_processes_closing_the_dead_leave_the_living_alone(lab: Lab) -> None:
    """Runs are made, measured and closed while others look for dead ones: none is taken for dead, none is lost."""
    one = "run = lab.run('by-hand')\n run.measure(cell={}, block=0, decode_tok_s=1.0)\n run.close()"
    make = f"for _ in range(12):\n {one}"
    look = "import time\nend = time.time() + 4\nwhile time.time() < end:\n assert not lab.runs().damaged"
    makers = [other_process(lab, make) for _ in range(2)]
    lookers = [other_process(lab, look) for _ in range(2)]
    for process in makers + lookers:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert [run.record.state for run in lab.runs()] == ["stopped-early"] * 24
    assert not [name for name in folders(lab) if name.startswith(".")]


def test_a_device_is_read_as_often_as_the_run_asks_for(lab: Lab, device: Device) -> None:
    run = lab.run("power")
    run.describe(device, telemetry_s=0.01)
    deadline = time.monotonic() + 20
    while len(run.readings) < 12 and time.monotonic() < deadline:
        time.sleep(0.01)
    moments = [at for at, _ in run.readings]
    apart = sorted(later - now for now, later in itertools.pairwise(moments))
    assert apart[len(apart) // 2] < 0.25  # half a second when left out
    run.close()
    with pytest.raises(ParameterError, match="a reading every 0 s"):
        lab.run("power-again").describe(device, telemetry_s=0)
