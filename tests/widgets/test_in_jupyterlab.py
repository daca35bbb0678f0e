"""The views in a real JupyterLab: they stream, stop and follow, an interrupt harms nothing, and the picture stays."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_page import Notebook, opened

from labkit.lab.init import make_lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q4_1.gguf"
CELLS = (
    f"""import labkit as lk
from labkit.widgets import explore, kernel_lab, playground, roofline, watch
engine = lk.Engine({str(TINY)!r}, slots=2, context=2048)
play = playground(engine, "def hello", max_tokens=1900, temperature=0.6, seed=0)  # which goes on to the end
play""",
    """import threading, time
lab = lk.Lab()
run = lab.run("try", dict(kv="f16"))
def measure():
    for block in range(40):
        for width in (1, 8):
            run.measure(dict(width=width), block, decode_tok_s=10.0 * width + block % 3)
        time.sleep(0.1)
    run.end("completed")
threading.Thread(target=measure, daemon=True).start()
follower = watch(run)
follower""",
    "play.run().wait()",
    "print('engine makes', len(engine.generate('hello', max_tokens=3, ignore_eos=True)[0].token_ids))",
    "follower.wait(); explorer = explore(lab); explorer",
    "play.close(); follower.close(); explorer.close()",
)
OUTPUT = "document.querySelectorAll('.jp-Notebook-cell')[{}].querySelector('.jp-Cell-outputArea')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with opened(make_lab(tmp_path_factory.mktemp("notebook") / "lab"), CELLS) as notebook:
        yield notebook


def run_cell(page: Notebook, number: int) -> None:
    """Runs one cell and does not wait for its end."""
    page.tab.evaluate(f"((panel) => {{panel.content.activeCellIndex = {number}}})({page.panel})")
    page.begin("notebook:run-cell")


def words(page: Notebook, number: int) -> str:
    return f"({OUTPUT.format(number)}?.innerText ?? '')"


def test_the_playground_streams_shows_the_alternatives_and_stops(page: Notebook) -> None:
    run_cell(page, 0)
    page.until(f"{words(page, 0)}.includes('nothing was asked yet')")
    page.click("Run")
    page.until(f"{words(page, 0)}.includes('writing')")
    tokens = f"{OUTPUT.format(0)}.querySelectorAll('.labkit-words span[title]').length"
    some = page.until(f"{tokens} > 3 && {tokens}")
    page.until(f"{tokens} > {some}")  # it goes on
    title = page.tab.evaluate(f"{OUTPUT.format(0)}.querySelector('.labkit-words span[title]').title")
    assert len(title.splitlines()) >= 5
    assert "▸" in title
    assert "%" in title
    page.click("Stop")
    page.until(f"{words(page, 0)}.includes('stopped')")
    page.click("Run")  # and the same view writes again
    page.until(f"{words(page, 0)}.includes('writing')")
    page.click("Stop")
    page.until(f"{words(page, 0)}.includes('stopped')")
    assert page.tab.complaints == []


def test_watch_follows_a_run_while_it_goes_and_draws_its_metric(page: Notebook) -> None:
    run_cell(page, 1)
    points = f"{OUTPUT.format(1)}?.querySelectorAll('.jupyter-widgets .scatterlayer .point').length"
    some = page.until(f"{points} > 2 && {points}")
    page.until(f"{points} > {some}")
    page.until(f"{words(page, 1)}.includes('completed')", 30)
    assert page.tab.complaints == []


def test_the_interrupt_button_ends_the_wait_and_leaves_the_engine_usable(page: Notebook) -> None:
    run_cell(page, 2)
    page.until(f"{words(page, 0)}.includes('writing')")
    page.begin("notebook:interrupt-kernel")
    page.until(f"{words(page, 2)}.includes('KeyboardInterrupt')")
    page.until(f"{words(page, 0)}.includes('stopped')")
    run_cell(page, 3)
    page.until(f"{words(page, 3)}.includes('engine makes 3')")
    assert page.tab.complaints == []


def test_the_explorer_draws_what_is_picked_and_its_links_lead_into_the_lab(page: Notebook) -> None:
    run_cell(page, 4)
    plot = f"{OUTPUT.format(4)}?.querySelectorAll('.jupyter-widgets .scatterlayer .point').length"
    page.until(f"{plot} === 2")
    link = page.tab.evaluate(f"{OUTPUT.format(4)}.querySelector('.jupyter-widgets a').href")
    assert "/tree/data/runs/" in link
    assert link.endswith("/run.json")
    choice = f"{OUTPUT.format(4)}.querySelectorAll('.jupyter-widgets select')"
    page.tab.evaluate(
        f"((pick) => {{pick.value = 'experiment'; pick.dispatchEvent(new Event('change', {{bubbles: true}}))}})({choice}[1])"
    )
    page.until(f"{words(page, 4)}.includes('over experiment')")
    assert page.tab.complaints == []


def test_closed_the_controls_go_and_the_picture_is_in_the_saved_notebook(page: Notebook) -> None:
    still = f"[...{OUTPUT.format(1)}.querySelectorAll('[class^=labkit-still]')].some(e => e.offsetHeight > 0)"
    assert not page.tab.evaluate(still)  # hidden for as long as the widgets are there
    run_cell(page, 5)
    page.until(still)
    page.until(f"{OUTPUT.format(1)}.querySelector('.main-svg')?.getBoundingClientRect().height > 100")
    page.until(f"{OUTPUT.format(0)}.querySelectorAll('.jupyter-widgets').length === 0")
    page.command("docmanager:save")
    time.sleep(1)
    cells = json.loads(page.path.read_text())["cells"]
    held = [[kind for output in cell["outputs"] for kind in output.get("data", {})] for cell in cells]
    assert not any("widget" in kind for kinds in held for kind in kinds)
    assert "application/vnd.plotly.v1+json" in held[1]
    kept = "".join("".join(output["data"]["text/html"]) for output in cells[0]["outputs"])
    assert "tok/s" in kept
    assert "title=" in kept
    assert page.tab.complaints == []
