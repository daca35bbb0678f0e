"""Where a view stands in a notebook: widgets that follow it, and beside them the picture that stays when they are gone.

The widgets hold the live picture. The cell's other outputs hold the same picture as plain HTML and a plain figure; they
are hidden for as long as the widgets are there, and are what a page without a kernel shows. plotly 7.1 does not redraw a
display that is updated, so the live figure is drawn anew in an `Output`, and the kept one again when the view is closed.
"""

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from labkit.show.pieces import Html
from labkit.widgets.still import figure_bundle

if TYPE_CHECKING:
    from labkit.widgets.view import View

WIDGET = "application/vnd.jupyter.widget-view+json"
WORDS_S, PLOT_S, STILL_S = 0.1, 1.0, 2.0  # between two updates of the words, the figure, and what the notebook keeps
BYTES_S = 1e6  # of words a second, at most
# a widget's text stands in lines as high as a button; the rest is how the notebook shows any HTML
WORDS = (
    ".labkit-words {line-height: var(--jp-content-line-height, 1.6); padding-right: 0} "
    ".labkit-words.jp-RenderedHTMLCommon table {margin-left: 0}"
)
NOTE = Html("<p>The controls need a running notebook; below is the picture they left.</p>\n")


class Face:
    """One place of one view: made where the cell that shows it runs."""

    def __init__(self, view: "View") -> None:
        import ipywidgets
        from IPython.display import display

        self.view = view
        self.mark = f"labkit-still-{secrets.token_hex(4)}"
        self._lock = threading.RLock()
        self._due = {"words": 0.0, "plot": 0.0, "still": 0.0}
        self._closed = False
        self.words = ipywidgets.HTML()
        self.plot = ipywidgets.Output() if view.plots else None
        parts = [ipywidgets.HTML(self._hiding()), *view.controls(), self.words, *([self.plot] if self.plot else [])]
        self.box = ipywidgets.VBox(parts)
        model = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        bundle = {WIDGET: model, "text/html": NOTE, "text/plain": repr(view)}
        self.live = display(bundle, raw=True, display_id=True)
        self.still = display(self._kept(), raw=True, display_id=True)
        self.drawn = display(self._figure(view.figure()), raw=True, display_id=True) if self.plot else None
        self.follow(now=True)

    def _hiding(self) -> str:
        """The style that hides the kept picture; it goes with the widgets."""
        output = f".jp-OutputArea-child:has(.{self.mark})"
        also = f", {output} + .jp-OutputArea-child" if self.view.plots else ""
        return f"<style>.{self.mark}, {output}{also} {{display: none}} {WORDS}</style>"

    def _kept(self) -> dict[str, Any]:
        # where the widgets are lost, what the notebook says of them is hidden; this goes when others clean the HTML
        lost = f".jp-OutputArea-child:has(+ .jp-OutputArea-child .{self.mark}):not(:has(.widget-box))"
        words = f'<div class="{self.mark}">{self.view.picture()}</div><style>{lost} {{display: none}}</style>'
        return {"text/html": words, "text/plain": repr(self.view)}

    def _figure(self, figure: Any) -> dict[str, Any]:
        return {"text/html": "", "text/plain": ""} if figure is None else figure_bundle(figure)

    def follow(self, now: bool = False) -> None:
        """Bring the page up to date: each part, unless it was a moment ago."""
        with self._lock:
            if self._closed:
                return
            self.view.follow_controls()
            if self._take("words", now):
                text = self.view.picture()
                self.words.value = f'<div class="jp-RenderedHTMLCommon labkit-words">{text}</div>'
                self._due["words"] = time.monotonic() + WORDS_S + len(text) / BYTES_S
            figure = None
            if self.plot is not None and self._take("plot", now):
                figure = self.view.figure()
                shown = {"output_type": "display_data", "data": self._figure(figure), "metadata": {}}
                self.plot.outputs = (shown,) if figure is not None else ()
                self._due["plot"] = time.monotonic() + PLOT_S
            if self._take("still", now):
                self.still.update(self._kept(), raw=True)
                if self.drawn is not None:
                    self.drawn.update(self._figure(figure or self.view.figure()), raw=True)
                self._due["still"] = time.monotonic() + STILL_S

    def _take(self, part: str, now: bool) -> bool:
        return now or time.monotonic() >= self._due[part]

    def close(self) -> None:
        """Take the widgets away and show the kept picture."""
        with self._lock:
            if self._closed:
                return
            self.follow(now=True)
            self._closed = True
            self.live.update({"text/html": "", "text/plain": ""}, raw=True)
            if self.drawn is not None:  # drawn anew, since what is there is the figure of the beginning
                figure = self.view.figure()
                height = (figure.layout.height if figure is not None else 0) or 450
                self.drawn.update({"text/html": f'<div style="height:{height}px"></div>'}, raw=True)
                self.drawn.update(self._figure(figure), raw=True)
            for part in (*self.box.children, self.box):
                part.close()
