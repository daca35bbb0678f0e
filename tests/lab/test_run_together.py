"""Runs at the same time: each in its own folder and its own name, none in another's way."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_harness import ThrowawayLab, printed, read

from labkit.errors import RunError
from labkit.lab import runner
from labkit.lab.folder import RunFolder
from labkit.lab.lab import Lab
from labkit.lab.record import read_record

WHERE = "import os, pathlib\nprint('in', os.getcwd())\npathlib.Path(f'left-by-{n}.txt').write_text(str(n))"


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    return ThrowawayLab(tmp_path / "lab")


def cell(source: str, *tags: str) -> dict[str, Any]:
    return {
        "cell_type": "code", "id": f"c{len(source)}", "source": source, "metadata": {"tags": list(tags)}, "outputs": [],
        "execution_count": None,
    }  # fmt: skip


@pytest.mark.slow
def test_eight_runs_in_four_folders_each_work_in_their_own(lab: ThrowawayLab) -> None:
    notebook = {"cells": [cell("n = 0", "parameters"), cell(WHERE)], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    folders = [lab.root / f"place-{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "where.ipynb").write_text(json.dumps(notebook))
    started = [lab.start(str(folders[n % 4] / "where.ipynb"), "-p", "n", str(n)) for n in range(8)]
    for run in started:
        code, errors = run.end(within_s=90)
        assert code == 0, errors
    seen = {}
    for folder in lab.folders():
        seen[read(folder / "run.json")["parameters"]["n"]] = printed(folder / "notebook.ipynb").split()[1]
    assert seen == {n: str(folders[n % 4]) for n in range(8)}
    left = {n: sorted(path.name for path in folders[n].glob("left-by-*")) for n in range(4)}
    assert left == {n: [f"left-by-{n}.txt", f"left-by-{n + 4}.txt"] for n in range(4)}


def test_of_four_runs_with_one_name_one_is_made_and_three_are_refused(lab: ThrowawayLab) -> None:
    record = Lab(lab.root).new_record("sweep", {})
    made: list[RunFolder] = []
    refused: list[str] = []
    gate = threading.Barrier(4)

    def make() -> None:
        gate.wait()
        try:
            made.append(RunFolder.create(lab.root, record))
        except RunError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 3)
    assert all(record.id in text for text in refused)
    assert [path.name for path in lab.partials()] == [made[0].path.name]
    final = made[0].finalise("completed", "")
    assert read_record(final).id == record.id
    with pytest.raises(RunError, match="there is a run called"):
        RunFolder.create(lab.root, record)


def test_a_fault_of_the_judge_does_not_cost_the_record(lab: ThrowawayLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> dict[str, Any]:
        raise NameError("name 'witness' is not defined")

    monkeypatch.setattr(runner, "judged_fields", fails)
    folder = RunFolder.create(lab.root, Lab(lab.root).new_record("sweep", {}))
    assert runner.close(folder, SimpleNamespace(outcome=SimpleNamespace(state="completed", reason=""))) == "completed"
    record, _ = lab.only_run()
    assert record["reason"] == "not judged: the judge failed: NameError: name 'witness' is not defined"
