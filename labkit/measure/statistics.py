"""Statistics of paired repetitions: ratios by block, intervals, drift, outliers, warm-up and the order of blocks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import ParameterError

RESAMPLES = 10_000
SEED = 20_261_201
LEVEL = 0.95

MARGIN = 0.02  # how far from 1 a ratio still counts as the same, where nothing else is declared
TREND_P, TREND_SIZE = 1e-4, 0.02  # a trend is told when it is both this unlikely by chance and this large

Method = Literal["none", "t", "bootstrap", "sessions", "hull", "welch"]
Word = Literal["faster", "slower", "higher", "lower", "same", "undecided"]
Better = Literal["higher", "lower", "none"]
Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval at `level`; `low` and `high` are None where `n` samples cannot give one."""

    estimate: float
    low: float | None
    high: float | None
    n: int
    method: Method
    level: float = LEVEL

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ParameterError("an interval has both ends or none")

    def exp(self) -> "Interval":
        """The interval of a logarithm taken back to the ratio."""
        low = None if self.low is None else math.exp(self.low)
        high = None if self.high is None else math.exp(self.high)
        return Interval(math.exp(self.estimate), low, high, self.n, self.method, self.level)


@dataclass(frozen=True)
class Pairs:
    """Repetitions of two cells paired by block: `ratios[i]` = a/b in `blocks[i]`, blocks ascending."""

    blocks: tuple[int, ...]
    ratios: tuple[float, ...]

    @property
    def logs(self) -> Floats:
        """Natural logarithms of the ratios."""
        return np.log(np.asarray(self.ratios, dtype=np.float64))


@dataclass(frozen=True)
class Trend:
    """A straight line through values in their order: its slope a step and the two-sided p of no slope."""

    slope: float
    p: float


def paired_ratios(a: Mapping[int, float], b: Mapping[int, float]) -> Pairs:
    """Ratios a/b of the blocks that both have; what has no partner is left out.

    ParameterError when a value is not positive and finite: it has no ratio."""
    blocks = sorted(a.keys() & b.keys())
    for block in blocks:
        for value in (a[block], b[block]):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"a ratio needs positive samples; block {block} has {value!r}")
    return Pairs(tuple(blocks), tuple(a[block] / b[block] for block in blocks))


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The two-sided quantile of Student's t: `freedom` degrees, 12.706 for 1 at 95 %."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean with its t interval. One value has an estimate and no interval; none is a ParameterError."""
    data = _checked(values)
    mean = float(data.mean())
    if len(data) < 2:
        return Interval(mean, None, None, len(data), "none", level)
    half = t_quantile(len(data) - 1, level) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return Interval(mean, mean - half, mean + half, len(data), "t", level)


