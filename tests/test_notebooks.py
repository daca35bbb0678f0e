"""The committed notebooks keep the lab's conventions: parameters in one cell, no outputs, names for cells, one kernel."""

import re
from pathlib import Path

import nbformat
import pytest

from labkit.lab.experiments import find_experiment

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", cell.id) for cell in notebook.cells), "ids are names, not random"
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.lab.question
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "lab"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_runner_reads_its_question_and_its_parameters(path):
    experiment = find_experiment(ROOT, path.stem)
    assert experiment.question.endswith("?")
    assert {"quick", "belief"} <= set(experiment.parameters)


def test_the_tour_s_shader_is_the_committed_one():
    """It is a copy, which a person may change; the text beside it says that it is timed against the committed one."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    cell = next(cell.source for cell in notebook.cells if cell.source.startswith("%%glsl rms_norm\n"))
    assert cell.removeprefix("%%glsl rms_norm\n").strip() == (ROOT / "shaders/rms_norm.comp").read_text().strip()
