"""Warming up at the measured shape until the data have settled; what it took is kept beside the samples, not among them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.measurements import Measurement, append_rows, checked_value
from labkit.lab.record import canonical_cell, exclusive, utc_now
from labkit.measure.metrics import metric as known_metric
from labkit.measure.statistics import settled

if TYPE_CHECKING:
    from labkit.lab.run import Run

FILE = "warmup.csv"  # in the run's folder, with the columns of measurements.csv


def warm_up(
    run: "Run", cell: Mapping[str, Any], measure: Callable[[], Mapping[str, float] | float], metric: str, most: int = 50
) -> int:
    """Repeats `measure` until `metric` has settled or it was done `most` times; how often. See `Run.warm_up`."""
    known_metric(metric)
    text, values = canonical_cell(cell), list[float]()
    while len(values) < most and not settled(values):
        found = measure()
        metrics = dict(found) if isinstance(found, Mapping) else {metric: found}
        if metric not in metrics:
            raise ParameterError(f"warm_up watches {metric}, and what was measured has {', '.join(map(str, metrics))}")
        rows = [
            Measurement(len(values), len(values), text, known_metric(name).id, checked_value(name, value), utc_now())
            for name, value in metrics.items()
        ]
        path = run.folder
        with exclusive(path):
            append_rows(path / FILE, rows)
        values.append(checked_value(metric, metrics[metric]))
    if not settled(values):
        run.describe(warm_up=f"{metric} at {text} had not settled after {len(values)} repetitions")
    return len(values)
