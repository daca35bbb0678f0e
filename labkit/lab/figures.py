"""The lab's figures: one plotly template, and the few pictures that experiments share, drawn as plain `go.Figure`s.

A figure's title is its claim and its subtitle says n, device and commit; raw points always stand beside the interval;
series differ by symbol and dash as well as colour (the palette is Okabe and Ito's, "Color Universal Design", 2008)."""

import json
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.errors import ParameterError
from labkit.lab.png import write_png
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["Ceiling", "Interval", "bars", "claim", "describe", "interval", "pairs", "register", "scaling", "write_png"]

TITLE_WIDTH = 72  # characters; plotly does not break lines itself

Table = Any  # a pandas frame, or a mapping of column name → sequence


class Interval(NamedTuple):
    """A mean with its 95 % interval; `low` and `high` equal `mean` when one sample is all there is."""

    mean: float
    low: float
    high: float
    n: int


class Ceiling(NamedTuple):
    """A limit drawn as a dashed line: one value, or one for each x. `label` says what it is and where it is from."""

    label: str
    value: float | Mapping[float, float]


def describe(
    n: int | None = None, device: str | None = None, commit: str | None = None, unit: str = "repetitions"
) -> str:
    """A subtitle: `10 repetitions · llvmpipe (LLVM 15) · commit 0a67793`; what is not known is left out."""
    parts = [f"{n} {unit}" if n is not None else "", device or "", f"commit {commit[:7]}" if commit else ""]
    return " · ".join(part for part in parts if part)


def interval(samples: Sequence[float]) -> Interval:
    """The mean of `samples` with its 95 % interval as a verdict takes it (`labkit.measure.statistics.interval`), on
    logarithms when all are positive. One sample is its own interval. ParameterError for none, or one not finite."""
    from labkit.measure import statistics

    if statistics.positive(samples) and len(samples):
        found = statistics.interval([math.log(value) for value in samples]).exp()
    else:
        found = statistics.interval(samples)
    if found.low is None or found.high is None:
        return Interval(found.estimate, found.estimate, found.estimate, found.n)
    return Interval(found.estimate, found.low, found.high, found.n)


