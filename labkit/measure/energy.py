"""Energy of a stretch of time from telemetry: by the card's own counter, else by its power over real times."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from labkit.errors import ParameterError
from labkit.measure.telemetry import Reading

LEAST_COVERED = 0.9  # of the time asked for: below it there is no energy to tell
MOST_GAP = 3.0  # median distances between readings: over a longer one nothing is known
Readings = Sequence[tuple[float, Reading]]


@dataclass(frozen=True)
class Energy:
    """`covered_j` joules over `covered_s` of the `asked_s` seconds asked for; `gaps_s` those over which readings are
    missing. `source`: the card's *counter*, whose difference misses no transient, or *power*, the readings' trapezoids."""

    covered_j: float
    covered_s: float
    asked_s: float
    source: Literal["counter", "power", "none"]
    gaps_s: tuple[float, ...] = ()

    @property
    def joules(self) -> float | None:
        """Of the whole stretch, where at least nine tenths of it are covered: the rest at the mean power of those; else
        None."""
        if self.covered_s <= 0 or self.covered_s < LEAST_COVERED * self.asked_s:
            return None
        return self.covered_j * self.asked_s / self.covered_s

    def per_token(self, tokens: int) -> float | None:
        """Joules a token emitted; None where the energy or the tokens are none."""
        joules = self.joules
        return None if joules is None or tokens < 1 else joules / tokens

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`412 J by the card's counter`, or why there is none."""
        if self.source == "none":
            return "no energy: the card tells neither its power nor a counter"
        if self.joules is None:
            return f"no energy: readings cover {self.covered_s:.3g} of {self.asked_s:.3g} s"
        return f"{self.joules:.4g} J by the {'card’s counter' if self.source == 'counter' else 'readings of power'}"


def energy(readings: Readings, start_s: float, end_s: float) -> Energy:
    """The energy from `start_s` to `end_s`, times as the readings have them.

    Between two readings more than three median distances apart (or 0 s apart) nothing is counted by power; a counter
    that went back, as one that was reset does, is not used. Ends lie between readings: linear between the two around
    them, nothing beyond the first or last. ParameterError for an end not after the start."""
    if not end_s > start_s:
        raise ParameterError(f"energy from {start_s:g} to {end_s:g} s: the end must come after the start")
    counted = [(at, one.energy_j) for at, one in readings if one.energy_j is not None]
    falls = any(later[1] < earlier[1] for earlier, later in itertools.pairwise(counted))
    if len(counted) > 1 and not falls:
        low, high = max(start_s, counted[0][0]), min(end_s, counted[-1][0])
        if high > low:
            spent = interpolate(counted, high) - interpolate(counted, low)
            return Energy(spent, high - low, end_s - start_s, "counter")
    powers = [(at, one.power_w) for at, one in readings if one.power_w is not None]
    if not powers:
        return Energy(0.0, 0.0, end_s - start_s, "none")
    distances = [later[0] - earlier[0] for earlier, later in itertools.pairwise(powers)]
    most = MOST_GAP * median(distances) if distances else 0.0
    joules = covered = 0.0
    gaps: list[float] = []
    for (at, first), (until, second) in itertools.pairwise(powers):
        low, high = max(start_s, at), min(end_s, until)
        if high <= low:
            continue
        if until - at > most:
            gaps.append(high - low)
            continue
        at_low, at_high = (first + (second - first) * (moment - at) / (until - at) for moment in (low, high))
        joules += (at_low + at_high) / 2 * (high - low)
        covered += high - low
    gaps += [gap for gap in (powers[0][0] - start_s, end_s - powers[-1][0]) if gap > most]
    return Energy(joules, covered, end_s - start_s, "power", tuple(gaps))


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """The straight line between the two points around `at`, which lies among them."""
    for (low, first), (high, second) in itertools.pairwise(points):
        if low <= at <= high:
            return first if high == low else first + (second - first) * (at - low) / (high - low)
    raise ParameterError(f"{at:g} lies outside the points, {points[0][0]:g} to {points[-1][0]:g}")
