"""A metric as its repetitions come: the mean of the first n with its 95 % interval, over n, a line a cell."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.lab.figures import SYMBOLS, Interval, claim, interval, label, register
from labkit.lab.measurements import Measurement
from labkit.lab.plan import cell_words
from labkit.lab.template import DASHES
from labkit.palette import PALETTE, tint

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_CELLS = 6  # drawn; more cannot be told apart
MOST_POINTS = 25  # of n along one line: an interval takes a bootstrap


class Tightening:
    """The samples of a run by metric and cell; intervals are computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[float, Interval]] = {}

    def intervals(self, metric: str, cell: str, values: Sequence[float]) -> list[tuple[int, Interval]]:
        """(n, interval of the first n values) for n from 1 on, at most `MOST_POINTS` of them, the last always there."""
        step = -(-len(values) // MOST_POINTS)
        counts = sorted({*range(len(values), 0, -step), 1}) if values else []
        found = []
        for n in counts:
            key = (metric, cell, n)
            known = self._known.get(key)
            if known is None or known[0] != sum(values[:n]):
                known = self._known[key] = (sum(values[:n]), interval(values[:n]))
            found.append((n, known[1]))
        return found

    def draw(self, rows: Sequence[Measurement], metric: str, title: str) -> "go.Figure | None":
        """The figure, None before there is a sample of `metric`."""
        import plotly.graph_objects as go

        cells = samples_of(rows, metric)
        if not cells:
            return None
        figure = go.Figure(layout={"template": register(), "height": 380 + 20 * min(len(cells), MOST_CELLS)})
        names = labels(cells)
        for place, cell in enumerate(list(names)[:MOST_CELLS]):
            points = self.intervals(metric, cell, cells[cell])
            for trace in traces(place, names[cell], cells[cell], points):
                figure.add_trace(trace)
        few = max(map(len, cells.values())) <= 20
        figure.update_xaxes(title_text="repetitions so far", tickformat="d", dtick=1 if few else None)
        figure.update_yaxes(title_text=label(metric), rangemode="normal")
        left_out = f" · the first {MOST_CELLS} of {len(cells)} cells" if len(cells) > MOST_CELLS else ""
        return claim(figure, title, f"mean of the repetitions so far with its 95 % interval; each repetition{left_out}")


def samples_of(rows: Sequence[Measurement], metric: str) -> dict[str, list[float]]:
    """The values of a metric by cell, in the order they came."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == metric:
            found.setdefault(row.cell, []).append(row.value)
    return found


def labels(cells: Iterable[str]) -> dict[str, str]:
    """What tells each cell from the others, `streams=8, kv=f16`, in the order of their values."""
    knobs = {cell: json.loads(cell) for cell in cells}
    values: dict[str, set[str]] = {}
    for cell in knobs.values():
        for name, value in cell.items():
            values.setdefault(name, set()).add(json.dumps(value))
    telling = [name for name, found in values.items() if len(found) > 1] or list(values)
    ordered = sorted(knobs, key=lambda cell: [_place(knobs[cell].get(name)) for name in telling])
    return {
        cell: cell_words({name: knobs[cell][name] for name in telling if name in knobs[cell]}) or "all"
        for cell in ordered
    }


def _place(value: Any) -> tuple[bool, float, str]:
    """Where a value comes in an order: numbers by size, then the rest by their words."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, "" if number else str(value)


def traces(place: int, name: str, values: Sequence[float], points: Sequence[tuple[int, Interval]]) -> list[Any]:
    """The band, the line and the raw points of one cell."""
    import plotly.graph_objects as go

    colour, symbol = PALETTE[place % len(PALETTE)], SYMBOLS[place % len(SYMBOLS)]
    counts = [n for n, _ in points]
    band = go.Scatter(
        x=[*counts, *reversed(counts)],
        y=[*(one.high for _, one in points), *(one.low for _, one in reversed(points))],
        mode="lines", fill="toself", fillcolor=tint(colour, 0.18), line={"width": 0}, hoverinfo="skip", legendgroup=name,
        showlegend=False,
    )  # fmt: skip
    line = go.Scatter(
        x=counts, y=[one.mean for _, one in points], mode="lines", name=name, legendgroup=name,
        line={"color": colour, "width": 2, "dash": DASHES[place % len(DASHES)]},
        customdata=[[one.low, one.high] for _, one in points],
        hovertemplate="after %{x}: %{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra>" + name + "</extra>",
    )  # fmt: skip
    raw = go.Scatter(
        x=list(range(1, len(values) + 1)), y=list(values), mode="markers", legendgroup=name, showlegend=False,
        marker={"color": colour, "size": 6, "symbol": f"{symbol}-open", "opacity": 0.6},
        hovertemplate="repetition %{x}: %{y:.4g}<extra>" + name + "</extra>",
    )  # fmt: skip
    return [band, line, raw]
