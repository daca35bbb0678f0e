"""The forest plot: a ratio a line with its interval, the band of what counts as the same shaded, words by colour and symbol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim
from labkit.lab.template import register
from labkit.palette import NEUTRAL, PALETTE, tint

if TYPE_CHECKING:
    import plotly.graph_objects as go

LOOKS = {  # word → colour, symbol
    "better": (PALETTE[2], "triangle-up"),
    "worse": (PALETTE[1], "triangle-down"),
    "same": (PALETTE[0], "square"),
    "undecided": (NEUTRAL, "circle-open"),
    "invalid": (NEUTRAL, "x"),
}


@dataclass(frozen=True)
class Branch:
    """A line: what was asked, the ratio with its interval (None where there is none), each pair's ratio, and a word."""

    name: str
    ratio: float
    low: float | None
    high: float | None
    word: str
    each: Sequence[float] = ()


def forest(
    branches: Sequence[Branch], *, margin: float, title: str, subtitle: str = "", x_title: str = "speed, after over before"
) -> "go.Figure":  # fmt: skip
    """The ratios on a logarithmic axis, the first at the top: above 1 is better. ParameterError for none, or for one that
    is not above 0."""
    import plotly.graph_objects as go

    if not branches:
        raise ParameterError("there is no ratio to draw")
    if not all(one.ratio > 0 for one in branches):
        raise ParameterError("a ratio above 0 has a place on a logarithmic axis; one of these has none")
    figure = go.Figure(layout={"template": register()})
    figure.add_vrect(
        x0=1 - margin, x1=1 + margin, fillcolor=NEUTRAL, opacity=0.2, line_width=0, layer="below",
        name=f"within {100 * margin:.3g} %", showlegend=True,
    )  # fmt: skip
    figure.add_vline(x=1, line={"color": NEUTRAL, "width": 1})
    heights = {id(one): len(branches) - 1 - place for place, one in enumerate(branches)}
    for word, (colour, symbol) in LOOKS.items():
        mine = [one for one in branches if one.word == word]
        if mine:
            _draw(figure, mine, [heights[id(one)] for one in mine], word, colour, symbol)
    figure.update_yaxes(
        tickvals=list(range(len(branches))), ticktext=[one.name for one in reversed(branches)], showgrid=False, zeroline=False,
        range=[-0.6, len(branches) - 0.4], rangemode="normal",
    )  # fmt: skip
    figure.update_xaxes(
        title_text=x_title, type="log", showgrid=True, rangemode="normal", tickformat="~g", nticks=8, title_font_size=13
    )
    claim(figure, title, subtitle)
    figure.update_layout(height=max(360, 150 + figure.layout.margin.t + 34 * len(branches)))
    return figure


def _draw(figure: Any, branches: Sequence[Branch], heights: Sequence[int], word: str, colour: str, symbol: str) -> None:
    """The branches of one word."""
    raw = [(value, at) for one, at in zip(branches, heights, strict=True) for value in one.each if value > 0]
    if raw:
        figure.add_scatter(
            x=[value for value, _ in raw], y=[at - 0.22 for _, at in raw], mode="markers", legendgroup=word,
            marker={"color": tint(colour, 0.6) if colour.startswith("#") else colour, "size": 5, "symbol": "line-ns-open"},
            showlegend=False, hovertemplate="%{x:.4g}x<extra>a pair</extra>",
        )  # fmt: skip
    figure.add_scatter(
        x=[one.ratio for one in branches],
        y=list(heights),
        mode="markers",
        name=word,
        legendgroup=word,
        marker={"color": colour, "size": 10, "symbol": symbol},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(one.high or one.ratio) - one.ratio for one in branches],
            "arrayminus": [one.ratio - (one.low or one.ratio) for one in branches],
            "thickness": 2,
            "width": 5,
        },
        customdata=[[one.low or one.ratio, one.high or one.ratio] for one in branches],
        hovertemplate="%{x:.4g}x [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra>" + word + "</extra>",
    )
