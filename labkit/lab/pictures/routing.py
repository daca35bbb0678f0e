"""The picture of a routing rule: predicted over measured times of requests held out, and the map of what it chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import beside, claim, error_bars, interval
from labkit.lab.template import SYMBOLS, register
from labkit.measure.routing import Profile, Work, choose
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go

GRID = 16  # points of a map's axis
NOT_MEASURED, ALIKE = "not measured", "not told apart"
FAINT = "rgba(128,128,128,0.25)"


@dataclass(frozen=True)
class Map:
    """The choice over prompts (columns) and outputs (rows) at so many streams: names of `names()` by place."""

    streams: int
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    chosen: tuple[tuple[str, ...], ...]

    def share(self, name: str) -> float:
        """Of the places that have this name."""
        places = [each for row in self.chosen for each in row]
        return places.count(name) / len(places)


def steps_between(least: float, most: float, count: int = GRID) -> tuple[int, ...]:
    """Whole numbers from `least` to `most`, in equal ratios; fewer where two would be one."""
    if not 1 <= least <= most:
        raise ParameterError(f"a map from {least:g} to {most:g}: give at least 1, and no less at its end")
    ratio = most / least
    return tuple(dict.fromkeys(round(least * ratio ** (i / max(1, count - 1))) for i in range(count)))


def map_choices(profiles: Sequence[Profile], streams: int, prompts: Sequence[int], outputs: Sequence[int]) -> Map:
    """What `choose` says at each place: a runtime, *not told apart* where the interval of its lead holds 1, or *not
    measured*. A runtime alone in what was measured has no rival there, and is chosen."""

    def name(work: Work) -> str:
        found = choose(profiles, work)
        if found.runtime is None:
            return NOT_MEASURED
        lead = found.lead
        unsure = lead is not None and lead.low is not None and lead.low <= 1
        return ALIKE if unsure else found.runtime

    chosen = tuple(tuple(name(Work(prompt, output, streams)) for prompt in prompts) for output in outputs)
    return Map(streams, tuple(prompts), tuple(outputs), chosen)


def routing(
    over: Mapping[str, Mapping[str, Sequence[float]]], maps: Sequence[Map], *, title: str, subtitle: str = ""
) -> "go.Figure":
    """Above, predicted over measured times, `over`[runtime][request] with a value a block, around 1; below, a map for
    each number of streams, on logarithmic axes. Without `over` the maps stand alone. ParameterError where both are empty."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    if not maps:
        raise ParameterError("there is no map to draw")
    names = list(dict.fromkeys([*over, *(name for each in maps for row in each.chosen for name in row)]))
    names = [name for name in names if name not in (NOT_MEASURED, ALIKE)]
    rows = 2 if over else 1
    first: list[dict[str, Any] | None] = [{"colspan": len(maps)}, *[None] * (len(maps) - 1)]
    figure = make_subplots(
        rows=rows, cols=len(maps), specs=[first, [{}] * len(maps)] if over else [[{}] * len(maps)],
        row_heights=[0.42, 0.58] if over else None, vertical_spacing=0.3, horizontal_spacing=0.12,
        figure=go.Figure(layout={"template": register()}),
        subplot_titles=[*(["predicted over measured, of requests held out"] if over else []), *map(_heading, maps)],
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    if over:
        _predicted(figure, over, names)
    for column, each in enumerate(maps, 1):
        _map(figure, each, names, rows, column)
    figure.update_xaxes(title_font_size=13)
    figure.update_yaxes(title_font_size=13)
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def _heading(each: Map) -> str:
    return f"the choice at {each.streams} {'stream' if each.streams == 1 else 'streams'}"


def _predicted(figure: Any, over: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str]) -> None:
    works = list(dict.fromkeys(work for found in over.values() for work in found))
    for name, found in over.items():
        index = names.index(name)
        shift = 0.5 * ((index + 0.5) / len(over) - 0.5)
        at = [works.index(work) + shift for work in found]
        summary = [interval(values) for values in found.values()]
        raw = [
            (x, value)
            for middle, values in zip(at, found.values(), strict=True)
            for x, value in beside(0, values)
            for x in [middle + x / 4]
        ]
        marker = {"color": PALETTE[index % len(PALETTE)], "symbol": SYMBOLS[index % len(SYMBOLS)]}
        figure.add_scatter(
            x=[x for x, _ in raw], y=[y for _, y in raw], mode="markers", legendgroup=name, showlegend=False,
            marker=marker | {"size": 6, "symbol": f"{marker['symbol']}-open", "opacity": 0.55}, name="each block",
            hovertemplate="%{y:.3f}<extra>" + name + "</extra>", row=1, col=1,
        )  # fmt: skip
        figure.add_scatter(
            x=at, y=[each.mean for each in summary], error_y=error_bars(summary), mode="markers", name=name,
            marker=marker | {"size": 9}, legendgroup=name, hovertemplate="%{y:.3f}<extra>" + name + "</extra>", row=1, col=1,
        )  # fmt: skip
    figure.add_hline(y=1, row=1, col=1, line={"color": NEUTRAL, "width": 1})
    figure.update_xaxes(
        tickvals=list(range(len(works))), ticktext=works, title_text="prompt + output, streams at once", row=1, col=1
    )
    figure.update_yaxes(title_text="predicted / measured", rangemode="normal", row=1, col=1)


def _map(figure: Any, each: Map, names: Sequence[str], row: int, column: int) -> None:
    for name in [*names, ALIKE, NOT_MEASURED]:
        places = [
            (prompt, output)
            for output, line in zip(each.outputs, each.chosen, strict=True)
            for prompt, said in zip(each.prompts, line, strict=True)
            if said == name
        ]
        if name in names:
            index = names.index(name)
            marker: dict[str, Any] = {"color": PALETTE[index % len(PALETTE)], "symbol": SYMBOLS[index % len(SYMBOLS)]}
        else:
            marker = {
                "color": FAINT if name == NOT_MEASURED else NEUTRAL,
                "symbol": "x-thin-open" if name == NOT_MEASURED else "circle-open",
            }
        figure.add_scatter(
            x=[prompt for prompt, _ in places], y=[output for _, output in places], mode="markers", name=name,
            marker=marker | {"size": 6}, legendgroup=name, showlegend=column == 1 and (row == 1 or name not in names),
            hovertemplate="%{x} in, %{y} out<extra>" + name + "</extra>", row=row, col=column,
        )  # fmt: skip
    ticks = [list(axis[:: -(-len(axis) // 6)]) for axis in (each.prompts, each.outputs)]
    figure.update_xaxes(type="log", title_text="prompt (tokens)", tickvals=ticks[0], row=row, col=column)
    figure.update_yaxes(
        type="log", title_text="output (tokens)", tickvals=ticks[1], rangemode="normal", row=row, col=column
    )
