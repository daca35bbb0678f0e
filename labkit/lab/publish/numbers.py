"""The numbers of a run's page: the main number recomputed from the rows, the lines that do it, the cells."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.lab.measurements import Measurement
from labkit.lab.plan import Rule, cell_words
from labkit.lab.record import canonical_cell

METRICS_SHOWN = 7
CELLS_SHOWN = 60
ROWS_SHOWN = 20  # of one number
ROWS_BYTES = 120_000  # of one page, as HTML writes them


@dataclass(frozen=True)
class MainNumber:
    """What the rule judges: the mean over `n` blocks (geometric where it can be), and the Python that recomputes it."""

    what: str
    value: float
    n: int
    ratio: bool
    geometric: bool
    code: str

    @property
    def text(self) -> str:
        return number(self.value) + ("×" if self.ratio else "")


def main_number(rows: Sequence[Measurement], rule: Rule) -> MainNumber | None:
    """Recomputes from the samples what `rule` judges, block by block; None when they do not give it."""
    from labkit.lab.effects import NoData, centre, effects

    try:
        _, values = effects(rule, rows)
    except NoData:
        return None
    geometric = rule.ratio or min(values) > 0
    what = f"{rule.metric} at {cell_words(rule.cell)}"
    if rule.against is not None:
        what += f" over {cell_words(rule.against)}, block by block"
    return MainNumber(what, centre(values), len(values), rule.ratio, geometric, snippet(rule, geometric))


def snippet(rule: Rule, geometric: bool) -> str:
    """Python, needing nothing but itself and `measurements.csv`, that prints the main number and its count."""
    mean = "statistics.geometric_mean" if geometric else "statistics.fmean"
    cells = [canonical_cell(cell) for cell in (rule.cell, rule.against) if cell is not None]
    lines = [
        "import csv, statistics",
        "",
        f"cell = {cells[0]!r}",
        *([f"against = {cells[1]!r}"] if rule.ratio else []),
        "samples = {}  # (cell, block) → values",
        'for row in csv.DictReader(open("measurements.csv")):',
        f"    if row['metric'] == {rule.metric!r} and row['cell'] in {'(cell, against)' if rule.ratio else '(cell,)'}:",
        "        samples.setdefault((row['cell'], row['block']), []).append(float(row['value']))",
        f"value = {{key: {mean}(values) for key, values in samples.items()}}",
        "blocks = {block for _, block in value}",
    ]
    if rule.ratio:
        lines += [
            "effects = [value[cell, b] / value[against, b] for b in blocks",
            "           if (cell, b) in value and (against, b) in value]",
        ]
    else:
        lines.append("effects = [value[cell, b] for b in blocks]")
    return "\n".join([*lines, f"print({mean}(effects), len(effects))"])


@dataclass(frozen=True)
class Number:
    """A number of the table of cells: the mean of `n` samples of a metric, and the lines of measurements.csv they are."""

    metric: str
    text: str
    n: int
    lines: tuple[str, ...]
    left_out: int  # lines that are not shown


@dataclass(frozen=True)
class CellLine:
    """A cell with a number a metric (None where it has no sample), and the Python that recomputes each of them."""

    name: str
    n: int
    numbers: tuple[Number | None, ...]
    code: str


@dataclass(frozen=True)
class CellTable:
    """The mean of each metric in each cell; `common` are the knobs that all cells have alike, which their names leave out;
    `left_out` says what did not fit."""

    metrics: tuple[str, ...]
    lines: tuple[CellLine, ...]
    left_out: str
    common: str = ""

    @property
    def size(self) -> int:
        """About how many bytes of a page its samples and their code take."""
        found = [one for line in self.lines for one in line.numbers if one]
        return 2_000 * len(self.lines) + sum(300 + sum(map(html_size, one.lines)) for one in found)


def cell_table(rows: Sequence[Measurement], first: str | None = None) -> CellTable | None:
    """Cells down, metrics across (`first` leftmost), geometric means of positive samples; None without rows."""
    samples: dict[str, dict[str, list[Measurement]]] = {}
    for row in rows:
        samples.setdefault(row.cell, {}).setdefault(row.metric, []).append(row)
    if not samples:
        return None
    known = dict.fromkeys(metric for metrics in samples.values() for metric in metrics)
    metrics = sorted(known, key=lambda metric: metric != first)[:METRICS_SHOWN]
    cells = sorted(samples, key=cell_order)
    names, common = cell_names(cells)
    budget, lines = ROWS_BYTES, []
    for cell in cells[:CELLS_SHOWN]:
        numbers = []
        for metric in metrics:
            found = number_of(metric, samples[cell].get(metric, []), budget)
            budget -= sum(map(html_size, found.lines)) if found else 0
            numbers.append(found)
        shown = [one.metric for one in numbers if one]
        most = max(map(len, samples[cell].values()))
        lines.append(CellLine(names[cell], most, tuple(numbers), cell_snippet(cell, shown)))
    hidden = [f"{len(known) - METRICS_SHOWN} more metrics"] if len(known) > METRICS_SHOWN else []
    hidden += [f"{len(cells) - CELLS_SHOWN} more cells"] if len(cells) > CELLS_SHOWN else []
    return CellTable(tuple(metrics), tuple(lines), " and ".join(hidden), common)


def number_of(metric: str, rows: Sequence[Measurement], budget: int) -> Number | None:
    """The number of a metric's samples in a cell, with their lines as the file has them while they fit in `budget`."""
    if not rows:
        return None
    lines = csv_lines(rows[:ROWS_SHOWN]) if budget > 0 else ()
    return Number(metric, mean_text([row.value for row in rows]), len(rows), lines, len(rows) - len(lines))


