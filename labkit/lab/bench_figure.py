"""The picture of a bench: rates over streams or prompt lengths, a line a runtime and quantisation."""

from collections.abc import Sequence
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.figures import scaling
from labkit.measure.bench.report import RATE, Results, Row, number
from labkit.measure.bench.settings import OURS


def figure(rows: Sequence[Row], results: Results, *, subtitle: str) -> Any:
    """Decode rates over streams (else prefill rates over prompt lengths), a line a runtime and quantisation; a plotly
    figure. ImportError without plotly, ParameterError when there is nothing to draw."""
    phase = "decode" if len({row.cell.streams for row in rows if row.cell.phase == "decode"}) > 1 else "prefill"
    chosen = [row.cell for row in rows if row.cell.phase == phase]
    if not chosen:
        raise ParameterError("there is no cell to draw")
    shallow = min(cell.prompt for cell in chosen)
    if phase == "decode":
        chosen = [cell for cell in chosen if cell.prompt == shallow]
    rate, knob = RATE[phase], "streams" if phase == "decode" else "prompt"
    points = [(cell, value) for cell in chosen for value in results.values(cell, rate).values()]
    columns = {
        knob: [getattr(cell, knob) for cell, _ in points],
        rate: [value for _, value in points],
        "runtime": [f"{cell.runtime} {cell.quant}" for cell, _ in points],
    }
    best = max((row for row in rows if row.cell in chosen and row.cell.runtime == OURS), key=lambda r: r.rate.estimate)
    made = number(best.rate.estimate, 4)
    title = (
        f"{made} tokens a second decoded by {best.cell.streams} streams ({best.cell.quant})"
        if phase == "decode"
        else f"{made} prompt tokens a second, {best.cell.prompt} at once ({best.cell.quant})"
    )
    return scaling(
        columns, knob, rate, title=title, subtitle=subtitle, series="runtime", log_y=True,
        x_title="streams" if phase == "decode" else "tokens of the prompt", y_title="tokens a second",
    )  # fmt: skip
