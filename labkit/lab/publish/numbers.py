"""The numbers of a run's page: the main number recomputed from the rows, the lines that do it, the cells."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.lab.measurements import Measurement
from labkit.lab.record import canonical_cell

METRICS_SHOWN = 7
CELLS_SHOWN = 60


@dataclass(frozen=True)
class MainNumber:
    """What the rule judges: the geometric mean over `n` blocks, and the Python that recomputes it from the CSV."""

    what: str
    value: float
    n: int
    ratio: bool
    code: str

    @property
    def text(self) -> str:
        return number(self.value) + ("×" if self.ratio else "")


def main_number(rows: Sequence[Measurement], rule: Mapping[str, Any]) -> MainNumber | None:
    """Recomputes what `rule` judges from the samples: the geometric mean of the paired ratios metric(cell) /
    metric(against) by block, or of the metric itself without `against`; None when the samples do not give it."""
    metric, cell, against = rule.get("metric"), rule.get("cell"), rule.get("against")
    if not isinstance(metric, str) or not isinstance(cell, Mapping):
        return None
    top = canonical_cell(cell)
    above = by_block(rows, metric, top)
    if isinstance(against, Mapping):
        bottom = canonical_cell(against)
        below = by_block(rows, metric, bottom)
        values = [above[block] / below[block] for block in above if below.get(block)]
        what = f"{metric} at {cell_text(top)} over {cell_text(bottom)}, pair by pair"
    else:
        bottom, values, what = None, list(above.values()), f"{metric} at {cell_text(top)}"
    if not values or min(values) <= 0:
        return None
    mean = math.exp(math.fsum(map(math.log, values)) / len(values))
    return MainNumber(what, mean, len(values), bottom is not None, snippet(metric, top, bottom))


def by_block(rows: Sequence[Measurement], metric: str, cell: str) -> dict[int, float]:
    """The metric of a cell in each block; the mean where a block holds several samples."""
    samples: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.metric == metric and row.cell == cell:
            samples[row.block].append(row.value)
    return {block: math.fsum(values) / len(values) for block, values in samples.items()}


def snippet(metric: str, cell: str, against: str | None) -> str:
    """Python, needing nothing but itself and `measurements.csv`, that prints the main number and its count."""
    lines = [
        "import csv, math, statistics",
        "",
        "blocks = {}  # (cell, block) → samples",
        'for row in csv.DictReader(open("measurements.csv")):',
        f"    if row['metric'] == {metric!r}:",
        "        blocks.setdefault((row['cell'], row['block']), []).append(float(row['value']))",
        "value = {key: statistics.fmean(samples) for key, samples in blocks.items()}",
    ]
    if against is None:
        lines.append(f"values = [v for (cell, _), v in value.items() if cell == {cell!r}]")
    else:
        lines += [
            f"values = [v / value[{against!r}, block] for (cell, block), v in value.items()",
            f"          if cell == {cell!r} and ({against!r}, block) in value]",
        ]
    lines.append("print(math.exp(statistics.fmean(map(math.log, values))), len(values))")
    return "\n".join(lines)


@dataclass(frozen=True)
class CellTable:
    """The mean of each metric in each cell, as text; `left_out` says what did not fit."""

    metrics: tuple[str, ...]
    lines: tuple[tuple[str, int, tuple[str, ...]], ...]
    left_out: str


def cell_table(rows: Sequence[Measurement], first: str | None = None) -> CellTable | None:
    """Cells down, metrics across (`first` leftmost), geometric means of positive samples; None without rows."""
    samples: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        samples.setdefault(row.cell, {}).setdefault(row.metric, []).append(row.value)
    if not samples:
        return None
    known = dict.fromkeys(metric for metrics in samples.values() for metric in metrics)
    metrics = sorted(known, key=lambda metric: metric != first)
    cells = sorted(samples, key=cell_order)
    lines = []
    for cell in cells[:CELLS_SHOWN]:
        values = [samples[cell].get(metric, []) for metric in metrics[:METRICS_SHOWN]]
        lines.append((cell_text(cell), max(map(len, samples[cell].values())), tuple(map(mean_text, values))))
    hidden = [f"{len(metrics) - METRICS_SHOWN} more metrics"] if len(metrics) > METRICS_SHOWN else []
    hidden += [f"{len(cells) - CELLS_SHOWN} more cells"] if len(cells) > CELLS_SHOWN else []
    return CellTable(tuple(metrics[:METRICS_SHOWN]), tuple(lines), " and ".join(hidden))


def mean_text(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if min(values) > 0:
        return number(math.exp(math.fsum(map(math.log, values)) / len(values)))
    return number(math.fsum(values) / len(values))


def cell_order(cell: str) -> tuple[Any, ...]:
    """Sorts cells by their knob values, numbers before text."""
    try:
        knobs = json.loads(cell)
    except ValueError:
        return ((2, cell),)
    values = knobs.values() if isinstance(knobs, dict) else [knobs]
    return tuple((0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values)


def cell_text(cell: str) -> str:
    """A cell in words: `{"kv":"f16","width":8}` is `kv f16, width 8`."""
    try:
        knobs = json.loads(cell)
    except ValueError:
        return cell
    if not isinstance(knobs, dict):
        return cell
    return ", ".join(f"{name} {value}" for name, value in knobs.items()) or "the only cell"


def number(value: float) -> str:
    """A number at four significant digits, without an exponent in the common range."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-4 <= abs(value) < 1e7:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return f"{value:.3e}"
