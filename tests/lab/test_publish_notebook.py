"""An executed notebook as HTML: every kind of output in place, long ones cut visibly, damage named and never fatal."""

import base64
import json
import re
from typing import Any

import nbformat
import pytest
from synthetic_lab import PNG, TRACEBACK, notebook, plotly_output, scaling_figure

from labkit.lab.publish.notebook import PAGE_LIMIT, notebook_html
from labkit.lab.publish.plots import INLINE_LIMIT, Beside, figure_html

new = nbformat.v4


def shown(*outputs: Any, source: str = "run()", metadata: dict[str, Any] | None = None) -> tuple[str, Beside]:
    """The HTML of a notebook with one code cell that has these outputs."""
    cell = new.new_code_cell(source, outputs=list(outputs), execution_count=1)
    document = new.new_notebook(cells=[cell], metadata=metadata or {})
    beside = Beside()
    return notebook_html(json.loads(nbformat.writes(document)), beside, lambda url: None), beside


def display(**data: Any) -> Any:
    return new.new_output("display_data", {name.replace("__", "/"): value for name, value in data.items()})


def test_code_is_folded_under_its_first_line_and_coloured() -> None:
    page, _ = shown(source="\n# warm up\nfor i in range(3):\n    go(i)")
    assert '<details class="code"><summary><span class="count">In [1]</span> <code># warm up</code></summary>' in page
    assert '<span class="k">for</span>' in page


def test_the_parameter_cells_say_which_they_are() -> None:
    page = notebook_html(notebook(), Beside(), lambda url: None)
    assert "default parameters" in page
    assert "parameters of this run" in page


def test_a_cell_that_never_ran_says_so() -> None:
    cells = [new.new_code_cell("never()"), new.new_code_cell("ran()", execution_count=1)]
    page = notebook_html(new.new_notebook(cells=cells), Beside(), lambda url: None)
    assert page.count("not run") == 1


