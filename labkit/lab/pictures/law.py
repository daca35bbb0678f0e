"""The picture of laws fitted to times: every repetition and the law above, what the law leaves of them below."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import claim
from labkit.lab.template import DASHES, SYMBOLS, register
from labkit.measure.laws import Law
from labkit.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Fitted:
    """A law beside the times it was fitted to, [cells][blocks], over the knob `x` (a value a cell).

    `series`: of each cell, what tells its line from others; one line when left out. `name`: what the law says."""

    law: Law
    x: Sequence[float]
    times: Sequence[Sequence[float]]
    name: str
    x_title: str
    y_title: str
    series: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.times) == len(self.law.fitted) or len(self.series) not in (0, len(self.x)):
            raise ParameterError(f"{self.name}: a law over {len(self.law.fitted)} cells, drawn over {len(self.x)}")

    def lines(self) -> dict[str, list[int]]:
        """The cells of each line, in order of x."""
        found: dict[str, list[int]] = defaultdict(list)
        for cell in sorted(range(len(self.x)), key=lambda cell: self.x[cell]):
            found[self.series[cell] if self.series else ""].append(cell)
        return dict(found)


def laws(parts: Sequence[Fitted], *, title: str, subtitle: str = "") -> "go.Figure":
    """One column a law: points and the law from zero, and below how far (in percent) each point lies from the law."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    if not parts:
        raise ParameterError("there is no law to draw")
    figure = make_subplots(
        rows=2, cols=len(parts), shared_xaxes=True, row_heights=[0.7, 0.3], vertical_spacing=0.06,
        horizontal_spacing=0.12, subplot_titles=[part.name for part in parts],
        figure=go.Figure(layout={"template": register()}),
    )  # fmt: skip
    figure.update_annotations(font={"size": 13}, yshift=4)
    for column, part in enumerate(parts, 1):
        for index, (name, cells) in enumerate(part.lines().items()):
            _line(figure, part, cells, index, name, column)
        figure.add_hline(y=0, row=2, col=column, line={"color": NEUTRAL, "width": 1})
        figure.update_xaxes(title_text=part.x_title, row=2, col=column)
        figure.update_xaxes(rangemode="tozero", col=column)
        figure.update_yaxes(title_text=part.y_title, row=1, col=column)
        figure.update_yaxes(title_text="off (%)", rangemode="normal", nticks=5, row=2, col=column)
    figure.update_xaxes(title_font_size=13)
    figure.update_yaxes(title_font_size=13)
    claim(figure, title, subtitle)
    figure.update_layout(margin={"t": figure.layout.margin.t + 28})
    return figure


def _line(figure: Any, part: Fitted, cells: Sequence[int], index: int, name: str, column: int) -> None:
    colour, symbol = PALETTE[index % len(PALETTE)], SYMBOLS[index % len(SYMBOLS)]
    fitted = part.law.fitted
    points = [(part.x[cell], time, 100 * (time / fitted[cell] - 1)) for cell in cells for time in part.times[cell]]
    marker = {"color": colour, "size": 7, "symbol": f"{symbol}-open"}
    x = [x for x, _, _ in points]
    figure.add_scatter(
        x=x, y=[time for _, time, _ in points], mode="markers", marker=marker, name=name, showlegend=bool(name),
        legendgroup=f"{column} {name}", hovertemplate="%{x}: %{y:.4g}<extra>" + name + "</extra>", row=1, col=column,
    )  # fmt: skip
    figure.add_scatter(
        x=[part.x[cell] for cell in cells], y=[fitted[cell] for cell in cells], mode="lines",
        line={"color": colour, "width": 2, "dash": DASHES[index % len(DASHES)]}, name="the law", showlegend=False,
        legendgroup=f"{column} {name}", hovertemplate="%{x}: %{y:.4g}<extra>the law</extra>", row=1, col=column,
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=[off for _, _, off in points], mode="markers", marker=marker, showlegend=False,
        legendgroup=f"{column} {name}", hovertemplate="%{x}: %{y:.2f} %<extra></extra>", row=2, col=column,
    )  # fmt: skip
