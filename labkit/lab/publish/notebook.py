"""An executed notebook as HTML: prose as it is, code folded, every output in place, long ones cut where it says so."""

import base64
import binascii
import html
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import escape

from labkit.lab.publish.markdown import Resolve, highlight, render
from labkit.lab.publish.plots import Beside, figure_html
from labkit.lab.publish.read import mapping
from labkit.lab.publish.sanitise import sanitise

NOTEBOOK = "notebook.ipynb"
HEAD_LINES, TAIL_LINES = 120, 40  # kept of a long text output
LINE_LIMIT = 2_000  # characters of one line
HTML_LIMIT = 150_000  # bytes of one HTML output
IMAGE_LIMIT = 4_000_000
PAGE_LIMIT = 450_000  # bytes of outputs in one page, figures aside
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
PLOTLY = "application/vnd.plotly.v1+json"
IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


def notebook_html(document: Any, beside: Beside, resolve: Resolve) -> str:
    """The cells of a notebook (its JSON, read) as HTML; what cannot be shown says so in its place."""
    cells = document.get("cells") if isinstance(document, Mapping) else None
    if not isinstance(cells, list):
        return beside.problem("the executed notebook is damaged: it has no list of cells")
    widgets = widget_states(document)
    parts = []
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, Mapping):
            parts.append(beside.problem(f"cell {number} of the notebook is damaged"))
        elif cell.get("cell_type") == "markdown":
            text = joined(cell.get("source"))
            parts.append(
                f'<div class="prose">{render(text, attachments(cell, beside, resolve), math=True, below=2)}</div>\n'
            )
        elif cell.get("cell_type") == "code":
            parts.append(code_cell(cell, number, beside, widgets, resolve))
        else:
            parts.append(f'<pre tabindex="0">{html.escape(joined(cell.get("source")))}</pre>\n')
    return "".join(parts)


def code_cell(
    cell: Mapping[str, Any], number: int, beside: Beside, widgets: Mapping[str, Any], resolve: Resolve
) -> str:
    """A code cell: its source folded away under its first line, then its outputs."""
    source = joined(cell.get("source"))
    metadata = mapping(cell.get("metadata"))
    tags = metadata.get("tags") or []
    outputs = [output for output in cell.get("outputs") or [] if isinstance(output, Mapping)]
    state = mapping(metadata.get("lab")).get("state")
    count = cell.get("execution_count")
    name = {"parameters": "default parameters", "injected-parameters": "parameters of this run"}.get(
        next((tag for tag in tags if tag.endswith("parameters")), ""), ""
    )
    teaser = name or next((line.strip() for line in source.splitlines() if line.strip()), "")
    mark = (
        f"In [{count}]" if count else "not run" if state == "not-run" or (source.strip() and not outputs) else "In [ ]"
    )
    parts = []
    if source.strip():
        summary = f'<span class="count">{mark}</span> <code>{html.escape(teaser[:110])}</code>'
        parts.append(f'<details class="code"><summary>{summary}</summary>{highlight(source, "python")}</details>')
    parts += [output_html(output, number, beside, widgets, resolve) for output in merge_streams(outputs)]
    return f'<div class="cell">{"".join(parts)}</div>\n' if parts else ""


def output_html(
    output: Mapping[str, Any], number: int, beside: Beside, widgets: Mapping[str, Any], resolve: Resolve
) -> str:
    """One output. Past the page's limit only figures and short notes are shown, with a link to the notebook."""
    kind = output.get("output_type")
    data = mapping(output.get("data"))
    if PLOTLY in data:
        return figure_html(data[PLOTLY], beside, f"a figure of cell {number}")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        shown = text_html(joined(output.get("text")), name)
    elif kind == "error":
        trace = "\n".join(str(line) for line in output.get("traceback") or [])
        words = trace or f"{output.get('ename', 'Error')}: {output.get('evalue', '')}"
        shown = text_html(words, "error")
    elif WIDGET in data and "text/html" not in data:
        shown = widget_html(data, widgets)
    else:
        shown = data_html(data, number, beside, resolve)
    size = len(shown.encode())
    if beside.used + size > PAGE_LIMIT:
        return left_out(f"an output of cell {number} ({kilobytes(size)}) was left out to keep this page light")
    beside.used += size
    return shown


def data_html(data: Mapping[str, Any], number: int, beside: Beside, resolve: Resolve) -> str:
    """The richest form of a display that a page can hold: HTML, a picture, markdown, or text."""
    if "text/html" in data:
        text = joined(data["text/html"])
        if len(text.encode()) > HTML_LIMIT:
            return left_out(f"an HTML output of cell {number} ({kilobytes(len(text.encode()))}) was left out")
        return (
            f'<div class="output html scroll" tabindex="0" role="group" aria-label="an output">{sanitise(text)}</div>\n'
        )
    if "image/svg+xml" in data:
        name = beside.add("image", "svg", joined(data["image/svg+xml"]).encode())
        return image_html(name, number)
    for kind, ending in IMAGES.items():
        if kind in data:
            return picture(joined(data[kind]), ending, number, beside)
    if "text/markdown" in data:
        return f'<div class="output prose">{render(joined(data["text/markdown"]), resolve, math=True, below=2)}</div>\n'
    if "text/plain" in data:
        return text_html(joined(data["text/plain"]), "plain")
    if "application/json" in data:
        import json

        return text_html(json.dumps(data["application/json"], indent=2, ensure_ascii=False), "plain")
    if not data:
        return ""
    return left_out(f"an output of cell {number} of type {', '.join(sorted(map(str, data)))} cannot be shown in a page")