def test_every_stored_figure_gets_its_place_and_its_data() -> None:
    page, beside = shown(plotly_output(scaling_figure()), plotly_output(scaling_figure()))
    assert beside.figures == 2 == page.count('data-plot="figure-')
    data = re.findall(r'<script type="application/json" data-figure="figure-1">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[0])["data"] == json.loads(scaling_figure().to_json())["data"]
    assert "<strong>Eight streams decode 5.8 times as many tokens a second as one</strong>" in page
    assert "10 repetitions · llvmpipe (LLVM 19.1.7) · commit 0a67793" in page


def test_text_in_a_figure_cannot_end_its_script() -> None:
    beside = Beside()
    figure = {"data": [{"name": "</script><script>alert(1)</script>"}], "layout": {"title": {"text": "<b>a & b</b>"}}}
    page = figure_html(figure, beside)
    assert page.count("<script") == 1 == page.count("</script>")
    assert "<strong>a &amp; b</strong>" in page


def test_a_large_figure_stands_in_a_file_beside_the_page() -> None:
    beside = Beside()
    page = figure_html({"data": [{"y": ["x" * INLINE_LIMIT]}], "layout": {}}, beside)
    assert len(page) < 1000
    assert '<script defer src="figure-1.js">' in page
    assert beside.files["figure-1.js"].startswith(b'labkitFigure("figure-1",{"data":')


@pytest.mark.parametrize("damaged", [None, [], "text", {}, {"data": 3}, {"data": [1]}, {"data": [], "layout": "no"}])
def test_a_damaged_figure_is_named_in_its_place(damaged: Any) -> None:
    page, beside = shown(display(**{"application__vnd.plotly.v1+json": damaged or {}}), display(text__plain="after"))
    assert "a figure of cell 1 could not be drawn" in page
    assert page.index("could not be drawn") < page.index("after")
    assert len(beside.problems) == 1


def test_terminal_colours_and_redrawn_lines_end_as_a_terminal_shows_them() -> None:
    page, _ = shown(
        new.new_output("stream", name="stdout", text="0%\r50%\r100%\n\x1b[31mred\x1b[0m\x1b[1mbold\x1b[0m\n")
    )
    assert "50%" not in page
    assert '100%\n<span class="ansi-red-fg">red</span><span class="ansi-bold">bold</span>' in page


def test_neighbouring_pieces_of_a_stream_are_one_text() -> None:
    page, _ = shown(*(new.new_output("stream", name="stdout", text=text) for text in ("a", "b\n", "c")))
    assert "ab\nc" in page
    assert page.count('<pre class="output') == 1


def test_a_traceback_is_shown_with_its_colours() -> None:
    page, _ = shown(new.new_output("error", ename="ValueError", evalue="no", traceback=TRACEBACK))
    assert '<pre class="output error" tabindex="0"><span class="ansi-red-fg">ValueError</span>' in page
    assert "\x1b" not in page


def test_sixty_thousand_lines_are_cut_where_it_says_how_many_and_where_the_rest_is() -> None:
    page, _ = shown(new.new_output("stream", name="stdout", text="".join(f"line {i}\n" for i in range(60_000))))
    assert "line 119\n" in page or "line 119<" in page
    assert "line 120\n" not in page
    assert "line 59999" in page
    assert '59,840 lines were left out here; all of it is in <a href="notebook.ipynb">' in page
    assert len(page) < 10_000


def test_one_endless_line_is_cut() -> None:
    page, _ = shown(new.new_output("stream", name="stdout", text="x" * 3_000_000))
    assert len(page) < 10_000


def test_outputs_past_the_pages_limit_are_left_out_visibly() -> None:
    page, _ = shown(*(display(text__html=f"<p>{'word ' * 20_000}</p>") for _ in range(10)))
    assert len(page) < PAGE_LIMIT + 10_000
    assert page.count("left out to keep this page light") == 10 - PAGE_LIMIT // 100_000


def test_html_outputs_keep_their_tables_and_lose_what_could_act() -> None:
    evil = (
        '<table style="color:red;position:fixed;background:url(https://e.example/x)">'
        '<tr><td onclick="a()">8</td></tr></table>'
        '<script>steal()</script><style>body{display:none}</style><iframe src="https://e.example"></iframe>'
        '<img src="https://e.example/p.png"><a href="javascript:go()">go</a>'
        '<svg viewBox="0 0 9 9"><rect width="3"/></svg>'
        '<link rel="stylesheet" href="https://e.example/s.css"><object data="x"></object><form action="https://e.example">'
    )
    page, _ = shown(display(text__html=evil, text__plain="table"))
    assert "<td>8</td>" in page
    assert "color: red" in page.replace(":red", ": red")
    assert '<svg viewBox="0 0 9 9"><rect width="3"></rect></svg>' in page
    for gone in (
        "script",
        "steal",
        "onclick",
        "iframe",
        "javascript",
        "position",
        "url(",
        "<img",
        "<style",
        "<link",
        "<form",
    ):
        assert gone not in page


def test_a_picture_becomes_a_file_and_a_damaged_one_is_named() -> None:
    page, beside = shown(display(image__png=base64.b64encode(PNG).decode()), display(image__png="not base64!"))
    assert beside.files == {"image-1.png": PNG}
    assert '<img class="output" src="image-1.png"' in page
    assert "a picture of cell 1 is damaged" in page


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"widgets": {}},
        {"widgets": None},
        {"widgets": {"application/vnd.jupyter.widget-state+json": {}}},
        {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"m1": {}}}}},
        {"widgets": {"application/vnd.jupyter.widget-state+json": {"version_major": 2}}},
    ],
)
def test_a_widget_without_its_state_shows_the_text_stored_beside_it(stored: dict[str, Any]) -> None:
    widget = {"application__vnd.jupyter.widget-view+json": {"model_id": "m1"}, "text__plain": "Slider(7)"}
    page, _ = shown(display(**widget), metadata=stored)
    assert "Slider(7)" in page


def test_a_progress_bar_shows_its_end_not_its_beginning() -> None:
    state = {
        "box": {"state": {"_model_name": "HBoxModel", "children": ["IPY_MODEL_bar", "IPY_MODEL_words"]}},
        "bar": {"state": {"_model_name": "FloatProgressModel", "value": 5.0, "max": 5.0}},
        "words": {"state": {"_model_name": "HTMLModel", "value": "<b>5/5</b> [00:01&lt;00:00]"}},
    }
    widget = {"application__vnd.jupyter.widget-view+json": {"model_id": "box"}, "text__plain": "0%| | 0/5"}
    metadata = {"widgets": {"application/vnd.jupyter.widget-state+json": {"state": state}}}
    page, _ = shown(display(**widget), metadata=metadata)
    assert "5.0 of 5.0 5/5 [00:01&lt;00:00]" in page
    assert "0/5]" not in page


def test_a_type_no_page_can_show_is_named() -> None:
    page, _ = shown(display(application__x_strange="1"))
    assert "of type application/x_strange cannot be shown" in page


@pytest.mark.parametrize("damaged", [None, [], {}, {"cells": 3}, {"cells": [3]}, {"cells": [{"cell_type": "code"}]}])
def test_a_damaged_notebook_never_ends_the_publishing(damaged: Any) -> None:
    assert isinstance(notebook_html(damaged, Beside(), lambda url: None), str)


def test_a_formula_stays_readable_as_its_source() -> None:
    cells = [new.new_markdown_cell("Time is $t = a_1 + b_2 n$ so\n\n$$\nx < y\n$$\n")]
    page = notebook_html(new.new_notebook(cells=cells), Beside(), lambda url: None)
    assert '<code class="math">t = a_1 + b_2 n</code>' in page
    assert '<pre tabindex="0" class="math">x &lt; y' in page
