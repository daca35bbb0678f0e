"""Views in a notebook that is executed without a page: the picture of their end is stored, and a published page has it."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from labkit.lab.kernel import install_kernel
from labkit.lab.lab import Lab
from labkit.lab.publish.notebook import notebook_html
from labkit.lab.publish.plots import Beside

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q4_1.gguf"
CELLS = (
    f"""import labkit as lk
from labkit.widgets import playground, watch
engine = lk.Engine({str(TINY)!r}, slots=1, context=64)
view = playground(engine, "def hello", max_tokens=5)
view""",
    "view.run().wait(60)",
    """run = lk.Lab().run("try")
for block in range(3):
    run.measure(dict(width=1), block, decode_tok_s=5.0 + block)
run.end("completed")
follower = watch(run)
follower""",
    "follower.wait(60); follower.close()",
)


def test_the_last_picture_is_stored_and_published(lab: Lab, tmp_path: Path, monkeypatch) -> None:
    for name, value in install_kernel(tmp_path / "scratch").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LABKIT_LAB", str(lab.root))
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    NotebookClient(document, timeout=60, resources={"metadata": {"path": str(lab.root)}}).execute()
    first, _, second, _ = document.cells
    held = [set(output["data"]) for output in second.outputs]
    assert not any("widget" in kind for kinds in held for kind in kinds)  # it was closed
    assert any("application/vnd.plotly.v1+json" in kinds for kinds in held)
    assert any("widget" in kind for output in first.outputs for kind in output["data"])  # this one was not
    beside = Beside()
    page = notebook_html(document, beside, lambda url: url)
    assert beside.problems == []
    assert beside.figures == 1
    assert "5 tokens" in page
    assert "The controls need a running notebook" in page
    assert "completed" in page
    assert "<style" not in page
