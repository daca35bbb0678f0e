"""`explore()`: any metric of all runs over any knob, parameter or condition, and each point's run."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.figures import SYMBOLS, Interval, claim, interval, label, register
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.run_html import run_html
from labkit.palette import NEUTRAL, PALETTE
from labkit.show.pieces import Html, escape, mark, paragraph, table
from labkit.widgets.runs_query import KNOB, Point, Samples
from labkit.widgets.view import View

MOST_FACETS, MOST_COLOURS, MOST_LISTED = 6, 7, 20
NOTHING = "(nothing)"
FILES = ("run.json", "notebook.ipynb", "figure.json", "measurements.csv", "audit.json")


class Explorer(View):
    """All samples of some runs; see `explore`."""

    what = "explorer"
    plots = True

    def __init__(self, runs: Sequence[StoredRun], damaged: Sequence[str], site: Path | None) -> None:
        super().__init__()
        self.samples = Samples(runs)
        self.damaged = [*damaged, *self.samples.skipped]
        self.site = site
        self.metrics, self.dimensions = self.samples.metrics, self.samples.dimensions
        if not self.metrics:
            raise RunError("these runs have no samples to explore; `lab runs` says what there is")
        self.metric = self.metrics[0]
        knobs = [name for name in self.dimensions if name.startswith(KNOB)]
        self.x = max(knobs, key=self._values_of, default="started")
        self.colour, self.facet, self.opened = "experiment", "", ""
        self.points: list[Point] = []
        self._means: dict[tuple[float, ...], Interval] = {}
        self._fields: dict[str, Any] = {}
        self.pick()

    def _values_of(self, dimension: str) -> int:
        """How many values of a dimension have samples of the metric."""
        return len({str(one.x) for one in self.samples.points(self.metric, dimension) if one.x != ""})

    def pick(
        self, metric: str | None = None, x: str | None = None, colour: str | None = None, facet: str | None = None
    ) -> "Explorer":
        """Draw another metric over another dimension; "" for no colour or no facet. ParameterError for unknown names."""
        chosen = (
            self.metric if metric is None else metric, self.x if x is None else x,
            self.colour if colour is None else colour, self.facet if facet is None else facet,
        )  # fmt: skip
        self.points = [one for one in self.samples.points(*chosen) if one.x != ""]
        self.metric, self.x, self.colour, self.facet = chosen
        if self.opened not in self.shown_runs:
            self.opened = ""
        self.error = ""
        self.changed(now=True)
        return self

    def open(self, run: str) -> "Explorer":
        """Show a run of the figure; "" for none. ParameterError for a run that has no point there."""
        if run and run not in self.shown_runs:
            raise ParameterError(f"the figure has no point of {run!r}; it has {', '.join(self.shown_runs) or 'none'}")
        self.opened = run
        self.changed(now=True)
        return self

    @property
    def shown_runs(self) -> list[str]:
        """The runs that have a point, the newest first."""
        return sorted({one.run for one in self.points}, reverse=True)

    def mean(self, one: Point) -> Interval:
        """A point's mean with its interval."""
        if one.values not in self._means:
            self._means[one.values] = interval(one.values)
        return self._means[one.values]

    def state(self) -> dict[str, Any]:
        """What is drawn, point by point, and what could be."""
        return {
            "metric": self.metric, "x": self.x, "colour": self.colour, "facet": self.facet, "opened": self.opened,
            "error": self.error, "metrics": self.metrics, "dimensions": self.dimensions, "runs": self.shown_runs,
            "points": [{"run": one.run, "cell": one.cell, "x": one.x, "colour": one.colour, "facet": one.facet,
                        **self.mean(one)._asdict()} for one in self.points],
        }  # fmt: skip

    def html(self) -> Html:
        """The run that is open, with its files; else the runs of the figure."""
        parts = []
        if self.opened:
            run = self.samples.runs[self.opened]
            parts = [run_html(run.record), paragraph("Open:", self._links(run))]
        else:
            rows = []
            for name in self.shown_runs[:MOST_LISTED]:
                record = self.samples.runs[name].record
                verdict = str((record.verdict or {}).get("outcome", ""))
                rows.append((self._link(self.samples.runs[name], "run.json", name), mark(record.state),
                             verdict and mark(verdict), str((record.device or {}).get("name", ""))))  # fmt: skip
            more = len(self.shown_runs) - len(rows)
            parts.append(table(("run", "state", "verdict", "device"), rows))
            parts += [paragraph(f"and {more} more")] if more > 0 else []
        parts += [paragraph(mark("warn"), f"left out: {text}") for text in self.damaged[:3]]
        return Html("".join(parts))

    def _links(self, run: StoredRun) -> Html:
        found = [self._link(run, name, name) for name in FILES if (run.folder / name).is_file()]
        if self.site is not None and (page := self.site / "runs" / run.record.id / "index.html").is_file():
            found.append(_anchor(page, "its published page"))
        return Html(" · ".join(found))

    def _link(self, run: StoredRun, name: str, words: str) -> Html:
        return _anchor(run.folder / name, words)

    def figure(self) -> Any:
        """A strip a facet: a point a cell of a run, with its interval, colours and symbols by the colour's value."""
        if not self.points:
            return None
        from plotly.subplots import make_subplots

        by_facet: dict[str, list[Point]] = defaultdict(list)
        for one in self.points:
            by_facet[one.facet].append(one)
        facets = sorted(by_facet)[:MOST_FACETS]
        names = sorted({one.colour for one in self.points})
        places = {name: min(place, MOST_COLOURS - 1) for place, name in enumerate(names)}
        titles = [f"{short(self.facet)} {name or 'not told'}" for name in facets] if self.facet else None
        figure = make_subplots(rows=1, cols=len(facets), shared_yaxes=True, subplot_titles=titles)
        told: set[str] = set()
        for column, facet in enumerate(facets, 1):
            for name in names:
                points = [one for one in by_facet[facet] if one.colour == name]
                if points:
                    figure.add_trace(self._trace(points, name, places[name], name not in told), row=1, col=column)
                    told.add(name)
            figure.update_xaxes(title_text=short(self.x), row=1, col=column)
        numbers = all(isinstance(one.x, int | float) for one in self.points)
        words = not numbers and self.x != "started"
        if words:
            figure.update_xaxes(type="category", categoryorder="category ascending")
        elif not numbers:
            figure.update_xaxes(type="date")
        elif min(one.x for one in self.points) > 0 and (
            max(one.x for one in self.points) >= 8 * min(one.x for one in self.points)
        ):
            figure.update_xaxes(type="log", dtick="D2", tickformat="~g")
        figure.update_yaxes(title_text=label(self.metric), row=1, col=1)
        figure.update_layout(template=register(), height=560 if words else 460)
        figure.update_yaxes(rangemode="tozero")
        left_out = f" · the first {MOST_FACETS} of {len(by_facet)} facets" if len(by_facet) > MOST_FACETS else ""
        said = f"{len(self.points)} cells of {len(self.shown_runs)} runs; means with 95 % intervals{left_out}"
        claim(figure, f"{self.metric} over {short(self.x)}", said)
        figure.update_layout(margin={"t": figure.layout.margin.t + (28 if self.facet else 0)})
        if words:  # names are set aslant where they are long
            figure.update_layout(legend={"y": -0.6}, margin={"b": 150})
        return figure

    def _trace(self, points: Sequence[Point], name: str, place: int, first: bool) -> Any:
        import plotly.graph_objects as go

        means = [self.mean(one) for one in points]
        return go.Scatter(
            x=[one.x for one in points], y=[one.mean for one in means], mode="markers", name=name or "not told",
            legendgroup=name, showlegend=first and bool(self.colour),
            error_y={"type": "data", "symmetric": False, "array": [one.high - one.mean for one in means],
                     "arrayminus": [one.mean - one.low for one in means], "thickness": 1.2, "width": 3, "color": NEUTRAL},
            marker={"color": PALETTE[place % len(PALETTE)], "symbol": SYMBOLS[place % len(SYMBOLS)], "size": [
                14 if one.run == self.opened else 9 for one in points]},
            customdata=[[one.run, one.cell, each.n] for one, each in zip(points, means, strict=True)],
            hovertemplate="%{y:.4g}, n=%{customdata[2]}<br>%{customdata[1]}<br>%{customdata[0]}<extra></extra>",
        )  # fmt: skip

    def controls(self) -> Sequence[Any]:
        """Four choices for the figure and one of a run."""
        import ipywidgets as widgets

        style = {"style": {"description_width": "5em"}, "layout": widgets.Layout(width="19em")}
        optional = [NOTHING, *self.dimensions]
        self._fields = {
            "metric": widgets.Dropdown(options=self.metrics, value=self.metric, description="metric", **style),
            "x": widgets.Dropdown(options=self.dimensions, value=self.x, description="x", **style),
            "colour": widgets.Dropdown(options=optional, value=self.colour or NOTHING, description="colour", **style),
            "facet": widgets.Dropdown(options=optional, value=self.facet or NOTHING, description="facet", **style),
        }
        for name, field in self._fields.items():
            field.observe(
                lambda change, name=name: self.attempt(lambda: self._picked(name, change["new"])), names="value"
            )
        runs = widgets.Dropdown(options=[NOTHING, *self.shown_runs], description="open run",
                                style={"description_width": "5em"}, layout=widgets.Layout(width="38em"))  # fmt: skip
        runs.observe(lambda change: self.attempt(lambda: self._opened(change["new"])), names="value")
        row = widgets.HBox(list(self._fields.values()), layout=widgets.Layout(flex_flow="row wrap"))
        self._fields["run"] = runs
        return row, runs

    def _picked(self, name: str, value: str) -> None:
        wanted = "" if value == NOTHING else value
        if getattr(self, name) != wanted:
            self.pick(**{name: wanted})

    def _opened(self, value: str | None) -> None:
        wanted = "" if value in (None, NOTHING) else str(value)
        if wanted != self.opened:
            self.open(wanted)

    def follow_controls(self) -> None:
        """The list of runs follows the figure."""
        if self._fields and list(self._fields["run"].options) != [NOTHING, *self.shown_runs]:
            self._fields["run"].options = [NOTHING, *self.shown_runs]
            self._fields["run"].value = self.opened or NOTHING

    def __repr__(self) -> str:
        return f"<explorer of {len(self.samples.runs)} runs: {self.metric} over {self.x}, {len(self.points)} points>"