def picture(encoded: str, ending: str, number: int, beside: Beside) -> str:
    """A base64 picture as a file beside the page."""
    try:
        content = base64.b64decode(re.sub(r"\s+", "", encoded), validate=True)
    except (binascii.Error, ValueError):
        return beside.problem(f"a picture of cell {number} is damaged: it is not base64")
    if len(content) > IMAGE_LIMIT:
        return left_out(f"a picture of cell {number} ({kilobytes(len(content))}) was left out")
    return image_html(beside.add("image", ending, content), number)


def image_html(name: str, number: int) -> str:
    return f'<img class="output" src="{name}" alt="picture made by cell {number}" loading="lazy">\n'


def text_html(text: str, kind: str) -> str:
    """Terminal text with its colours; of long text the first and last lines, and how many lie between."""
    lines = [last_state(line)[:LINE_LIMIT] for line in text.rstrip("\n").split("\n")]
    if not any(lines):
        return ""
    gap = len(lines) - HEAD_LINES - TAIL_LINES
    if gap <= 0:
        return f'<pre class="output {kind}" tabindex="0">{terminal_html(chr(10).join(lines))}</pre>\n'
    head, tail = "\n".join(lines[:HEAD_LINES]), "\n".join(lines[-TAIL_LINES:])
    return (
        f'<pre class="output {kind}" tabindex="0">{terminal_html(head)}</pre>\n{left_out(f"{gap:,} lines were left out here")}'
        f'<pre class="output {kind}" tabindex="0">{terminal_html(tail)}</pre>\n'
    )


def terminal_html(text: str) -> str:
    """Text with a terminal's colours as HTML."""
    if "\x1b" not in text:
        return str(escape(text))  # the converter takes seconds to import
    from nbconvert.filters.ansi import ansi2html

    return str(ansi2html(text))


def last_state(line: str) -> str:
    """What a terminal shows of a line that returned to its start: progress bars redraw themselves with `\\r`."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def left_out(text: str) -> str:
    return f'<p class="left-out">{html.escape(text)}; all of it is in <a href="{NOTEBOOK}">{NOTEBOOK}</a>.</p>\n'


def widget_states(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stored models of the notebook's widgets by id; empty when the notebook kept none."""
    widgets = mapping(mapping(document.get("metadata")).get("widgets"))
    return mapping(mapping(widgets.get(WIDGET_STATE)).get("state"))


def widget_html(data: Mapping[str, Any], widgets: Mapping[str, Any]) -> str:
    """A widget as the words of its final state (a page has no kernel), else the text stored beside it."""
    model = mapping(data[WIDGET]).get("model_id")
    words = widget_words(str(model), widgets, depth=0) or joined(data.get("text/plain"))
    return f'<p class="widget" title="an interactive widget, shown as text">{html.escape(words[:LINE_LIMIT])}</p>\n'


def widget_words(model_id: str, widgets: Mapping[str, Any], depth: int) -> str:
    """The descriptions and values of a widget and of those inside it, in order."""
    state = mapping(mapping(widgets.get(model_id)).get("state"))
    if not state or depth > 8:
        return ""
    words = []
    for name in ("description", "value"):
        value = state.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            words.append(html.unescape(re.sub(r"<[^>]+>", "", str(value))))
    if "Progress" in str(state.get("_model_name", "")) and state.get("max") is not None:
        words = [*words[:-1], f"{state.get('value')} of {state['max']}"]
    children = state.get("children")
    for child in children if isinstance(children, list) else []:
        words.append(widget_words(str(child).removeprefix("IPY_MODEL_"), widgets, depth + 1))
    return " ".join(word for word in words if word.strip())


def merge_streams(outputs: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Outputs with neighbouring pieces of one stream put together."""
    merged: list[Mapping[str, Any]] = []
    for output in outputs:
        last = merged[-1] if merged else {}
        if output.get("output_type") == "stream" == last.get("output_type") and output.get("name") == last.get("name"):
            merged[-1] = {**last, "text": joined(last.get("text")) + joined(output.get("text"))}
        else:
            merged.append(output)
    return merged


def attachments(cell: Mapping[str, Any], beside: Beside, resolve: Resolve) -> Resolve:
    """`resolve`, which also finds the pictures attached to a markdown cell."""
    pictures = {}
    for name, forms in mapping(cell.get("attachments")).items():
        for kind, ending in IMAGES.items():
            if kind in mapping(forms):
                try:
                    content = base64.b64decode(joined(forms[kind]))
                except binascii.Error:
                    continue
                pictures[f"attachment:{name}"] = beside.add("attachment", ending, content)
    return lambda url: pictures.get(url) or resolve(url)


def joined(text: Any) -> str:
    """Notebook text: a string, or a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else "" if text is None else str(text)


def kilobytes(size: int) -> str:
    return f"{max(1, round(size / 1000)):,} kB"
