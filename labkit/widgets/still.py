"""A view's picture apart from its controls: what a display holds of a figure, and a page that stands alone."""

import json
from typing import Any

from labkit.show.pieces import Html, escape

PLOTLY = "application/vnd.plotly.v1+json"
CONFIG = {"displayModeBar": False, "displaylogo": False}  # `responsive` takes the height of a figure in an `Output`
STYLE = (
    ":root{color-scheme:light dark}body{max-width:72em;margin:2em auto;padding:0 1em;font-family:system-ui,sans-serif}"
    "th,td{padding:0.15em 0.6em}"
)


def figure_bundle(figure: Any) -> dict[str, Any]:
    """A plotly figure as a display's data: its JSON, which every notebook page draws, and its title as text."""
    document = json.loads(figure.to_json())
    title = figure.layout.title.text or "figure"
    return {PLOTLY: document | {"config": CONFIG}, "text/plain": title.replace("<br>", " ")}


def page(title: str, body: Html, figure: Any = None) -> str:
    """An HTML page of a picture in words and, below, its figure, with what draws it inside."""
    drawn = (
        figure.to_html(full_html=False, include_plotlyjs=True, config=CONFIG | {"responsive": True})
        if figure is not None
        else ""
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n{body}{drawn}</body></html>\n"
    )