@lru_cache(maxsize=64)
def _median_ranks(n: int, resamples: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """What the medians of resamples of n sorted values are made of, whatever the values: the distinct pairs of middle
    ranks (m, 2), and how many resamples have each (m,)."""
    drawn = np.random.default_rng(seed).integers(0, n, size=(resamples, n))
    drawn.partition(((n - 1) // 2, n // 2), axis=1)
    pairs, counts = np.unique(drawn[:, [(n - 1) // 2, n // 2]], axis=0, return_counts=True)
    return pairs, counts


def bootstrap_median(
    values: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval of the median: (low, high) over the last axis of `values` (..., n).

    The same seed gives the same interval, in whatever order the values stand. The ends are the order statistics of the
    resampled medians nearest to the percentiles, no interpolation between them."""
    data = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    pairs, counts = _median_ranks(data.shape[-1], resamples, seed)
    medians = data[..., pairs].mean(axis=-1)  # (..., m)
    order = np.argsort(medians, axis=-1)
    below = np.cumsum(counts[order], axis=-1)
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        first = np.argmax(below > round(share * (resamples - 1)), axis=-1)[..., None]
        ends.append(np.take_along_axis(medians, np.take_along_axis(order, first, axis=-1), axis=-1)[..., 0])
    return ends[0], ends[1]


def interval(values: ArrayLike, level: float = LEVEL, seed: int = SEED) -> Interval:
    """The mean of `values` with the wider of its t interval and the bootstrap of the median.

    Hand it log-ratios and take `.exp()` for the geometric mean of ratios. The interval always holds its estimate:
    where the bootstrap is the wider and would miss the mean, it is stretched to it. The t interval alone is too
    narrow for samples with spikes, the bootstrap alone for few samples (it covers 77 % of 95 at n = 3)."""
    data = _checked(values)
    by_t = t_interval(data, level)
    if by_t.low is None or by_t.high is None:
        return by_t
    low, high = (float(end) for end in bootstrap_median(data, level, seed=seed))
    if high - low <= by_t.high - by_t.low:
        return by_t
    return Interval(by_t.estimate, min(low, by_t.estimate), max(high, by_t.estimate), by_t.n, "bootstrap", level)


def session_interval(means: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of session means with its t interval: it holds the spread between sessions, as no session's own does."""
    found = t_interval(means, level)
    return Interval(found.estimate, found.low, found.high, found.n, "sessions", level)


def welch_interval(a: ArrayLike, b: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of `b` minus mean of `a`, not paired, with Welch's t interval (Welch 1947; the degrees of freedom rounded
    down). Handed logarithms it is the ratio b / a. Without two values of each there is no interval."""
    x, y = _checked(a), _checked(b)
    middle, n = float(y.mean() - x.mean()), min(len(x), len(y))
    if n < 2:
        return Interval(middle, None, None, n, "none", level)
    parts = [float(values.var(ddof=1)) / len(values) for values in (x, y)]
    spread = sum(parts)
    if spread == 0:
        return Interval(middle, middle, middle, n, "welch", level)
    freedom = spread**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (x, y), strict=True))
    half = t_quantile(max(1, math.floor(freedom)), level) * math.sqrt(spread)
    return Interval(middle, middle - half, middle + half, n, "welch", level)


def prediction_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Where one more value of the same kind falls: mean ± t · s · √(1 + 1/n). Two values at least, else no interval.

    Of the means of earlier sessions it says what the next session gives while nothing has changed."""
    data = _checked(values)
    if len(data) < 2:
        return Interval(float(data.mean()), None, None, len(data), "none", level)
    spread = float(data.std(ddof=1)) * math.sqrt(1 + 1 / len(data))
    half = t_quantile(len(data) - 1, level) * spread
    return Interval(float(data.mean()), float(data.mean()) - half, float(data.mean()) + half, len(data), "t", level)


def family_level(comparisons: int, level: float = LEVEL) -> float:
    """The level of each of several intervals that together hold the truth in `level` of cases (Bonferroni).

    Chosen over Dunnett's for cells against one control: it holds whatever the spread of each cell, the number of blocks
    each has and how they hang together, and for the bootstrap as for t; eight intervals are about 3 % wider for it.
    Holm would find a little more, but gives no intervals."""
    if comparisons < 1:
        raise ParameterError(f"a family has at least one comparison, not {comparisons}")
    return 1 - (1 - level) / comparisons


def comparison_word(
    low: float | None, high: float | None, better: Better = "lower", margin: float = MARGIN, beyond: bool = False
) -> Word:
    """What the interval of a ratio says of new over old: all of it within 1 ± margin is *same*; else all of it on one side
    of 1 is a difference, *faster* or *slower* by the better direction (*higher* or *lower* where there is none); else
    *undecided*. A difference need not exceed the margin (its interval says how large it is), unless `beyond` asks that
    all of the interval does: between two single sessions, whose own spread it does not hold."""
    if low is None or high is None:
        return "undecided"
    if low >= 1 - margin and high <= 1 + margin:
        return "same"
    if low <= 1 + beyond * margin and high >= 1 - beyond * margin:
        return "undecided"
    grew = low > 1
    if better == "none":
        return "higher" if grew else "lower"
    return "faster" if grew == (better == "higher") else "slower"


def positive(values: ArrayLike) -> bool:
    """Whether logarithms of all values exist."""
    return bool(np.all(np.asarray(values, dtype=np.float64) > 0))


def trend(values: ArrayLike, order: ArrayLike | None = None) -> Trend | None:
    """Least-squares line of `values` over their order, with the t test of its slope; None for fewer than four values.

    Used on the log-ratios of pairs: a ratio that moves through the session means the pairing did not hold."""
    from scipy.special import stdtr

    y = _checked(values)
    x = np.arange(len(y), dtype=np.float64) if order is None else np.asarray(order, dtype=np.float64)
    if len(y) < 4 or np.ptp(x) == 0:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    rest = dy - slope * dx
    error = math.sqrt(float(rest @ rest) / (len(y) - 2) / float(dx @ dx))
    if error == 0:
        return Trend(slope, 1.0 if slope == 0 else 0.0)
    return Trend(slope, float(2 * stdtr(len(y) - 2, -abs(slope / error))))


def trend_alarm(values: ArrayLike, logarithmic: bool = True) -> Trend | None:
    """The trend of a session's effects in their order, where it is beyond chance (p < 1e-4) and moves them by over 2 %
    from first to last; else None. `values` are log-ratios, or with `logarithmic=False` the values themselves, whose move
    is relative to their mean.

    Raw drift is no reason for an alarm: complete blocks cancel it. Ratios that move mean that they did not."""
    line = trend(values)
    if line is None or line.p >= TREND_P:
        return None
    data = np.asarray(values, dtype=np.float64)
    scale = 1.0 if logarithmic else abs(float(data.mean()))
    return line if abs(line.slope) * (len(data) - 1) > math.log1p(TREND_SIZE) * scale else None


def modified_z(values: ArrayLike) -> Floats:
    """Modified z (Iglewicz and Hoaglin 1993): 0.6745 (x - median) / MAD, by the mean deviation where MAD is 0."""
    data = _checked(values)
    away = data - np.median(data)
    scale = float(np.median(np.abs(away))) / 0.6745
    if scale == 0:
        scale = float(np.abs(away).mean()) * 1.253314
    return away / scale if scale else np.zeros_like(away)


def count_outliers(values: ArrayLike, limit: float = 3.5) -> int:
    """How many values lie beyond `limit` modified z-scores. They are counted and shown, never deleted."""
    return int(np.count_nonzero(np.abs(modified_z(values)) > limit))


def warmup_length(values: ArrayLike, window: int = 3, tolerance: float = 0.01) -> int:
    """How many leading values are warm-up: the first from which the running median stays where it ends.

    The place it ends is the median of the second half; staying means within `tolerance` of it or three times the
    noise of that half (from its MAD), whichever is more. 0 for fewer than two windows of values. The dropped values
    are kept in the record; only the number is used."""
    data = _checked(values)
    if len(data) < 2 * window:
        return 0
    settled = data[len(data) // 2 :]
    middle = float(np.median(settled))
    noise = float(np.median(np.abs(settled - middle))) / 0.6745
    band = max(tolerance * abs(middle), 3 * noise)
    running = np.median(np.lib.stride_tricks.sliding_window_view(data, window), axis=-1)
    restless = np.flatnonzero(np.abs(running[: len(data) // 2] - middle) > band)
    if not len(restless):
        # a median of three hides one slow start, the commonest warm-up of all
        return int(abs(data[0] - middle) > 2 * band)
    return int(restless[-1]) + window - 1


def settled(values: ArrayLike, window: int = 3, tolerance: float = 0.01) -> bool:
    """Whether repetitions taken so far have come to rest: the median of the last `window` is that of the window before
    within `tolerance` of it, or each window's median lies among the other's values. Not before two windows."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2 * window:
        return False
    last, before = data[-window:], data[-2 * window : -window]
    now, then = float(np.median(last)), float(np.median(before))
    mixed = last.min() <= then <= last.max() and before.min() <= now <= before.max()
    return bool(mixed or abs(then - now) <= tolerance * abs(now))


def two_groups(values: ArrayLike) -> bool:
    """Whether repetitions fall into two groups: the best split in two (each at least a fifth of the values) leaves
    less of the variance within the groups than it does in 1 of 200 normal samples of that size.

    Two clocks, two memory placements or another program taking turns look like this. False below eight values."""
    data = np.sort(_checked(values))
    n = len(data)
    if n < 8 or np.ptp(data) == 0:
        return False
    least = max(2, -(-n // 5))
    total = float(((data - data.mean()) ** 2).sum())
    within = min(
        float(((data[:cut] - data[:cut].mean()) ** 2).sum() + ((data[cut:] - data[cut:].mean()) ** 2).sum())
        for cut in range(least, n - least + 1)
    )
    return within / total < _two_groups_limit(n)


@lru_cache(maxsize=64)
def _two_groups_limit(n: int, samples: int = 4000) -> float:
    """The 0.5 % quantile of the share of variance left by the best split of n normal values (simulated, fixed seed)."""
    data = np.sort(np.random.default_rng(SEED).standard_normal((samples, n)), axis=1)
    least = max(2, -(-n // 5))
    total = data.var(axis=1) * n
    left = np.stack(
        [data[:, :cut].var(axis=1) * cut + data[:, cut:].var(axis=1) * (n - cut) for cut in range(least, n - least + 1)]
    )
    return float(np.quantile(left.min(axis=0) / total, 0.005))


def block_order(cells: Sequence[T], blocks: int, seed: int = 0) -> list[list[T]]:
    """The order to measure in: `blocks` complete blocks, each with every cell once.

    Two cells go A B B A, so a straight drift falls on both alike; more are shuffled within each block by `seed`,
    which is part of the plan. ParameterError for no cells or no blocks."""
    if not cells or blocks < 1:
        raise ParameterError(f"an order needs cells and blocks, not {len(cells)} cells in {blocks} blocks")
    if len(cells) <= 2:
        return [list(cells) if block % 2 == 0 else list(reversed(cells)) for block in range(blocks)]
    chance = np.random.default_rng(seed)
    return [[cells[index] for index in chance.permutation(len(cells))] for _ in range(blocks)]


def _checked(values: ArrayLike) -> Floats:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise ParameterError(f"statistics need at least one finite value in a row, not {values!r}")
    return data
