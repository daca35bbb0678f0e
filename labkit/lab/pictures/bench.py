"""The picture of a bench: rates over streams or prompt lengths, a line a runtime and quantisation."""

import csv
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.figures import scaling
from labkit.lab.verdict import count
from labkit.measure.bench.report import RATE, Results, Row, number
from labkit.measure.bench.settings import OURS

if TYPE_CHECKING:
    from labkit.lab.lab import StoredRun


def figure(rows: Sequence[Row], results: Results, *, subtitle: str) -> Any:
    """Decode rates over streams; else prefill rates over prompt lengths; else decode rates over depths. A line a runtime
    and quantisation; a plotly figure. ImportError without plotly, ParameterError when there is nothing to draw."""
    several = len({row.cell.streams for row in rows if row.cell.phase == "decode"}) > 1
    phase = "decode" if several or not any(row.cell.phase == "prefill" for row in rows) else "prefill"
    chosen = [row.cell for row in rows if row.cell.phase == phase]
    if not chosen:
        raise ParameterError("there is no cell to draw")
    shallow = min(cell.prompt for cell in chosen)
    if several:
        chosen = [cell for cell in chosen if cell.prompt == shallow]
    rate, knob = RATE[phase], "streams" if several else "prompt"
    points = [(cell, value) for cell in chosen for value in results.values(cell, rate).values()]
    columns = {
        knob: [getattr(cell, knob) for cell, _ in points],
        rate: [value for _, value in points],
        "runtime": [f"{cell.runtime} {cell.quant}" for cell, _ in points],
    }
    best = max((row for row in rows if row.cell in chosen and row.cell.runtime == OURS), key=lambda r: r.rate.estimate)
    made = number(best.rate.estimate, 4)
    title = (
        f"{made} tokens a second decoded by {count(best.cell.streams, 'stream')} ({best.cell.quant})"
        if phase == "decode"
        else f"{made} prompt tokens a second, {best.cell.prompt} at once ({best.cell.quant})"
    )
    return scaling(
        columns, knob, rate, title=title, subtitle=subtitle, series="runtime", log_y=True,
        x_title="streams" if several else "tokens of the prompt", y_title="tokens a second",
    )  # fmt: skip


def figure_of_runs(runs: Sequence["StoredRun"], phase: str, *, title: str | None = None) -> Any:
    """Rates of one phase in stored benches, a line a runtime and quantisation; a plotly figure. Runs of one device only.

    Raises ParameterError for runs of several devices, or without such rates."""
    rate, knob = RATE[phase], "streams" if phase == "decode" else "prompt"
    columns: dict[str, list[Any]] = {knob: [], rate: [], "runtime": []}
    devices = sorted({str(run.record.device["name"]) for run in runs if run.record.device is not None})
    if len(devices) != 1:
        raise ParameterError(f"the runs are of {' and '.join(devices) or 'no device'}: a picture has one device")
    for run in runs:
        with (run.folder / "measurements.csv").open(encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                cell = json.loads(line["cell"])
                if line["metric"] == rate and cell.get("phase") == phase:
                    columns[knob].append(cell[knob])
                    columns[rate].append(float(line["value"]))
                    columns["runtime"].append(f"{cell['runtime']} {cell['quant']}")
    order = sorted(
        range(len(columns[rate])), key=lambda i: not columns["runtime"][i].startswith(f"{OURS} ")
    )  # ours first
    columns = {name: [values[i] for i in order] for name, values in columns.items()}
    if not columns[rate]:
        raise ParameterError(f"{', '.join(run.record.id for run in runs)}: no bench here has {phase} rates")
    return scaling(
        columns, knob, rate, title=title or f"Tokens a second, {phase}", series="runtime", log_y=True,
        subtitle=f"{devices[0]} · {len(runs)} run{'s' * (len(runs) > 1)} of lab bench",
        x_title="streams" if phase == "decode" else "tokens of the prompt", y_title="tokens a second",
    )  # fmt: skip
