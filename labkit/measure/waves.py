"""Admission waves: how long a fixed batch takes where only so many of its streams are resident at once, and how many
those were, from makespans alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import ParameterError
from labkit.measure.laws import Law, fit_law

MOST_RESIDENTS = 4096
ALIKE = 1e-9  # of a residual: two numbers of residents that give the same waves at every rung fit equally well


@dataclass(frozen=True)
class Residents:
    """How many streams were resident, as makespans tell: `low` to `high` give the same waves at every rung, so the
    rungs do not tell them apart. `law`: makespan = wave x waves + stream x streams. `misfit`: the root mean square of
    its residuals, a share; `next_misfit`: that of the best number of residents outside, infinite where there is none.
    `bounded`: whether some rung waited; where none did, only `low` is known."""

    low: int
    high: int
    law: Law
    misfit: float
    next_misfit: float
    bounded: bool

    def words(self) -> str:
        """`22 to 23`, `6`, or `64 or more`."""
        if not self.bounded:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def waves(streams: float, residents: float) -> int:
    """How many waves `streams` requests of one length come in where `residents` fit at once: ceil(n / R).

    ParameterError for fewer than one of either."""
    if not (math.isfinite(streams) and math.isfinite(residents)) or streams < 1 or residents < 1:
        raise ParameterError(f"{streams:g} streams and {residents:g} residents: waves need at least one of each")
    return math.ceil(streams / residents)


def fit_waves(streams: Sequence[float], makespans: ArrayLike, residents: int) -> Law:
    """The law of makespans [rungs, blocks] in seconds where `residents` fit at once: each wave costs `wave` seconds and
    each stream `stream` seconds more, as a step does that reads the weights once and computes for each row. Where every
    stream is a wave of its own the two are one, `wave`."""
    counts = [waves(n, residents) for n in streams]
    if all(count == n for count, n in zip(counts, streams, strict=True)):
        return fit_law({"wave": counts}, makespans)
    return fit_law({"wave": counts, "stream": list(streams)}, makespans)


def fit_residents(streams: Sequence[float], makespans: ArrayLike) -> Residents:
    """The number of residents whose waves fit `makespans` [rungs, blocks] best, in relative error.

    Every number from 1 to the largest rung is tried; the largest stands for "or more": then no rung waited. ParameterError
    for fewer than four rungs (two costs and the number of residents are fitted), or rungs over 4,096 streams."""
    if len(set(streams)) < 4:
        raise ParameterError(
            f"{len(set(streams))} different rungs do not tell how many are resident: give at least four"
        )
    most = math.ceil(max(streams))
    if most > MOST_RESIDENTS:
        raise ParameterError(f"a rung of {most} streams is beyond {MOST_RESIDENTS:,}")
    found: dict[int, tuple[float, Law]] = {}
    for count in range(1, most + 1):
        law = fit_waves(streams, makespans, count)
        found[count] = (float(np.sqrt(np.mean(np.square(law.residuals)))), law)
    best = min(found, key=lambda count: found[count][0])
    misfit, law = found[best]
    alike = [count for count, (other, _) in found.items() if other <= misfit + ALIKE]
    rest = [other for other, _ in found.values() if other > misfit + ALIKE]
    return Residents(min(alike), max(alike), law, misfit, min(rest, default=math.inf), best < most)


def tokens_a_resident(pool: float, residents: Residents) -> tuple[float, float]:
    """The least and the most tokens of a pool that one resident takes, c in R = pool / c, by the residents not told
    apart: R residents fit and R + 1 do not, so c lies in (pool / (R + 1), pool / R]."""
    if pool <= 0:
        raise ParameterError(f"a pool of {pool:g} tokens holds nothing")
    return pool / (residents.high + 1), pool / residents.low
