"""Percentiles with what their count can carry: an interval by order statistics, and no value where there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.measure.statistics import LEVEL

SHOWN = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Percentile:
    """The value below which a share `p` lies, from `n` values; all None where `n` cannot bound it on both sides.

    `low` and `high` are two of the values themselves, which hold the true one in at least `level` of cases, whatever the
    distribution (Conover, Practical Nonparametric Statistics, 3.2), where the values are independent. Gaps between
    tokens are not quite: streams of one batch share their steps, so their interval is the narrower for it."""

    p: float
    n: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = LEVEL

    @property
    def name(self) -> str:
        """`p50`, `p99.9`."""
        return f"p{self.p * 100:g}"


def least_count(p: float, level: float = LEVEL) -> int:
    """How many values a percentile needs: the least n at which neither all values nor none of them lie below it by more
    than a chance of (1 - level) / 2, max(p, 1 - p)^n <= (1 - level) / 2. 6 for the median, 36 for p90, 72 for p95, 368
    for p99. ParameterError for a share that is not between 0 and 1."""
    if not 0 < p < 1:
        raise ParameterError(f"a percentile of {p:g}: give a share between 0 and 1, as 0.99")
    if not 0 < level < 1:
        raise ParameterError(f"a level of {level:g}: give a share between 0 and 1, as 0.95")
    tail, side = (1 - level) / 2, max(p, 1 - p)
    least = max(1, math.floor(math.log(tail) / math.log(side)))
    while side**least > tail:
        least += 1
    return least


def percentile(values: Sequence[float], p: float, level: float = LEVEL) -> Percentile:
    """The percentile of `values` with its interval. Between two values where p n is whole, else the next above: for the
    median what everybody takes. ParameterError for values that are not finite, or no share."""
    data = np.sort(np.asarray(values, dtype=np.float64).ravel())
    if not np.isfinite(data).all():
        raise ParameterError("a percentile needs finite values")
    n = len(data)
    if n < least_count(p, level):
        return Percentile(p, n, level=level)
    low, high = ranks(n, p, level)
    value = float(np.quantile(data, p, method="averaged_inverted_cdf"))
    return Percentile(p, n, value, float(data[low - 1]), float(data[high - 1]), level)


def ranks(n: int, p: float, level: float = LEVEL) -> tuple[int, int]:
    """The ranks (from 1) of the two values that bound the percentile: the largest l with P(B < l) <= (1 - level) / 2 and
    the least u with P(B >= u) <= (1 - level) / 2, B binomial (n, p)."""
    from scipy.special import bdtr

    tail = (1 - level) / 2
    below = bdtr(np.arange(n), n, p)  # below[k] = P(B <= k), k = 0 .. n - 1
    low = int(np.searchsorted(below, tail, side="right"))  # P(B <= l - 1) <= tail
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1  # P(B <= u - 1) >= 1 - tail
    return max(1, low), min(n, high)
