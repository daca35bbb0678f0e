"""The picture of a ladder of streams: what all get together, what each gets, and how many were resident over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim, error_bars, interval
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.measure.serving.residents import Steps
from labkit.measure.step_law import StepLaw
from labkit.palette import PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rungs = Mapping[float, Sequence[float]]  # values by streams, a value a block
CURVE = 40  # points of a law's line


@dataclass(frozen=True)
class Ladder:
    """One runtime's ladder: `all_tok_s` of all streams and `slowest`, `fastest` of one, by streams and block; `law` of its
    steps, where there is one; `resident` at its widest rung from `begun` on, and the `slots` it has, where it tells."""

    name: str
    all_tok_s: Rungs
    slowest_tok_s: Rungs
    fastest_tok_s: Rungs
    law: StepLaw | None = None
    resident: Steps | None = None
    begun: float = 0.0
    slots: int | None = None


def ladders(parts: Sequence[Ladder], *, all_title: str, title: str, subtitle: str = "") -> "go.Figure":
    """Above, the rate of all streams with the law as a line, and the slowest and the fastest stream of each rung; below, the
    streams that decode at once at the widest rung, as steps. ParameterError for no ladder."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    if not parts:
        raise ParameterError("there is no ladder to draw")
    if not any(part.slowest_tok_s for part in parts):
        raise ParameterError("there is no ladder to draw: no request came whole at any rung")
    widest = max(streams for part in parts for streams in part.slowest_tok_s)
    figure = make_subplots(
        rows=2, cols=2, specs=[[{}, {}], [{"colspan": 2}, None]], row_heights=[0.64, 0.36], vertical_spacing=0.22,
        horizontal_spacing=0.11, figure=go.Figure(layout={"template": register()}),
        subplot_titles=[all_title, "one stream, its wait included: slowest to fastest", f"resident at {widest:g} streams"],
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    for index, part in enumerate(parts):
        _rates(figure, part, index)
        _shares(figure, part, index)
        _residents(figure, part, index)
    ticks = sorted({streams for part in parts for streams in part.slowest_tok_s})
    for column in (1, 2):
        figure.update_xaxes(
            title_text="streams at once", type="log" if ticks[-1] >= 8 * ticks[0] else "linear", tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks], row=1, col=column,
        )  # fmt: skip
    figure.update_yaxes(title_text="tok/s", rangemode="tozero", row=1)
    figure.update_xaxes(title_text="seconds from the first submit", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title_text="streams", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_font_size=13)
    figure.update_yaxes(title_font_size=13)
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def _style(index: int) -> tuple[str, str, str]:
    return PALETTE[index % len(PALETTE)], SYMBOLS[index % len(SYMBOLS)], DASHES[index % len(DASHES)]


def _rates(figure: Any, part: Ladder, index: int) -> None:
    colour, symbol, dash = _style(index)
    raw = [(streams, value) for streams, values in part.all_tok_s.items() for value in values]
    figure.add_scatter(
        x=[streams for streams, _ in raw], y=[value for _, value in raw], mode="markers", legendgroup=part.name,
        marker={"color": colour, "size": 6, "symbol": f"{symbol}-open", "opacity": 0.55}, name="each repetition",
        showlegend=False, hovertemplate="%{x}: %{y:.4g}<extra>" + part.name + "</extra>", row=1, col=1,
    )  # fmt: skip
    summary = [interval(values) for values in part.all_tok_s.values()]
    figure.add_scatter(
        x=list(part.all_tok_s), y=[each.mean for each in summary], error_y=error_bars(summary), mode="markers",
        marker={"color": colour, "size": 9, "symbol": symbol}, name=part.name, legendgroup=part.name,
        hovertemplate="%{x}: %{y:.4g}<extra>" + part.name + "</extra>", row=1, col=1,
    )  # fmt: skip
    if part.law is None:
        return
    law, ratio = part.law, part.law.widest / part.law.least
    x = [law.least * ratio ** (i / (CURVE - 1)) for i in range(CURVE)]
    figure.add_scatter(
        x=x, y=[law.tok_s(streams) for streams in x], mode="lines", line={"color": colour, "width": 2, "dash": dash},
        name="by its law", legendgroup=part.name, showlegend=False,
        hovertemplate="%{x:.3g}: %{y:.4g}<extra>" + part.name + ", by its law</extra>", row=1, col=1,
    )  # fmt: skip


def _shares(figure: Any, part: Ladder, index: int) -> None:
    colour, symbol, dash = _style(index)
    for rungs, word in ((part.fastest_tok_s, "fastest"), (part.slowest_tok_s, "slowest")):
        means = [interval(values) for values in rungs.values()]
        figure.add_scatter(
            x=list(rungs), y=[each.mean for each in means], error_y=error_bars(means), mode="lines+markers",
            line={"color": colour, "width": 2, "dash": dash}, legendgroup=part.name, showlegend=False,
            marker={"color": colour, "size": 8, "symbol": symbol if word == "fastest" else f"{symbol}-open"}, name=word,
            hovertemplate="%{x}: %{y:.4g}<extra>" + f"{part.name}, {word} stream</extra>", row=1, col=2,
        )  # fmt: skip


def _residents(figure: Any, part: Ladder, index: int) -> None:
    colour, _, dash = _style(index)
    if part.resident is None:
        return
    times, counts = part.resident.line()
    figure.add_scatter(
        x=[at - part.begun for at in times], y=counts, mode="lines", line_shape="hv", legendgroup=part.name,
        line={"color": colour, "width": 2, "dash": dash}, showlegend=False, name=part.name,
        hovertemplate="%{x:.3g} s: %{y}<extra>" + part.name + "</extra>", row=2, col=1,
    )  # fmt: skip
    if part.slots is not None and times:
        figure.add_scatter(
            x=[0, times[-1] - part.begun], y=[part.slots] * 2, mode="lines", legendgroup=part.name, showlegend=False,
            line={"color": colour, "width": 1, "dash": "dot"}, name="slots",
            hovertemplate=f"{part.slots} slots<extra>{part.name}</extra>", row=2, col=1,
        )  # fmt: skip
