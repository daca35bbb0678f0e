"""The picture of several backends: time to the first token with its law on the left, decoding on the right, champions marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim, error_bars, interval
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

BESIDE = 0.12  # how far from each other two series are drawn over one place, in places
APART = 1.03  # the same over a length, as a factor
STEPS = 40  # of a law's curve
MARKS = ("", "-dot", "-open", "-open-dot")  # of a symbol, by setting


@dataclass(frozen=True)
class Reading:
    """A backend's times to the first token at one setting: prompt length → each repetition, in seconds; `law`: length → the
    fitted time, for the lengths of a curve; empty where too few lengths were measured."""

    backend: str
    setting: str
    times: Mapping[int, Sequence[float]]
    law: Mapping[float, float]

    @property
    def name(self) -> str:
        """As the legend has it."""
        return f"{self.backend}, {self.setting}"


@dataclass(frozen=True)
class Writing:
    """A backend's rates of decoding at one setting: place (`1 at 16`) → each repetition, in tokens a second."""

    backend: str
    setting: str
    rates: Mapping[str, Sequence[float]]

    @property
    def name(self) -> str:
        """As the legend has it."""
        return f"{self.backend}, {self.setting}"


def lengths_of_curve(first: float, last: float) -> list[float]:
    """Lengths evenly spread in proportion, to draw a law at."""
    return [first * (last / first) ** (step / STEPS) for step in range(STEPS + 1)]


def backends(
    reading: Sequence[Reading],
    writing: Sequence[Writing],
    *,
    title: str,
    subtitle: str = "",
    champions: Mapping[int | str, str] = {},
) -> "go.Figure":
    """Every repetition as a point and geometric means with 95 % intervals, those over one length or place side by side; a
    star under the champion of a length and over that of a place (`champions`: length or place → series). Both axes of the
    left are logarithmic. ParameterError where nothing was measured."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    if not reading and not writing:
        raise ParameterError("no backend was measured: there is nothing to draw")
    looks = styles([(one.backend, one.setting) for one in reading] + [(one.backend, one.setting) for one in writing])
    figure = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.13, subplot_titles=["reading a prompt, and its law", "decoding"],
        figure=go.Figure(layout={"template": register()}),
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    for index, one in enumerate(reading):
        look, factor = looks[one.backend, one.setting], APART ** (index - (len(reading) - 1) / 2)
        points(figure, one.name, {at: at * factor for at in one.times}, one.times, look, 1, legend=True)
        if one.law:
            figure.add_scatter(
                x=list(one.law), y=list(one.law.values()), mode="lines", line=look["line"], legendgroup=one.name,
                showlegend=False, hovertemplate="%{x:.0f}: %{y:.4g} s<extra>" + one.name + ", its law</extra>",
                row=1, col=1,
            )  # fmt: skip
    places = list(dict.fromkeys(place for writer in writing for place in writer.rates))
    drawn = {one.name for one in reading}
    for index, writer in enumerate(writing):
        off = BESIDE * (index - (len(writing) - 1) / 2)
        at = {place: places.index(place) + off for place in writer.rates}
        look = looks[writer.backend, writer.setting]
        points(figure, writer.name, at, writer.rates, look, 2, legend=writer.name not in drawn)
    stars(figure, reading, writing, places, champions)
    lengths = sorted({length for one in reading for length in one.times})
    ticks = {"tickvals": lengths, "ticktext": [str(length) for length in lengths]}
    figure.update_xaxes(title_text="prompt (tokens)", type="log", col=1, **ticks)
    figure.update_yaxes(
        title_text="time to the first token (s)", type="log", rangemode="normal", dtick="D2", tickformat="~g", col=1
    )
    figure.update_xaxes(
        title_text="streams, and tokens before them", tickvals=list(range(len(places))), ticktext=places, col=2
    )
    figure.update_yaxes(title_text="tokens a second, all streams", rangemode="tozero", col=2)
    figure.update_xaxes(title_font_size=13)
    figure.update_yaxes(title_font_size=13)
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def styles(series: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    """How each (backend, setting) looks: backends differ by colour and symbol, their settings by dash and by what is in the
    symbol."""
    backends_, settings = (list(dict.fromkeys(names)) for names in zip(*series, strict=True))
    found = {}
    for backend, setting in series:
        colour, symbol = (each[backends_.index(backend) % len(each)] for each in (PALETTE, SYMBOLS[:4]))
        number = settings.index(setting)
        found[backend, setting] = {
            "colour": colour, "raw": f"{symbol}-open", "symbol": symbol + MARKS[number % len(MARKS)],
            "line": {"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]},
        }  # fmt: skip
    return found


def points(
    figure: Any, name: str, at: Mapping[Any, float], values: Mapping[Any, Sequence[float]], look: Mapping[str, Any],
    column: int, *, legend: bool,
) -> None:  # fmt: skip
    """The repetitions of a series, and their means with intervals."""
    raw = [(at[place], value) for place, found in values.items() for value in found]
    figure.add_scatter(
        x=[x for x, _ in raw], y=[y for _, y in raw], mode="markers", legendgroup=name, showlegend=False,
        marker={"color": look["colour"], "size": 6, "symbol": look["raw"], "opacity": 0.55},
        hovertemplate="%{y:.4g}<extra>" + name + "</extra>", row=1, col=column,
    )  # fmt: skip
    summary = [interval(found) for found in values.values()]
    figure.add_scatter(
        x=[at[place] for place in values], y=[each.mean for each in summary], error_y=error_bars(summary),
        mode="markers", name=name, legendgroup=name,
        marker={"color": look["colour"], "size": 9, "symbol": look["symbol"]}, showlegend=legend,
        hovertemplate="%{y:.4g}<extra>" + name + "</extra>", row=1, col=column,
    )  # fmt: skip


def stars(
    figure: Any, reading: Sequence[Reading], writing: Sequence[Writing], places: Sequence[str],
    champions: Mapping[int | str, str],
) -> None:  # fmt: skip
    """A star at each champion: under the fastest reader, over the fastest writer."""
    sides: tuple[tuple[int, dict[Any, tuple[float, float]]], ...] = ((1, {}), (2, {}))
    for index, one in enumerate(reading):
        for length, found in one.times.items():
            if champions.get(length) == one.name:
                sides[0][1][length] = (length * APART ** (index - (len(reading) - 1) / 2), min(found) * 0.8)
    most = max((value for writer in writing for found in writer.rates.values() for value in found), default=0.0)
    for index, writer in enumerate(writing):
        for place, found in writer.rates.items():
            if champions.get(place) == writer.name:
                off = BESIDE * (index - (len(writing) - 1) / 2)
                sides[1][1][place] = (places.index(place) + off, max(found) + 0.06 * most)
    legend = True
    for column, marks in sides:
        if marks:
            figure.add_scatter(
                x=[x for x, _ in marks.values()], y=[y for _, y in marks.values()], mode="markers", name="champion",
                marker={"symbol": "star", "size": 13, "color": NEUTRAL}, legendgroup="champion", showlegend=legend,
                hoverinfo="skip", row=1, col=column,
            )  # fmt: skip
            legend = False
