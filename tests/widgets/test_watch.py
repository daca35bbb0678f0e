"""Watching runs and sweeps by their folders: how far, how long yet, what failed, and intervals as they tighten."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from page_rules import check_noun

from labkit.errors import ParameterError, RunError
from labkit.lab.folder import NOTEBOOK, PROGRESS
from labkit.lab.lab import Lab
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Plan, Rule
from labkit.lab.progress import write_progress
from labkit.lab.record import write_atomic
from labkit.lab.run import Run
from labkit.lab.sweep_file import Point, SweepFile, sweeps_folder
from labkit.measure.statistics import interval
from labkit.widgets import following as following_module
from labkit.widgets import watch
from labkit.widgets.following import Following
from labkit.widgets.tightening import MOST_POINTS, Tightening
from labkit.widgets.watch import RunWatch, SweepWatch

PERIOD_S = 0.02


def plan(repetitions: int = 4) -> Plan:
    rule = Rule(
        metric="decode_tok_s", cell={"width": 8}, against={"width": 1}, comparison=">=", threshold=4, margin=0.02
    )
    return Plan(
        experiment="try", belief="Eight are four times one.", knob="width", cells=({"width": 1}, {"width": 8}),
        control={"width": 1}, repetitions=repetitions, rule=rule,
    )  # fmt: skip


def measure(run: Run, blocks: int) -> None:
    for block in range(blocks):
        for width in (1, 8):
            run.measure({"width": width}, block, decode_tok_s=10.0 * width + block, step_ms=1.0)


def test_a_run_is_followed_from_its_plan_to_its_end(lab: Lab) -> None:
    run = lab.run("try").plan(plan())
    measure(run, 1)
    with watch(run, period_s=PERIOD_S) as view:
        first = view.state()
        assert (first["state"], first["done"], first["total"], first["samples"]) == ("running", 2, 8, 4)
        assert first["metric"] == "decode_tok_s"  # the plan's, not the first in the file's order alone
        assert first["intervals"]['{"width":8}']["mean"] == pytest.approx(80)
        seen: list[float] = []
        view.followers.append(lambda one: seen.append(one.standing.done))
        measure(run, 3)
        deadline = time.monotonic() + 10
        while view.state()["done"] < 6 and time.monotonic() < deadline:
            time.sleep(PERIOD_S)
        assert view.running
        check_noun(view)
        run.end("failed", "the driver was lost")
        assert view.wait(10)
        last = view.state()
        assert (last["state"], last["reason"]) == ("failed", "the driver was lost")
        assert last["left_s"] is None
        assert "the driver was lost" in check_noun(view)
        assert view.figure() is not None


def test_time_left_is_of_the_pace_and_progress_of_the_run_itself_comes_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.run("try").plan(plan())
    measure(run, 1)
    now = [100.0]
    monkeypatch.setattr("labkit.lab.progress.time.monotonic", lambda: now[0])
    following = Following(lab.root, run.id)
    assert following.look().left_s is None
    measure_at = run.folder / PROGRESS
    write_progress(measure_at, 10, 60, "warming up")
    assert following.look().left_s is None  # another total is other work
    now[0] += 5
    write_progress(measure_at, 20, 60, "width 8")
    found = following.look()
    assert (found.done, found.total, found.text) == (20, 60, "width 8")
    assert found.left_s == pytest.approx(40 * 5 / 10)
    measure_at.write_text('{"done": "many", "total": true, "tex')
    assert following.look().total == 8
    run.close()


def test_cells_of_the_notebook_are_counted_done_and_failed(lab: Lab) -> None:
    run = lab.run("try")
    measure(run, 1)
    states = ["executed", "executed", "failed", "not-run"]
    cells = [{"cell_type": "code", "source": "x", "metadata": {"lab": {"state": state}}} for state in states]
    write_atomic(run.folder / NOTEBOOK, json.dumps({"cells": cells}))
    write_atomic(run.folder / "heartbeat.json", json.dumps({"cell": 3}))
    with watch(run, period_s=PERIOD_S) as view:
        assert view.state()["cells"] == {"total": 4, "executed": 2, "failed": 1, "not_run": 1}
        assert "2 of 4 done, 1 failed, at cell 3" in view.html()
    run.close()


def test_a_line_that_is_being_written_is_read_once_it_is_whole(lab: Lab) -> None:
    run = lab.run("try")
    measure(run, 1)
    following = Following(lab.root, run.id)
    whole = len(following.look().rows)
    with (run.folder / "measurements.csv").open("a") as file:
        file.write('1,2,"{""width"":1}",decode_tok_s,4')
        file.flush()
        assert len(following.look().rows) == whole
        file.write("2.5,2026-12-01T00:00:00Z\n")
    assert following.look().rows[-1].value == 42.5
    run.close()


def test_a_run_in_another_process_is_followed_and_its_death_is_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import time, labkit as lk\n"
        "run = lk.Lab().run('elsewhere')\n"
        "for block in range(1000):\n"
        "    run.measure({'width': 1}, block, decode_tok_s=5.0)\n"
        "    print(run.id, flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"LABKIT_LAB": str(lab.root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    try:
        name = other.stdout.readline().strip()
        monkeypatch.setattr(following_module, "DEAD_S", 0.05)
        with watch(lab=lab, period_s=PERIOD_S) as view:  # the newest that goes on
            assert isinstance(view, RunWatch)
            assert view.run_id == name
            before = view.state()["samples"]
            deadline = time.monotonic() + 20
            while view.state()["samples"] < before + 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert view.state()["samples"] >= before + 3
            other.send_signal(signal.SIGKILL)
            other.wait(10)
            assert view.wait(20)
            assert view.state()["state"] == "killed"
            assert view.state()["error"] == ""
    finally:
        other.kill()
        other.wait(10)
        other.stdout.close()


def test_intervals_are_those_of_the_first_n_and_their_number_is_bounded() -> None:
    values = [10.0, 11.0, 9.5, 10.5, 10.2]
    rows = [Measurement(n, n, '{"width":1}', "step_ms", value, "") for n, value in enumerate(values)]
    tightening = Tightening()
    found = tightening.intervals("step_ms", '{"width":1}', values)
    assert [n for n, _ in found] == [1, 2, 3, 4, 5]
    want = interval([math.log(value) for value in values]).exp()
    assert found[-1][1][:3] == pytest.approx((want.estimate, want.low, want.high))
    assert found[0][1] == pytest.approx((10.0, 10.0, 10.0, 1))
    many = tightening.intervals("step_ms", "c", [1.0 + 0.001 * n for n in range(200)])
    assert len(many) <= MOST_POINTS + 1
    assert (many[0][0], many[-1][0]) == (1, 200)
    figure = tightening.draw(rows, "step_ms", "Steps")
    assert figure is not None
    assert [len(trace.x) for trace in figure.data] == [10, 5, 5]  # band there and back, line, repetitions
    assert tightening.draw(rows, "ttft_s", "None of it") is None


def sweep(lab: Lab, states: dict[str, str]) -> SweepFile:
    points = []
    for number, state in enumerate(states.values()):
        run_id = None
        if state != "missing":
            run = lab.run("try")
            measure(run, 1)
            run_id = run.id
            if state != "running":
                run.end(state)  # type: ignore[arg-type]
        points.append(Point(values={"width": number}, run=run_id))
    file = SweepFile(
        id="20261201T000000Z-try-0123456789abcdef", experiment="try", notebook="notebooks/try.ipynb", notebook_sha256="",
        definition="0123456789abcdef", fixed={}, grid={"width": [0, 1, 2, 3]}, begun="2026-12-01T00:00:00Z",
        points=tuple(points),
    )  # fmt: skip
    store(lab, file)
    return file


def store(lab: Lab, file: SweepFile) -> Path:
    path = sweeps_folder(lab.root) / f"{file.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, file.model_dump_json())
    return path


def test_a_sweep_is_followed_point_by_point(lab: Lab) -> None:
    file = sweep(lab, {"a": "completed", "b": "failed", "c": "running", "d": "missing"})
    for what in (file, file.id, "0123456789abcdef", sweeps_folder(lab.root) / f"{file.id}.json"):
        with watch(what, lab=lab, period_s=PERIOD_S) as view:
            assert isinstance(view, SweepWatch)
            now = view.state()
            assert (now["done"], now["total"], now["failed"]) == (2, 4, 1)
            assert [row["state"] for row in now["points"]] == ["completed", "failed", "running", "missing"]
            assert "2 of 4 points done, 1 failed" in check_noun(view)
    with watch(file, lab=lab, period_s=PERIOD_S) as view:
        store(lab, file.model_copy(update={"ended": "2026-12-01T01:00:00Z"}))
        assert view.wait(10)
        assert view.state()["error"] == ""


def test_what_cannot_be_watched_is_refused_in_one_line(lab: Lab) -> None:
    with pytest.raises(RunError, match="no run goes on in"):
        watch(lab=lab)
    with pytest.raises(RunError, match="there is no run '2026-nothing'"):
        watch("2026-nothing", lab=lab)
    with pytest.raises(ParameterError, match=r"watch\(3\): give a run"):
        watch(3, lab=lab)
    run = lab.run("try")
    with pytest.raises(ParameterError, match="period_s=0: give a time above 0"):
        watch(run, period_s=0)
    with watch(run, period_s=PERIOD_S) as view:  # before anything is stored
        assert view.state()["state"] == "nothing stored yet"
        measure(run, 1)
        deadline = time.monotonic() + 10
        while view.state()["samples"] == 0 and time.monotonic() < deadline:
            time.sleep(PERIOD_S)
        assert view.state()["state"] == "running"
        write_atomic(run.folder / "measurements.csv", "a,b\n1,2\n")
        assert view.wait(10)
        assert "has the columns a,b; expected block,order" in view.state()["error"]
    state: dict[str, Any] = view.state()
    assert not state["running"]
    run.close()
