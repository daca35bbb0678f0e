"""A stored plotly figure as a place in a page: its JSON, its title as a caption; the site's script draws it."""

import html
import json
import re
from dataclasses import dataclass, field
from typing import Any

INLINE_LIMIT = 150_000  # bytes of one figure's JSON in the page itself; larger ones stand in a file beside it
INLINE_TOTAL = 250_000  # bytes of all figures' JSON in the page itself
FIGURE_LIMIT = 8_000_000  # bytes; beyond it a browser stalls
HEIGHT = 440  # pixels, where the figure does not say


@dataclass
class Beside:
    """What a page gathers while it is rendered: files that stand beside it, its figures, what was wrong, bytes used."""

    files: dict[str, bytes] = field(default_factory=dict)
    figures: int = 0
    problems: list[str] = field(default_factory=list)
    used: int = 0
    inline: int = 0

    def add(self, stem: str, ending: str, content: bytes) -> str:
        """Keeps a file for beside the page; its name, numbered by order."""
        number = sum(name.startswith(f"{stem}-") for name in self.files) + 1
        name = f"{stem}-{number}.{ending}"
        self.files[name] = content
        return name

    def problem(self, text: str) -> str:
        """Notes a problem and returns the line that stands in its place on the page."""
        self.problems.append(text)
        return f'<p class="problem" role="note">{html.escape(text)}</p>\n'


def figure_html(document: Any, beside: Beside, what: str = "this figure") -> str:
    """The place for a figure, or a line that says why it cannot be drawn. `document` is plotly's JSON, read."""
    fault = figure_fault(document)
    if fault:
        return beside.problem(f"{what} could not be drawn: {fault}")
    layout = dict(document.get("layout") or {})
    title, subtitle = take_title(layout)
    if title or subtitle:
        layout["margin"] = dict(layout.get("margin") or {}) | {"t": 24}
    height = layout.get("height") if isinstance(layout.get("height"), int | float) else HEIGHT
    kept = {"data": document["data"], "layout": layout}
    if document.get("frames"):
        kept["frames"] = document["frames"]
    text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    if len(text) > FIGURE_LIMIT:
        return beside.problem(f"{what} is too large to draw ({len(text) / 1e6:.1f} MB); its data are in the notebook")
    beside.figures += 1
    name = f"figure-{beside.figures}"
    size = len(text.encode())
    if size <= INLINE_LIMIT and beside.inline + size <= INLINE_TOTAL:
        beside.inline += size
        safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        data = f'<script type="application/json" data-figure="{name}">{safe}</script>'
    else:
        beside.files[f"{name}.js"] = f'labkitFigure("{name}",{text});\n'.encode()
        data = f'<script defer src="{name}.js"></script>'
    words = html.escape(title or f"figure {beside.figures}", quote=True)
    caption = f"<strong>{html.escape(title)}</strong>" if title else ""
    caption += f"<span>{html.escape(subtitle)}</span>" if subtitle else ""
    return (
        f'<figure class="plot">{f"<figcaption>{caption}</figcaption>" if caption else ""}'
        f'<div class="plot-area" data-plot="{name}" style="height:{height:g}px" role="img" aria-label="{words}">'
        "<noscript>This figure is drawn by JavaScript, which is turned off.</noscript></div>"
        f"{data}</figure>\n"
    )


def figure_fault(document: Any) -> str:
    """Why `document` is no plotly figure, or an empty string."""
    if not isinstance(document, dict):
        return f"its JSON is a {type(document).__name__}, not an object"
    traces = document.get("data")
    if not isinstance(traces, list) or not all(isinstance(trace, dict) for trace in traces):
        return "its JSON has no list of traces"
    if not isinstance(document.get("layout") or {}, dict):
        return "its layout is not an object"
    return ""


def take_title(layout: dict[str, Any]) -> tuple[str, str]:
    """Takes the title and subtitle out of a layout, as plain text: a page breaks lines, plotly does not."""
    title = layout.pop("title", None)
    if isinstance(title, str):
        return plain(title), ""
    if not isinstance(title, dict):
        return "", ""
    subtitle = title.get("subtitle")
    below = subtitle.get("text") if isinstance(subtitle, dict) else ""
    return plain(title.get("text") or ""), plain(below or "")


def plain(text: Any) -> str:
    """Plotly's small markup as plain text on one line."""
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<br\s*/?>", " ", str(text)))).strip()