def short(name: str) -> str:
    """A dimension as an axis has it."""
    return name.partition(".")[2] or name


def _anchor(path: Path, words: str) -> Html:
    """A link from where the notebook is."""
    address = os.path.relpath(path, Path.cwd()).replace(os.sep, "/")
    return Html(f'<a href="{escape(address)}" target="_blank">{escape(words)}</a>')


def explore(runs: "Lab | Sequence[StoredRun] | None" = None, **chosen: str) -> Explorer:
    """A view of any metric of all runs over any knob of their cells (`cell.width`), parameter (`parameters.kv`) or
    condition (`device`, `started`), with a colour and a facet, and of each run behind it.

    `runs`: a `Lab`, or what `lab.runs(...)` gave; the lab around by default. `chosen`: metric, x, colour, facet to begin
    with. Without a browser: `view.pick(...)`, `view.open(run)`, `view.state()`. Raises LabError without DuckDB, RunError
    where there are no samples, ParameterError for unknown names."""
    lab = runs if isinstance(runs, Lab) else Lab() if runs is None else None
    listed = lab.runs() if lab is not None else runs
    if not isinstance(listed, Sequence) or not all(isinstance(run, StoredRun) for run in listed):
        raise ParameterError(f"explore({runs!r:.60}): give a Lab or a list of its runs")
    if unknown := [name for name in chosen if name not in ("metric", "x", "colour", "facet")]:
        raise ParameterError(f"{unknown[0]!r} is nothing to choose; there are metric, x, colour, facet")
    root = lab.root if lab is not None else listed[0].folder.parents[2] if listed else None
    view = Explorer(listed, getattr(listed, "damaged", ()), root / "site" if root is not None else None)
    return view.pick(**chosen) if chosen else view


def main() -> None:
    """`python -m labkit.widgets.explore [METRIC [X]]`: the lab's samples as a page on standard output."""
    import sys

    try:
        view = explore(None, **dict(zip(("metric", "x"), sys.argv[1:3], strict=False)))
        print(view.page("Runs"))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
