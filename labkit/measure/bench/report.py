"""The result of a bench: a row a cell with intervals and shares of the device's ceilings, as a table or as JSON."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from labkit.measure.bench.budget import Spent
from labkit.measure.bench.settings import OURS, Cell
from labkit.measure.bench.sides import Sample
from labkit.measure.statistics import Interval, interval, paired_ratios

RATE = {"decode": "decode_tok_s", "prefill": "prefill_tok_s"}
WIDTH = 120


@dataclass
class Results:
    """Samples as they come, by cell and block."""

    samples: dict[Cell, dict[int, Sample]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, cell: Cell, block: int, sample: Sample) -> None:
        """Keep one."""
        self.samples[cell][block] = sample

    def values(self, cell: Cell, metric: str) -> dict[int, float]:
        """The samples of a metric by block."""
        found = self.samples.get(cell, {})
        return {block: sample.metrics[metric] for block, sample in found.items() if metric in sample.metrics}

    def rows(self) -> list["Row"]:
        """A row for each cell that has a sample."""
        return [self._row(cell) for cell in sorted(self.samples, key=_order)]

    def _row(self, cell: Cell) -> "Row":
        rate = RATE[cell.phase]
        rates = self.values(cell, rate)
        names = dict.fromkeys(name for sample in self.samples[cell].values() for name in sample.metrics)
        middles = {name: median(self.values(cell, name).values()) for name in names if name != rate}
        return Row(cell, geometric(rates.values()), middles, self._against(cell, rate))

    def _against(self, cell: Cell, rate: str) -> dict[str, Interval]:
        """Ratios of this cell to other runtimes' of the same work, paired by block; ours only."""
        found = {}
        for other in self.samples:
            same = (other.quant, other.phase, other.streams, other.prompt) == (
                cell.quant, cell.phase, cell.streams, cell.prompt,
            )  # fmt: skip
            if cell.runtime == OURS and same and other.runtime != OURS:
                pairs = paired_ratios(self.values(cell, rate), self.values(other, rate))
                if pairs.ratios:
                    found[other.runtime] = interval(pairs.logs).exp()
        return found


@dataclass(frozen=True)
class Row:
    """One cell's result: its rate with a 95 % interval, medians of its other metrics, ratios to other runtimes."""

    cell: Cell
    rate: Interval
    metrics: dict[str, float]
    against: dict[str, Interval]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            **self.cell.knobs(),
            "tok_s": self.rate.estimate, "tok_s_low": self.rate.low, "tok_s_high": self.rate.high, "n": self.rate.n,
            **self.metrics,
            "ratio_to": {
                name: {"estimate": r.estimate, "low": r.low, "high": r.high, "n": r.n} for name, r in self.against.items()
            },
        }  # fmt: skip


def geometric(values: Iterable[float]) -> Interval:
    """The geometric mean with its 95 % interval, taken on logarithms."""
    return interval([math.log(value) for value in values]).exp()


def _order(cell: Cell) -> tuple[Any, ...]:
    return cell.quant, cell.phase, cell.prompt, cell.streams, cell.runtime != OURS


# As text


def number(value: float | None, digits: int = 3) -> str:
    """A number to `digits` significant digits, five places at most, no exponent; nothing for None."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = min(5, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{places}f}"


def bounds(found: Interval) -> str:
    """Half the width of an interval, as a share of its estimate: `±1.2%`; nothing without one."""
    if found.low is None or found.high is None:
        return ""
    away = max(found.high / found.estimate - 1, 1 - found.low / found.estimate)
    return f"±{100 * away:.1f}%" if away < 1 else "wide"


HEADS = (
    "quant", "work", "runtime", "tok/s", "95 %", "to peer", "gpu ms", "host ms", "rate", "share", "W", "MHz", "°C",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """The rows as text, at most 120 columns wide: every number to three digits or more, its interval as ± of it."""
    lines = [HEADS, *(_line(row) for row in rows)]
    keep = [i for i in range(len(HEADS)) if any(line[i] for line in lines[1:])]
    lines = [tuple(line[i] for i in keep) for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keep))]
    left = {"quant", "work", "runtime"}
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if HEADS[keep[i]] in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip()[:WIDTH])
    return "\n".join(text)


def _line(row: Row) -> tuple[str, ...]:
    m = row.metrics
    if row.cell.phase == "decode":
        rate, share = f"{number(m.get('achieved_gb_s'))} GB/s", m.get("share_of_read_bandwidth")
    else:
        rate, share = f"{number(m['achieved_gflop_s'] / 1e3)} TF/s", m.get("share_of_matrix_rate")
    ratio = next(iter(row.against.values()), None)
    return (
        row.cell.quant, row.cell.label, row.cell.runtime, number(row.rate.estimate, 4), bounds(row.rate),
        f"{ratio.estimate:.2f}x" if ratio else "",
        number(m.get("gpu_ms_step")), number(m.get("host_ms_step"), 2),
        rate,
        f"{100 * share:.0f}%" if share is not None else "",
        number(m.get("power_w")), f"{m['core_mhz']:.0f}" if "core_mhz" in m else "",
        f"{m['temperature_c']:.0f}" if "temperature_c" in m else "",
    )  # fmt: skip


LONGEST = 5  # operations a line of a step's budget names; the record holds all


def budget_line(cell: Cell, rows: Sequence[Spent], read_gb_s: float) -> str:
    """Where a step's time goes, in a line: the longest operations in ms, their share of the sum, and what share of the
    read bandwidth matrices reach."""
    total = sum(row.gpu_ms for row in rows)
    parts = []
    for row in rows[:LONGEST]:
        name = row.operation.removeprefix("linear ").replace(".weight", "").replace("attn_", "").replace(" | ", ", ")
        reads = f", {100 * row.gb_s / read_gb_s:.0f}% of reading" if row.operation.startswith("linear ") else ""
        parts.append(f"{name} {number(row.gpu_ms)} ms ({100 * row.gpu_ms / total:.0f}%{reads})")
    if rest := rows[LONGEST:]:
        parts.append(f"{len(rest)} more {number(sum(row.gpu_ms for row in rest))} ms")
    return f"{cell.quant} {cell.label}: {'; '.join(parts)}"
