"""The tour, `notebooks/00_start_here.ipynb`, in a real JupyterLab from top to bottom: every view draws, nothing complains."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from notebook_page import Notebook, opened

from labkit.lab.experiments import find_experiment
from labkit.lab.init import make_lab

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny" / "llama-q4_1.gguf"
SAVED_BYTES = 1_000_000  # a copy of plotly.js alone is over 3 MB

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    lab = make_lab(tmp_path_factory.mktemp("tour") / "lab")
    cells = [cell for cell in find_experiment(ROOT, "start-here").document.cells if cell.cell_type == "code"]
    sources = [cell.source for cell in cells]
    place = next(number for number, source in enumerate(sources) if source.startswith("model: str"))
    sources[place] += f"\nmodel, quick = {str(TINY)!r}, True"
    with opened(lab, sources) as notebook:
        yield notebook


def test_the_tour_runs_from_top_to_bottom_and_its_saved_notebook_is_small(page: Notebook) -> None:
    page.begin("notebook:run-all-cells")
    page.until("document.querySelector('.jp-Notebook').innerText.includes('seconds before the newest reading')", 120)
    assert page.tab.complaints == []
    page.command("docmanager:save")
    saved = nbformat.read(page.path, as_version=4)
    assert not [one for cell in saved.cells for one in cell.outputs if one.output_type == "error"]
    for view in ("play", "bench", "explore(lab.runs())", "meters"):
        held = next(cell.outputs for cell in saved.cells if cell.source.splitlines()[-1] == view)
        assert any("text/html" in one.get("data", {}) for one in held), f"{view} leaves its picture"
    bench = next(str(cell.outputs) for cell in saved.cells if cell.source.endswith("\nbench"))
    assert "GB/s" in bench, "the shader of the cell is checked and timed"
    assert page.path.stat().st_size < SAVED_BYTES
