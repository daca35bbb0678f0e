"""The picture of power: what a mean shows of a peak, joules a token over streams, and watts over implied bandwidth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim, error_bars, interval
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.measure.laws import Law
from labkit.measure.sensor import Pulse
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

WINDOWS_S = tuple(10 ** (exponent / 10) for exponent in range(-40, 1))  # 0.1 ms to 1 s


@dataclass(frozen=True)
class Peak:
    """A pulse that was published, and what a simulated sensor read of it at the most, by the window of its mean."""

    name: str
    pulse: Pulse
    read_w: Mapping[float, float]


@dataclass(frozen=True)
class Drawn:
    """What one configuration drew. `joules`: a token, by streams, a value a block; `power`: (GB/s, watts) of each block;
    `family`: those of one family share a colour, and a law."""

    name: str
    joules: Mapping[float, Sequence[float]]
    power: Sequence[tuple[float, float]]
    family: str = ""


@dataclass(frozen=True)
class PowerLaw:
    """watts = P0 + e x GB/s of one family, with the terms `P0` and `e`."""

    family: str
    law: Law


@dataclass(frozen=True)
class Panels:
    """What there is to draw. `cap_w`: the cap that the peaks were under."""

    peaks: Sequence[Peak] = ()
    cap_w: float | None = None
    drawn: Sequence[Drawn] = ()
    laws: Sequence[PowerLaw] = field(default=())


def power_figure(panels: Panels, *, title: str, subtitle: str = "") -> "go.Figure":
    """One column a panel; those with nothing to draw are left out. ParameterError where none has."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    watts = [one for one in panels.drawn if one.power]
    tokens = [one for one in panels.drawn if one.joules]
    names = ["a mean over its window hides a peak"] if panels.peaks else []
    names += ["a token decoded"] if tokens else []
    names += ["power over implied bandwidth"] if watts else []
    if not names:
        raise ParameterError("there is no power to draw")
    figure = make_subplots(
        rows=1, cols=len(names), horizontal_spacing=0.1, subplot_titles=names,
        figure=go.Figure(layout={"template": register()}),
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    families = list(dict.fromkeys(one.family for one in panels.drawn))
    columns = iter(range(1, len(names) + 1))
    if panels.peaks:
        _peaks(figure, panels, next(columns))
    if tokens:
        _tokens(figure, tokens, families, next(columns))
    if watts:
        _watts(figure, watts, panels.laws, families, next(columns), legend=not tokens)
    figure.update_xaxes(title_font_size=13)
    figure.update_yaxes(title_font_size=13)
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def _peaks(figure: Any, panels: Panels, column: int) -> None:
    for index, peak in enumerate(panels.peaks):
        colour = PALETTE[(index + 3) % len(PALETTE)]
        figure.add_scatter(
            x=[1e3 * window for window in WINDOWS_S], y=[peak.pulse.seen_w(window) for window in WINDOWS_S], mode="lines",
            line={"color": colour, "dash": DASHES[index + 1]}, name=peak.name, legendgroup=peak.name,
            hovertemplate="mean over %{x:.3g} ms: %{y:.4g} W<extra>" + peak.name + "</extra>", row=1, col=column,
        )  # fmt: skip
        figure.add_scatter(
            x=[1e3 * window for window in peak.read_w], y=list(peak.read_w.values()), mode="markers",
            marker={"color": colour, "size": 7, "symbol": f"{SYMBOLS[index + 3]}-open"}, showlegend=False,
            legendgroup=peak.name, hovertemplate="read at the most: %{y:.4g} W<extra>simulated</extra>", row=1, col=column,
        )  # fmt: skip
    if panels.cap_w is not None:
        figure.add_hline(y=panels.cap_w, row=1, col=column, line={"color": NEUTRAL, "width": 2, "dash": "dash"})
        figure.add_annotation(
            text=f"cap {panels.cap_w:g} W", x=-1, y=panels.cap_w, xanchor="left", yanchor="bottom", showarrow=False,
            font={"size": 12}, row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(
        title_text="mean over (ms)", type="log", tickvals=[0.1, 1, 10, 100, 1000],
        ticktext=["0.1", "1", "10", "100", "1000"], row=1, col=column,
    )  # fmt: skip
    figure.update_yaxes(title_text="highest reading (W)", row=1, col=column)


def _tokens(figure: Any, drawn: Sequence[Drawn], families: Sequence[str], column: int) -> None:
    for index, one in enumerate(drawn):
        colour, dash, symbol = _look(one, index, drawn, families)
        points = [(streams, value) for streams, values in one.joules.items() for value in values]
        means = {streams: interval(values) for streams, values in sorted(one.joules.items())}
        figure.add_scatter(
            x=[x for x, _ in points], y=[y for _, y in points], mode="markers", showlegend=False, legendgroup=one.name,
            marker={"color": colour, "size": 6, "symbol": f"{symbol}-open", "opacity": 0.55},
            hovertemplate="%{x} streams: %{y:.3g} J<extra>" + one.name + "</extra>", row=1, col=column,
        )  # fmt: skip
        figure.add_scatter(
            x=list(means), y=[found.mean for found in means.values()], error_y=error_bars(list(means.values())),
            mode="lines+markers", line={"color": colour, "width": 2, "dash": dash}, name=one.name, legendgroup=one.name,
            marker={"color": colour, "size": 8, "symbol": symbol},
            hovertemplate="%{x} streams: %{y:.3g} J<extra>" + one.name + ", mean</extra>", row=1, col=column,
        )  # fmt: skip
    ticks = sorted({streams for one in drawn for streams in one.joules})
    figure.update_xaxes(
        title_text="streams at once", type="log" if ticks[-1] >= 8 * ticks[0] else "linear", tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks], row=1, col=column,
    )  # fmt: skip
    figure.update_yaxes(title_text="J a token", type="log", rangemode="normal", dtick="D2", tickformat="~g", col=column)


def _watts(
    figure: Any, drawn: Sequence[Drawn], laws: Sequence[PowerLaw], families: Sequence[str], column: int, legend: bool
) -> None:
    for index, one in enumerate(drawn):
        colour, _, symbol = _look(one, index, drawn, families)
        figure.add_scatter(
            x=[gb_s for gb_s, _ in one.power], y=[watts for _, watts in one.power], mode="markers", name=one.name,
            legendgroup=one.name, showlegend=legend, marker={"color": colour, "size": 7, "symbol": f"{symbol}-open"},
            hovertemplate="%{x:.4g} GB/s: %{y:.4g} W<extra>" + one.name + "</extra>", row=1, col=column,
        )  # fmt: skip
    for found in laws:
        ends = [0.0, max(gb_s for one in drawn if one.family == found.family for gb_s, _ in one.power)]
        figure.add_scatter(
            x=ends, y=[found.law.at(P0=1.0, e=end) for end in ends], mode="lines", name=f"{found.family}: the law".lstrip(": "),
            showlegend=False, line={"color": PALETTE[families.index(found.family) % len(PALETTE)], "width": 2},
            hovertemplate="%{x:.4g} GB/s: %{y:.4g} W<extra>the law</extra>", row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(title_text="implied bandwidth (GB/s)", rangemode="tozero", row=1, col=column)
    figure.update_yaxes(title_text="power (W)", row=1, col=column)


def _look(one: Drawn, index: int, drawn: Sequence[Drawn], families: Sequence[str]) -> tuple[str, str, str]:
    """(colour, dash, symbol): by its family, and by its place in it; by its place alone where there is one family."""
    within = [other.name for other in drawn if other.family == one.family].index(one.name)
    colour = families.index(one.family) if len(families) > 1 else index
    return (
        PALETTE[colour % len(PALETTE)],
        DASHES[within % len(DASHES)],
        SYMBOLS[(index if len(families) == 1 else within) % len(SYMBOLS)],
    )
