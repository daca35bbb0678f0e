"""The ratio of a metric at two cells with its interval: paired by block within a run, or of two runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.errors import ParameterError, RunError
from labkit.lab.effects import by_block
from labkit.lab.lever_effect import LeverEffect
from labkit.lab.session_spread import Spread, unpaired_interval
from labkit.lab.starts import samples_of
from labkit.measure import statistics


class Ratio(NamedTuple):
    """New over old, with the ends of its interval (None where there is too little for one) and the samples of each."""

    ratio: float
    low: float | None
    high: float | None
    blocks: tuple[int, int]


def unpaired_ratio(a: Sequence[float], b: Sequence[float], level: float, spread: Spread) -> Ratio:
    """The ratio of the geometric means b / a of positive samples of two runs, with an interval that holds the spread
    between sessions; see `unpaired_interval`."""
    found = unpaired_interval(np.log(a), np.log(b), level, spread).exp()
    return Ratio(found.estimate, found.low, found.high, (len(a), len(b)))


def paired_ratio(rows: Sequence[Any], name: str, cell: str, against: str, level: float) -> Ratio | None:
    """`cell` over `against` (canonical JSON), paired by the blocks that have both; None where no block has, or a sample
    is not positive."""
    try:
        ratios = statistics.paired_ratios(by_block(rows, name, cell), by_block(rows, name, against)).ratios
    except ParameterError:
        return None
    if not ratios or not statistics.positive(ratios):
        return None
    found = statistics.interval(np.log(ratios), level).exp()
    return Ratio(found.estimate, found.low, found.high, (len(ratios), len(ratios)))


def recompute(effect: LeverEffect, old: Path, new: Path) -> Ratio:
    """An effect by the samples of its runs' folders. RunError where they have none of it any more."""
    rows = samples_of(new)
    if effect.paired:
        found = paired_ratio(rows, effect.metric, effect.cells[1], effect.cells[0], effect.level)
    else:
        ends = zip((samples_of(old), rows), effect.cells, strict=True)
        a, b = (list(by_block(samples, effect.metric, cell).values()) for samples, cell in ends)
        spread = Spread(effect.spread[0], effect.spread[1], effect.spread[2], "")
        found = unpaired_ratio(a, b, effect.level, spread) if a and b and min(*a, *b) > 0 else None
    if found is None:
        raise RunError(
            f"{new.name} has no {effect.metric} at {effect.cells[1]} to recompute {effect.old} to {effect.new} by"
        )
    return found
