"""The picture of claims against physics: what each implies over what its device can do, with the diagonal between."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.audit.implied import ImpliedPoint
from labkit.errors import ParameterError
from labkit.lab.figures import claim
from labkit.lab.template import register
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Drawn in this order, the gravest last and on top; symbol and colour tell them apart.
LOOKS = {
    "ok": ("stands", PALETTE[0], "circle-open", 8),
    "not assessable": ("not assessable as a whole", NEUTRAL, "square-open", 8),
    "warn": ("a warning", PALETTE[5], "triangle-up", 11),
    "fail": ("fails", PALETTE[1], "x", 11),
}
AXES = {"GB/s": ("memory", "GB/s"), "TFLOP/s": ("arithmetic", "TFLOP/s")}


def implied_figure(points: Sequence[ImpliedPoint], *, title: str, subtitle: str = "") -> "go.Figure":
    """A panel a unit, both axes logarithmic: a point left of the diagonal implies less than its device can do, one right
    of it more. Names, sources and reasons show on hover; points beyond the diagonal are named. ParameterError for none."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    units = [unit for unit in AXES if any(point.unit == unit for point in points)]
    if not units:
        raise ParameterError("no claim can be held against a rate: there is nothing to draw")
    figure = make_subplots(
        rows=1, cols=len(units), horizontal_spacing=0.12, subplot_titles=[AXES[unit][0] for unit in units],
        figure=go.Figure(layout={"template": register()}),
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    shown: set[str] = set()
    for column, unit in enumerate(units, 1):
        here = [point for point in points if point.unit == unit]
        ends = [min(p.implied for p in here) / 1.3, max(p.implied for p in here) * 1.6]
        low = min(ends[0], min(p.possible for p in here) / 1.6)
        high = max(ends[1], max(p.possible for p in here) * 1.6)
        figure.add_scatter(
            x=[low, high], y=[low, high], mode="lines", line={"color": NEUTRAL, "width": 2, "dash": "dash"},
            name="implied = possible", legendgroup="diagonal", showlegend=column == 1, hoverinfo="skip", row=1, col=column,
        )  # fmt: skip
        for outcome, (words, colour, symbol, size) in LOOKS.items():
            some = [point for point in here if point.outcome == outcome]
            if not some:
                continue
            figure.add_scatter(
                x=[p.implied for p in some], y=[p.possible for p in some], mode="markers",
                marker={"color": colour, "symbol": symbol, "size": size, "opacity": 0.85}, name=words,
                legendgroup=outcome, showlegend=outcome not in shown,
                customdata=[[html.escape(text) for text in (p.name, p.source, p.device, p.reason)] for p in some],
                hovertemplate="<b>%{customdata[0]}</b> (%{customdata[1]})<br>%{x:.4g} of %{y:.4g} "
                + unit + ", %{customdata[2]}<br>%{customdata[3]}<extra></extra>", row=1, col=column,
            )  # fmt: skip
            shown.add(outcome)
        figure.update_xaxes(title_text=f"implied ({unit}, logarithmic)", col=column)
        figure.update_yaxes(title_text=f"possible ({unit}, logarithmic)", rangemode="normal", col=column)
        _name_those_beyond(figure, here, column)
    figure.update_xaxes(type="log", dtick=1, minor={"ticks": "outside"})
    figure.update_yaxes(type="log", dtick=1, minor={"ticks": ""})
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def _name_those_beyond(figure: "go.Figure", points: Sequence[ImpliedPoint], column: int) -> None:
    """Writes the names of the points right of the diagonal beneath them, those that lie on each other together."""
    import math

    beyond: dict[tuple[float, float], list[ImpliedPoint]] = {}
    for point in sorted((point for point in points if point.share > 1), key=lambda point: point.implied):
        place = (round(math.log10(point.implied), 1), round(math.log10(point.possible), 1))
        beyond.setdefault(place, []).append(point)
    for level, together in enumerate(beyond.values()):
        names = "<br>".join(html.escape(point.name) for point in together)
        figure.add_annotation(
            x=math.log10(together[0].implied), y=math.log10(together[0].possible), text=names, showarrow=True,
            arrowwidth=1, arrowcolor=NEUTRAL, ax=0, ay=40 + 24 * level, font={"size": 12}, row=1, col=column,
        )  # fmt: skip
