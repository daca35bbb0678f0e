"""Transients and steady state of a card's power and temperature, from its readings, and what the readings cannot see."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from labkit.errors import ParameterError
from labkit.measure.sensor import renewal
from labkit.measure.serving.percentiles import Percentile, percentile
from labkit.measure.statistics import t_quantile
from labkit.measure.telemetry import Reading

Readings = Sequence[tuple[float, Reading]]
BLOCKS = 8  # means of a window that a trend is read from: readings near each other are not independent
RISES = {"temperature_c": 1.0, "power_w": 0.02, "core_mhz": 0.02}  # over the window: °C, else a share of the mean


@dataclass(frozen=True)
class Transients:
    """Power of a window by its readings, in watts. `peak_of_cap` and `over_cap` (the share of readings above the cap) are
    None without a cap. `period_s` is the median distance between readings, `longest_s` the longest; `renewed_s` is how
    often the sensor's value changes (see `sensor.renewal`), None where that is not told."""

    n: int
    mean_w: float
    median_w: float
    peak_w: float
    p99: Percentile
    period_s: float
    longest_s: float
    renewed_s: float | None = None
    cap_w: float | None = None
    over_cap: float | None = None

    @property
    def peak_of_cap(self) -> float | None:
        """The peak as a share of the cap."""
        return None if not self.cap_w else self.peak_w / self.cap_w

    @property
    def shortest_s(self) -> float:
        """The shortest transient that no two readings can have between them. A card's own reading may be a mean over
        longer than that: then its peak is lower than the power was."""
        return max(self.longest_s, self.renewed_s or 0.0)

    def sees(self, seconds: float) -> float:
        """The chance that a transient of this length falls on a reading, at a random moment: its length over the period of
        reading, or of the sensor's renewal where that is longer and each value is of a moment."""
        return min(1.0, max(0.0, seconds) / max(self.period_s, self.renewed_s or 0.0))

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """The statistics, and what they cannot say, in a sentence."""
        cap = "" if self.cap_w is None else f", {self.peak_of_cap:.0%} of the cap of {self.cap_w:g} W"
        over = "" if self.over_cap is None else f"; {self.over_cap:.1%} of readings above it"
        return (
            f"{self.mean_w:.4g} W on average, {self.peak_w:.4g} W at the most{cap}{over}; a reading every "
            f"{self.period_s * 1e3:.3g} ms: a transient of 1 ms is seen with a chance of {self.sees(1e-3):.1%}, one of "
            f"{self.shortest_s * 1e3:.3g} ms always"
        )


def transients(readings: Readings, start_s: float, end_s: float, cap_w: float | None = None) -> Transients:
    """Statistics of the power from `start_s` to `end_s`. ParameterError for fewer than two readings of power in it."""
    inside = [(at, one.power_w) for at, one in readings if start_s <= at <= end_s and one.power_w is not None]
    if len(inside) < 2:
        raise ParameterError(
            f"{len(inside)} readings of power from {start_s:g} to {end_s:g} s: transients need at least two"
        )
    watts = [power for _, power in inside]
    apart = [later - now for (now, _), (later, _) in itertools.pairwise(inside)]
    over = None if cap_w is None else sum(power > cap_w for power in watts) / len(watts)
    return Transients(
        len(watts),
        fmean(watts),
        median(watts),
        max(watts),
        percentile(watts, 0.99),
        median(apart),
        max(apart),
        renewal([one for one in readings if start_s <= one[0] <= end_s]).period_s,
        cap_w,
        over,
    )


@dataclass(frozen=True)
class Steady:
    """Whether a window was steady: how much the fitted line rises over it, and by how much that is uncertain (95 %).

    `steady` is True where the rise with its uncertainty stays within `limit`, False where it lies beyond, None where it
    cannot be told. Temperatures in °C, else as a share of the mean."""

    metric: str
    steady: bool | None
    rise: float = math.nan
    uncertainty: float = math.nan
    limit: float = math.nan
    n: int = 0

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`temperature_c rises by 3.2 ± 0.4 over the window, of 1 at the most: not steady`."""
        if math.isnan(self.rise):
            return f"{self.metric}: {self.n} readings do not tell whether it was steady; it takes {2 * BLOCKS}"
        said = {True: "steady", False: "not steady", None: "it cannot be told whether it was steady"}[self.steady]
        rise = f"{self.rise:.3g} ± {self.uncertainty:.2g}"
        return f"{self.metric} rises by {rise} over the window, of {self.limit:g} at the most: {said}"


def steady(readings: Readings, start_s: float, end_s: float, metric: str = "temperature_c") -> Steady:
    """Whether `temperature_c`, `power_w` or `core_mhz` kept still from `start_s` to `end_s`.

    The window is cut into eight of equal length, and a line fitted to their means, since readings near each other hang
    together; its rise over the window, with the t interval of its slope, is held against 1 °C, or 2 % of the mean. A card
    that warms by D degrees as 1 - exp(-t / T) rises by D exp(-t / T) (1 - exp(-w / T)) in a window of w. Of simulated
    sensors with noise that hangs together over a thirtieth of the window, 9 in 10 steady ones are called so and none of
    the warming ones is. Sixteen readings at least, two in each part, else it is not told. ParameterError for another
    metric, or an end not after the start."""
    if metric not in RISES:
        raise ParameterError(f"{metric!r} has no steady state here; there are {', '.join(RISES)}")
    if not end_s > start_s:
        raise ParameterError(f"a window from {start_s:g} to {end_s:g} s: the end must come after the start")
    inside = [
        (at, value) for at, one in readings if start_s <= at <= end_s and (value := getattr(one, metric)) is not None
    ]
    span = (end_s - start_s) / BLOCKS
    parts: list[list[float]] = [[] for _ in range(BLOCKS)]
    for at, value in inside:
        parts[min(BLOCKS - 1, int((at - start_s) / span))].append(value)
    if any(len(part) < 2 for part in parts):
        return Steady(metric, None, n=len(inside))
    means = np.array([fmean(part) for part in parts])
    scale = 1.0 if metric == "temperature_c" else abs(float(means.mean())) or 1.0
    x = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float(x @ means / (x @ x))
    rest = means - means.mean() - slope * x
    error = math.sqrt(float(rest @ rest) / (BLOCKS - 2) / float(x @ x))
    rise = slope * BLOCKS / scale
    sure = t_quantile(BLOCKS - 2) * error * BLOCKS / scale
    limit = RISES[metric]
    found = True if abs(rise) + sure <= limit else False if abs(rise) - sure > limit else None
    return Steady(metric, found, rise, sure, limit, len(inside))
