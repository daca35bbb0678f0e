"""`lab new`: a notebook for a question of one's own, which keeps the conventions, runs as it is, and takes nobody's place."""

import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result

from labkit.cli import lab as lab_command
from labkit.errors import LabError, RunError
from labkit.lab.experiments import find_experiment
from labkit.lab.init import make_lab
from labkit.lab.lab import Lab
from labkit.lab.new import make_experiment, put_new

QUESTION = 'Is "8" > 4 & <b>wide</b> enough?'


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LABKIT_LAB", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a device's lock of its own: other runs keep nobody waiting
    root = make_lab(tmp_path / "mine")
    monkeypatch.chdir(root)
    return root


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


def test_it_keeps_the_conventions_of_notebooks(mine: Path) -> None:
    done = call("new", "KV_Depth", "--question", f"  {QUESTION}\n")
    assert done.exit_code == 0, done.output
    assert "made notebooks/kv_depth.ipynb" in done.output
    assert "./lab run kv-depth --quick" in done.output
    notebook = nbformat.read(mine / "notebooks" / "kv_depth.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert [cell.id for cell in code] == ["parameters", "plan", "device", "check", "measure", "conclude"]
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", cell.id) for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "lab"}
    assert notebook.cells[0].source.startswith(f"# {QUESTION}\n")
    assert "lab run kv-depth -p" in notebook.cells[0].source
    text = "".join(cell.source for cell in code)
    assert text.count('"kv-depth"') == 2
    assert '"template"' not in text
    experiment = find_experiment(mine, "kv-depth")
    assert experiment.question == QUESTION
    assert {"quick", "belief"} <= set(experiment.parameters)


def test_without_a_question_it_asks_the_templates(mine: Path) -> None:
    make_experiment(mine, "another")
    assert find_experiment(mine, "another").question == find_experiment(mine, "template").question


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("template",), "notebooks/template.ipynb is there already"),
        (("Template",), "notebooks/template.ipynb is there already"),
        (("../outside",), "is not an experiment's name"),
        (("",), "is not an experiment's name"),
        (("x" * 200,), "has 200 characters"),
        (("fine", "--question", "It is so."), "is not a question"),
    ],
    ids=["taken", "other-case", "a-path", "empty", "long", "no-question"],
)
def test_what_cannot_be_made_is_one_line_and_changes_nothing(mine: Path, words: tuple[str, ...], said: str) -> None:
    before = {path: path.read_bytes() for path in mine.parent.rglob("*") if path.is_file()}
    done = call("new", *words)
    assert isinstance(done.exception, LabError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert {path: path.read_bytes() for path in mine.parent.rglob("*") if path.is_file()} == before


def test_a_name_in_its_other_spelling_is_taken_too(mine: Path) -> None:
    (mine / "notebooks" / "kv-depth.ipynb").write_text("{}")
    with pytest.raises(RunError, match=r"notebooks/kv-depth\.ipynb is there already"):
        make_experiment(mine, "kv_depth")


def test_of_many_at_once_one_makes_it_and_the_others_are_told(mine: Path) -> None:
    def attempt(number: int) -> str:
        try:
            put_new(mine / "notebooks" / "raced.ipynb", json.dumps(number) * 10_000)
            return str(number)
        except FileExistsError:
            return ""

    with ThreadPoolExecutor(8) as pool:
        (winner,) = filter(None, pool.map(attempt, range(8)))
    assert (mine / "notebooks" / "raced.ipynb").read_text() == winner * 10_000
    assert [path.name for path in (mine / "notebooks").iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(mine: Path) -> None:
    (mine / "notebooks").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunError, match="cannot be written"):
        make_experiment(mine, "new-one")


def test_it_runs_as_it_is_and_gets_a_look(mine: Path) -> None:
    make_experiment(mine, "my-question")
    done = call("run", "my-question", "--quick", "--no-page", "-p", "tokens", "4", "-p", "device", "cpu")
    assert done.exit_code == 0, done.output
    (run,) = Lab(mine).runs("my-question")
    assert run.record.state == "completed"
    assert (run.record.verdict or {})["strength"] == "look"
    assert "## Looks" in (mine / "FINDINGS.md").read_text()
