"""The picture of power: what a mean shows of a peak, joules a token over streams, and watts over implied bandwidth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim, error_bars, interval
from labkit.lab.stored_power import StoredPower
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.measure.laws import Law, fit_law
from labkit.measure.sensor import Pulse
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

FEWEST_CELLS = 3  # of a law of two terms
WINDOWS_S = tuple(10 ** (exponent / 10) for exponent in range(-40, 1))  # 0.1 ms to 1 s


@dataclass(frozen=True)
class Peak:
    """A pulse that was published, and what a simulated sensor read of it at the most, by the window of its mean."""

    name: str
    pulse: Pulse
    read_w: Mapping[float, float]


@dataclass(frozen=True)
class Drawn:
    """What one configuration drew. `joules`: a token, by streams, a value a block; `power`: (GB/s, watts) likewise; `family`:
    those of one family share a colour, and a law."""

    name: str
    joules: Mapping[float, Sequence[float]]
    power: Mapping[float, Sequence[tuple[float, float]]]
    family: str = ""

    @property
    def points(self) -> list[tuple[float, float]]:
        """(GB/s, watts) of all cells and blocks."""
        return [point for found in self.power.values() for point in found]


@dataclass(frozen=True)
class PowerLaw:
    """watts = P0 + e x GB/s of one family, with the terms `P0` and `e`, over `cells`."""

    family: str
    law: Law
    cells: int

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`P0 = 383 W [289, 478], e = 83 pJ a byte [44, 121], over 11 cells, off by 18 % at the most`."""
        base, slope = self.law.coefficients["P0"], self.law.coefficients["e"]
        first = "" if base.low is None or base.high is None else f" [{base.low:.0f}, {base.high:.0f}]"
        second = "" if slope.low is None or slope.high is None else f" [{1e3 * slope.low:.0f}, {1e3 * slope.high:.0f}]"
        return (
            f"P0 = {base.estimate:.0f} W{first}, e = {1e3 * slope.estimate:.0f} pJ a byte{second}, over {self.cells} cells, "
            f"off by {self.law.worst:.0%} at the most"
        )


def power_laws(drawn: Sequence[Drawn]) -> list[PowerLaw]:
    """The law of each family with at least three cells; where one lacks a block, by the cells' means alone."""
    found = []
    for family in dict.fromkeys(one.family for one in drawn):
        cells = [points for one in drawn if one.family == family for points in one.power.values()]
        if len(cells) < FEWEST_CELLS:
            continue
        means = [fmean(gb_s for gb_s, _ in points) for points in cells]
        watts = [[drew for _, drew in points] for points in cells]
        if len({len(each) for each in watts}) > 1:
            watts = [[fmean(each)] for each in watts]
        found.append(PowerLaw(family, fit_law({"P0": [1.0] * len(cells), "e": means}, watts), len(cells)))
    return found


def drawn_cells(stored: StoredPower) -> list[Drawn]:
    """What each runtime of a stored run drew while it decoded behind its shortest prompt; those with two numbers of streams at
    the least, since one makes no line."""
    decoding = [cell for cell in stored.cells() if cell.phase == "decode" and cell.joules]
    shallow = min((cell.prompt for cell in decoding), default=0)
    found = []
    for runtime in dict.fromkeys(cell.runtime for cell in decoding):
        some = [cell for cell in decoding if (cell.runtime, cell.prompt) == (runtime, shallow)]
        joules = {float(cell.streams): list(cell.joules.values()) for cell in some}
        power = {float(cell.streams): cell.power for cell in some if cell.power}
        if len(joules) > 1:
            found.append(Drawn(f"{runtime} {stored.weights}", joules, power, runtime))
    return found


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
        figure.add_scatter(
            x=[1e3 * WINDOWS_S[0], 1e3 * WINDOWS_S[-1]], y=[panels.cap_w] * 2, mode="lines", hoverinfo="skip",
            line={"color": NEUTRAL, "width": 2, "dash": "dash"}, name=f"cap of {panels.cap_w:g} W", row=1, col=column,
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
            x=[gb_s for gb_s, _ in one.points], y=[watts for _, watts in one.points], mode="markers", name=one.name,
            legendgroup=one.name, showlegend=legend, marker={"color": colour, "size": 7, "symbol": f"{symbol}-open"},
            hovertemplate="%{x:.4g} GB/s: %{y:.4g} W<extra>" + one.name + "</extra>", row=1, col=column,
        )  # fmt: skip
    for found in laws:
        ends = [0.0, max(gb_s for one in drawn if one.family == found.family for gb_s, _ in one.points)]
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
