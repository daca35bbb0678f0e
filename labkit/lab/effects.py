"""The effects that a rule is judged by: its samples paired by block, without what is warm-up where the plan says so."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from labkit.errors import ParameterError
from labkit.lab.plan import Plan, Rule, cell_words
from labkit.lab.record import canonical_cell
from labkit.measure import statistics


class Sample(Protocol):
    """A row of `measurements.csv`."""

    @property
    def block(self) -> int: ...
    @property
    def cell(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float: ...


class NoData(Exception):
    """The samples the rule needs are not there; the text says which."""


def effects(rule: Rule, rows: Sequence[Sample]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(blocks, effect in each block): the paired ratios, or the metric itself. NoData says what is missing."""
    a = by_block(rows, rule.metric, canonical_cell(rule.cell))
    if not a:
        raise NoData(f"no data: {rule.metric} was not measured at {cell_words(rule.cell)}")
    if rule.against is None:
        return tuple(sorted(a)), tuple(a[block] for block in sorted(a))
    b = by_block(rows, rule.metric, canonical_cell(rule.against))
    if not b:
        raise NoData(f"no data: {rule.metric} was not measured at {cell_words(rule.against)}")
    try:
        pairs = statistics.paired_ratios(a, b)
    except ParameterError as error:
        raise NoData(f"no ratios of {rule.metric}: {error}") from None
    if not pairs.blocks:
        raise NoData(f"no data: no block has both {cell_words(rule.cell)} and {cell_words(rule.against)}")
    return pairs.blocks, pairs.ratios


def settled_rows(plan: Plan, rows: Sequence[Sample]) -> tuple[list[Sample], tuple[int, ...]]:
    """The rows that count, and the blocks in which something was left out as warm-up; all rows where the plan counts it.

    Interleaved, the blocks before the rule's cells have settled are left out, each cell's repetitions taken in their
    order; over restarts, the samples before each restart has. It is found in the metric of the rule alone, by the rule's
    own cells, and never more than half."""
    if plan.warmup == "counted":
        return list(rows), ()
    rule, ends = plan.rule, [canonical_cell(cell) for cell in (plan.rule.cell, plan.rule.against) if cell is not None]
    series: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for row in rows:
        if row.metric == rule.metric and row.cell in ends:
            series[row.cell, row.block if plan.design == "restarts" else -1].append(row)
    if plan.design == "restarts":
        cold = {
            id(row) for found in series.values() for row in found[: statistics.warmup_length([r.value for r in found])]
        }
        left = tuple(sorted({row.block for row in rows if id(row) in cold}))
        return [row for row in rows if id(row) not in cold], left
    first: list[int] = []
    for cell in ends:
        found = by_block(rows, rule.metric, cell)
        blocks = sorted(found)
        first += blocks[: statistics.warmup_length([found[block] for block in blocks])] if blocks else []
    left = tuple(sorted({row.block for row in rows if first and row.block <= max(first)}))
    return [row for row in rows if row.block not in left], left


def by_block(rows: Sequence[Sample], name: str, cell: str) -> dict[int, float]:
    """Block → the cell's sample; several in one block make one, by their geometric mean (plain unless positive)."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.metric == name and row.cell == cell:
            found[row.block].append(row.value)
    return {block: centre(values) for block, values in found.items()}


def centre(values: Sequence[float]) -> float:
    """The geometric mean of positive values, else the arithmetic mean; one value is itself."""
    if len(values) == 1:
        return values[0]
    if min(values) > 0:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)