def csv_lines(rows: Sequence[Measurement]) -> tuple[str, ...]:
    """Rows as `measurements.csv` has them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row._replace(value=repr(row.value)) for row in rows)  # type: ignore[arg-type]
    return tuple(text.getvalue().splitlines())


def html_size(line: str) -> int:
    """The bytes of a line of CSV in a page, where a quotation mark takes five."""
    return len(line) + 4 * line.count('"') + 1


def cell_snippet(cell: str, metrics: Sequence[str]) -> str:
    """Python, needing nothing but itself and `measurements.csv`, that prints each metric of a cell with its count."""
    return "\n".join(
        [
            "import csv, statistics",
            "",
            f"cell, samples = {cell!r}, {{}}",
            'for row in csv.DictReader(open("measurements.csv")):',
            "    if row['cell'] == cell:",
            "        samples.setdefault(row['metric'], []).append(float(row['value']))",
            f"for metric in {list(metrics)!r}:",
            "    values = samples[metric]",
            "    mean = statistics.geometric_mean if min(values) > 0 else statistics.fmean",
            "    print(metric, mean(values), len(values))",
        ]
    )


def mean_text(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if min(values) == max(values):
        return number(values[0])
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


def cell_names(cells: Sequence[str]) -> tuple[dict[str, str], str]:
    """(each cell in words without the knobs that all have alike, those knobs in words); whole names where that leaves
    one without any."""
    try:
        knobs = {cell: dict(json.loads(cell).items()) for cell in cells}
    except (ValueError, AttributeError):
        return {cell: cell_text(cell) for cell in cells}, ""
    alike = {
        name: value for name, value in knobs[cells[0]].items() if all(n.get(name, n) == value for n in knobs.values())
    }
    own = {cell: {name: value for name, value in known.items() if name not in alike} for cell, known in knobs.items()}
    if not alike or not all(own.values()):
        return {cell: cell_text(cell) for cell in cells}, ""
    return {cell: cell_words(rest) for cell, rest in own.items()}, cell_words(alike)


def cell_text(cell: str) -> str:
    """A stored cell in words: `{"kv":"f16","width":8}` is `kv=f16, width=8`."""
    try:
        knobs = json.loads(cell)
    except ValueError:
        return cell
    return cell_words(knobs) if isinstance(knobs, dict) and knobs else cell


def number(value: float) -> str:
    """A number at four significant digits, without an exponent in the common range; a whole one without decimals."""
    if not math.isfinite(value):
        return f"{value:g}"
    if value == round(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    if 1e-4 <= abs(value) < 1e7:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return f"{value:.3e}"
