"""`lab init`: a lab of one's own outside labkit's repository, in which every verb works; nothing is overwritten."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result
from ledger_runs import make_run

from labkit.cli import lab as lab_command
from labkit.errors import LabError
from labkit.lab.experiments import find_experiment
from labkit.lab.export import export_run
from labkit.lab.init import ATTRIBUTES, launcher, make_lab
from labkit.lab.lab import Lab, find_root
from labkit.lab.recheck import verify
from labkit.models.catalogue import models_folder

SOURCE = Path(__file__).resolve().parents[2]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LABKIT_LAB", raising=False)
    monkeypatch.delenv("LABKIT_MODELS", raising=False)
    return make_lab(tmp_path / "my lab")


def test_a_new_lab_has_its_template_its_folders_and_its_empty_ledgers(mine: Path) -> None:
    names = {path.name for path in mine.iterdir()}
    assert names == {
        *("FINDINGS.md", "MISTAKES.md", "OPEN-PROBLEMS.md", "LEVERS.md", "README.md", "lab.toml", "lab"),
        *(".gitignore", ".gitattributes", "notebooks", "data", "figures"),
    }
    assert (mine / "FINDINGS.md").read_text().endswith("*Nothing yet.*\n")
    assert verify(mine).faults == ()
    assert (mine / "data/claims/r9700.csv").read_bytes() == (SOURCE / "data/claims/r9700.csv").read_bytes()
    assert find_experiment(mine, "template").question.endswith("?")
    assert len((mine / "README.md").read_text().splitlines()) < 20


def test_the_template_keeps_the_conventions_of_notebooks(mine: Path) -> None:
    notebook = nbformat.read(mine / "notebooks" / "template.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert "believed_because=" in "".join(cell.source for cell in notebook.cells)
    assert {"quick", "belief"} <= set(find_experiment(mine, "template").parameters)


def test_it_is_found_from_every_folder_in_it_and_keeps_its_own_models(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine / "notebooks")
    assert find_root() == mine
    assert Lab().runs() == []
    assert models_folder() == mine / "data" / "models"


def test_the_ledger_verbs_work_there(mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(mine)
    assert call("note", "finding", "the fan is loud").exit_code == 0
    assert "the fan is loud" in (mine / "FINDINGS.md").read_text()
    away = make_lab(tmp_path / "away")
    archive = export_run(make_run(away, 5.0), tmp_path / "run.zip").path
    assert call("import", str(archive), "--no-page").exit_code == 0
    assert "Confirmed" in (mine / "FINDINGS.md").read_text()
    assert call("ledger", "verify").exit_code == 0
    published = call("publish", "--strict")
    assert published.exit_code == 0, published.output
    assert (mine / "site" / "findings.html").is_file()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: (path.mkdir(), (path / "notes.md").touch(), (path / "z").touch()), "has notes.md and 1 more"),
        (lambda path: make_lab(path), "is a lab already"),
        (lambda path: path.symlink_to(path.parent), "is not a folder"),
    ],
    ids=["file", "not-empty", "lab", "link"],
)
def test_what_is_there_is_never_touched(tmp_path: Path, made, words: str) -> None:
    target = tmp_path / "place"
    made(target)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    done = call("init", str(target))
    assert isinstance(done.exception, LabError)
    assert words in str(done.exception)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_lab_inside_a_lab_is_refused(mine: Path) -> None:
    with pytest.raises(LabError, match="lies inside the lab at"):
        make_lab(mine / "data" / "another")
    with pytest.raises(LabError, match="lies inside the lab at"):
        make_lab(SOURCE / "notebooks" / "mine")
    assert not (mine / "data" / "another").exists()


def test_an_empty_folder_and_a_fresh_git_repository_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_lab(tmp_path / "empty")
    subprocess.run(["git", "init", "-q", str(tmp_path / "repository")], check=True)
    made = make_lab(tmp_path / "repository")
    assert (made / ".git").is_dir()
    assert (made / "lab.toml").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "repository"]


def test_its_git_attributes_are_those_of_the_project() -> None:
    assert (SOURCE / ".gitattributes").read_text() == ATTRIBUTES


def test_its_launcher_names_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(SOURCE.parent))
    assert f'"$HOME"/{shlex.quote(SOURCE.name)}' in launcher()
    assert str(SOURCE) not in launcher()


@pytest.mark.slow
def test_its_template_runs_and_is_judged(mine: Path) -> None:
    environment = os.environ | {"LABKIT_LAB": str(mine), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "labkit.cli", "run", "template", "-p", "quick", "true", "--no-page"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "## Looks" in (mine / "FINDINGS.md").read_text()
    assert verify(mine).faults == ()