def scaling(
    table: Table,
    x: str,
    y: str,
    *,
    title: str,
    subtitle: str = "",
    series: str | None = None,
    ceiling: Ceiling | None = None,
    x_title: str | None = None,
    y_title: str | None = None,
    log_y: bool = False,
) -> "go.Figure":
    """How `y` grows with the knob `x`: every repetition as a point, the geometric mean as a line with 95 % intervals.

    `table` is tidy (`run.table()`: `x` is a knob in its `cell` column and `y` a metric) or wide (`x`, `y` and `series`
    are columns). `series` names the knob that tells lines apart. x is logarithmic when it spans 8× or more; y starts at
    zero, or is logarithmic with `log_y`, where a rate in proportion to x is a straight line. ParameterError when there
    is no such column, knob or metric."""
    import plotly.graph_objects as go

    groups = group(table, x, y, series)
    figure = go.Figure(layout={"template": register()})
    for index, (name, points) in enumerate(groups.items()):
        draw_series(figure, points, index, name if series else None)
    ticks = sorted({at for points in groups.values() for at in points})
    if ceiling:
        draw_ceiling(figure, ceiling, ticks)
    figure.update_xaxes(title_text=x_title or label(x), tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
        figure.update_xaxes(type="log")
    figure.update_yaxes(title_text=y_title or label(y))
    if log_y:
        if any(value <= 0 for points in groups.values() for values in points.values() for value in values):
            raise ParameterError(f"a logarithmic axis needs positive values, and {y} has others")
        figure.update_yaxes(type="log", rangemode="normal", dtick="D2", tickformat="~g")
    return claim(figure, title, subtitle)


def bars(
    table: Table,
    x: str,
    y: str,
    *,
    title: str,
    subtitle: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
) -> "go.Figure":
    """`y` for each value of `x` as bars from zero (geometric means), with the 95 % interval and every repetition.

    `table` as for `scaling`; `x` may hold text."""
    import plotly.graph_objects as go

    points = group(table, x, y, None)[""]
    names = list(points)
    summary = [interval(points[name]) for name in names]
    figure = go.Figure(layout={"template": register()})
    figure.add_bar(
        x=list(range(len(names))),
        y=[each.mean for each in summary],
        error_y=error_bars(summary) | {"color": NEUTRAL},
        marker={"color": PALETTE[0], "opacity": 0.6},
        name="geometric mean, 95 % interval",
        hovertemplate="%{y:.4g}<extra></extra>",
    )
    spread = [(at, value) for i, name in enumerate(names) for at, value in beside(i, points[name])]
    figure.add_scatter(
        x=[at for at, _ in spread],
        y=[value for _, value in spread],
        mode="markers",
        marker={"color": PALETTE[1], "size": 6, "symbol": "circle-open"},
        name="each repetition",
        hovertemplate="%{y:.4g}<extra></extra>",
    )
    figure.update_xaxes(
        title_text=x_title or label(x), tickvals=list(range(len(names))), ticktext=[str(n) for n in names]
    )
    figure.update_yaxes(title_text=y_title or label(y), rangemode="tozero")
    return claim(figure, title, subtitle)


def pairs(
    ratios: Mapping[int, float] | Sequence[float], *, title: str, subtitle: str = "", threshold: float | None = None
) -> "go.Figure":
    """The paired ratios behind a verdict, block by block, with their geometric mean and interval, the threshold.

    `ratios` maps block → ratio, or lists them in order. The axis does not start at zero: a ratio's origin is 1."""
    import plotly.graph_objects as go

    points = dict(ratios) if isinstance(ratios, Mapping) else dict(enumerate(ratios))
    middle = interval(list(points.values()))
    figure = go.Figure(layout={"template": register()})
    figure.add_scatter(
        x=list(points),
        y=list(points.values()),
        mode="markers",
        marker={"color": PALETTE[0], "size": 9, "symbol": SYMBOLS[0]},
        name="ratio of a pair",
        hovertemplate="block %{x}: %{y:.4g}×<extra></extra>",
    )
    figure.add_hline(y=middle.mean, line={"color": PALETTE[0], "width": 2}, name="geometric mean", showlegend=True)
    figure.add_hrect(
        y0=middle.low,
        y1=middle.high,
        fillcolor=PALETTE[0],
        opacity=0.15,
        line_width=0,
        name="95 % interval",
        showlegend=True,
    )
    if threshold is not None:
        figure.add_hline(
            y=threshold,
            line={"color": PALETTE[1], "width": 2, "dash": "dash"},
            name=f"threshold {threshold:g}×",
            showlegend=True,
        )
    figure.update_xaxes(title_text="block (repetition)", dtick=1 if len(points) <= 20 else None)
    figure.update_yaxes(title_text="ratio", rangemode="normal")
    return claim(figure, title, subtitle)


def claim(figure: "go.Figure", title: str, subtitle: str = "") -> "go.Figure":
    """`figure` with the claim as its title, broken into lines, and `subtitle` beneath; the same figure is returned."""
    lines = textwrap.wrap(title, TITLE_WIDTH) or [""]
    figure.update_layout(
        title={"text": "<br>".join(lines), "subtitle": {"text": subtitle}}, margin={"t": 64 + 24 * len(lines)}
    )
    return figure


def group(table: Table, x: str, y: str, series: str | None) -> dict[str, dict[Any, list[float]]]:
    """The samples of `y` as series → x → values, in order of x. See `scaling` for what a table may be."""
    columns = list(table) if isinstance(table, Mapping) else list(table.columns)
    if {"cell", "metric", "value"} <= set(columns) and not {x, y} <= set(columns):
        rows = tidy_rows(table, x, y, series)
    else:
        missing = [name for name in (x, y, series) if name is not None and name not in columns]
        if missing:
            raise ParameterError(f"the table has no column {missing[0]!r}; it has {', '.join(map(str, columns))}")
        names = table[series] if series else [""] * len(table[x])
        rows = ((str(name), at, float(value)) for name, at, value in zip(names, table[x], table[y], strict=True))
    found: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, at, value in rows:
        found[name][at.item() if hasattr(at, "item") else at].append(value)
    if not found:
        raise ParameterError(f"there are no samples of {y!r} over {x!r}: nothing to draw")
    numeric = all(isinstance(at, int | float) for points in found.values() for at in points)
    return {name: dict(sorted(points.items())) if numeric else dict(points) for name, points in found.items()}


def tidy_rows(table: Table, x: str, y: str, series: str | None) -> Iterable[tuple[str, Any, float]]:
    """(series, x, value) of each row of a tidy table whose metric is `y` and whose cell has the knob `x`."""
    for cell, metric, value in zip(table["cell"], table["metric"], table["value"], strict=True):
        knobs = json.loads(cell) if isinstance(cell, str) else dict(cell)
        if metric == y and x in knobs:
            yield (str(knobs.get(series, "")) if series else ""), knobs[x], float(value)


def draw_series(figure: "go.Figure", points: Mapping[Any, list[float]], index: int, name: str | None) -> None:
    """Adds one series: raw points, and the line of geometric means with error bars."""
    colour, symbol = PALETTE[index % len(PALETTE)], SYMBOLS[index % len(SYMBOLS)]
    summary = [interval(values) for values in points.values()]
    raw = [(at, value) for at, values in points.items() for value in values]
    figure.add_scatter(
        x=[at for at, _ in raw],
        y=[value for _, value in raw],
        mode="markers",
        marker={"color": colour, "size": 6, "symbol": f"{symbol}-open", "opacity": 0.55},
        name="each repetition" if name is None else f"{name}: each repetition",
        legendgroup=name or "",
        showlegend=name is None,
        hovertemplate="%{x}: %{y:.4g}<extra></extra>",
    )
    figure.add_scatter(
        x=list(points),
        y=[each.mean for each in summary],
        error_y=error_bars(summary),
        customdata=[[each.low, each.high, each.n] for each in summary],
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": DASHES[index % len(DASHES)]},
        marker={"color": colour, "size": 9, "symbol": symbol},
        name="geometric mean, 95 % interval" if name is None else name,
        legendgroup=name or "",
        hovertemplate="%{x}: %{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}], n=%{customdata[2]}<extra></extra>",
    )


def draw_ceiling(figure: "go.Figure", ceiling: Ceiling, ticks: Sequence[float]) -> None:
    """Adds the dashed line of a physical limit; its label stands in the legend, where it is never cut off."""
    limits = ceiling.value if isinstance(ceiling.value, Mapping) else dict.fromkeys(ticks, ceiling.value)
    figure.add_scatter(
        x=list(limits),
        y=list(limits.values()),
        mode="lines",
        line={"color": NEUTRAL, "width": 2, "dash": "dash"},
        name=ceiling.label,
        hovertemplate="%{y:.4g}<extra>" + ceiling.label + "</extra>",
    )


def error_bars(summary: Sequence[Interval]) -> dict[str, Any]:
    """Plotly's asymmetric error bars for intervals."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.mean for each in summary],
        "arrayminus": [each.mean - each.low for each in summary],
        "thickness": 1.5,
        "width": 5,
    }


def beside(centre: int, values: Sequence[float]) -> list[tuple[float, float]]:
    """Values spread evenly over a narrow strip around `centre`, in their order, so points do not hide one another."""
    n = len(values)
    return [(centre + 0.3 * ((i + 0.5) / n - 0.5), value) for i, value in enumerate(values)]


def label(name: str) -> str:
    """A readable axis title: a registered metric with its unit, `decode_tok_s` → `decode (tok/s)`; else the words."""
    from labkit.measure.metrics import METRICS

    words = name.split("_")
    unit = METRICS[name].unit if name in METRICS else "1"
    if unit == "1":
        return " ".join(words)
    parts = re.split(r"[^a-z]+", unit.lower())
    for start in range(len(words) - len(parts) + 1):
        if words[start : start + len(parts)] == parts:
            words[start : start + len(parts)] = []
            break
    return f"{' '.join(words) or name} ({unit})"
