"""Working until power and temperature are steady, by the rule that a window is judged by."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.errors import ParameterError
from labkit.measure.telemetry import Reading
from labkit.measure.transients import BLOCKS, Steady, steady

Readings = Sequence[tuple[float, Reading]]
WATCHED = ("power_w", "temperature_c")


@dataclass(frozen=True)
class Steadied:
    """What it took: `rounds` of work over `seconds`, and the judgement of the last eight rounds, of each metric that the
    device tells. `steady` is True where all are, False where one is not, None where it cannot be told."""

    rounds: int
    seconds: float
    found: tuple[Steady, ...]

    @property
    def steady(self) -> bool | None:
        """Whether the cells that follow are of a steady device."""
        told = [one.steady for one in self.found]
        return False if False in told else True if told and None not in told else None

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """How long it worked, and what is said of each metric."""
        judged = "; ".join(one.words() for one in self.found) or "no reading tells power or temperature"
        return f"{self.rounds} rounds, {self.seconds:.3g} s: {judged}"


def until_steady(
    work: Callable[[], object],
    readings: Callable[[], Readings],
    most_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Steadied:
    """Does `work`, a round of what will be measured, until the last eight rounds were steady by `transients.steady`, or
    `most_s` are over, and nine rounds in any case: the first is left out, which builds what the others use. `readings` has
    times of `clock`. ParameterError for a time that is not above 0."""
    if not most_s > 0:
        raise ParameterError(f"working for {most_s:g} s at the most until it is steady: give a time above 0")
    starts = [clock()]
    while True:
        work()
        starts.append(clock())
        done = len(starts) - 1
        if done <= BLOCKS:
            continue
        start, end, seen = starts[-1 - BLOCKS], starts[-1], readings()
        told = [name for name in WATCHED if any(getattr(one, name) is not None for _, one in seen)]
        found = Steadied(done, end - starts[0], tuple(steady(seen, start, end, name) for name in told))
        if found.steady or found.seconds >= most_s:
            return found
