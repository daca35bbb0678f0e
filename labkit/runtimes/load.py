"""When requests are sent: one after the other, so many at once, at random moments of a rate, or at a growing rate."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from labkit.errors import ParameterError

Kind = Literal["concurrent", "poisson", "ramp"]
MOST_OPEN = 4096


@dataclass(frozen=True)
class Load:
    """How requests arrive.

    *concurrent*: at most `streams` are open, the next is sent when one has ended (closed loop; 1 is synchronous).
    *poisson*: at exponential gaps of `rate` a second, whatever is still open (open loop). *ramp*: the same, the rate
    growing evenly from `rate` to `end_rate` over `seconds`, and staying there. `seed` makes the moments the same again."""

    kind: Kind
    streams: int = 1
    rate: float = 0.0
    end_rate: float = 0.0
    seconds: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("concurrent", "poisson", "ramp"):
            raise ParameterError(f"load {self.kind!r}: use concurrent, poisson or ramp")
        if not 1 <= self.streams <= MOST_OPEN:
            raise ParameterError(f"streams: {self.streams} is not from 1 to {MOST_OPEN}")
        rates = (self.rate, self.end_rate) if self.kind == "ramp" else (self.rate,)
        if self.kind != "concurrent" and not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ParameterError(f"rate: {self.rate:g} requests a second; give a number above 0")
        if self.kind == "ramp" and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ParameterError(f"seconds: {self.seconds:g}; a ramp takes a time above 0")

    @property
    def closed(self) -> bool:
        """Whether a request waits for another to end."""
        return self.kind == "concurrent"

    @property
    def words(self) -> str:
        """`8 at once`, `poisson 2/s`, `ramp 1 to 8/s over 60 s`."""
        if self.kind == "concurrent":
            return "one at a time" if self.streams == 1 else f"{self.streams} at once"
        if self.kind == "poisson":
            return f"poisson {self.rate:g}/s"
        return f"ramp {self.rate:g} to {self.end_rate:g}/s over {self.seconds:g} s"

    def moments(self, count: int) -> Iterator[float]:
        """Seconds after the start at which each of `count` requests is due; all 0 in a closed loop."""
        chance = random.Random(f"arrivals {self.seed}")
        owed = 0.0  # of the integral of the rate
        for _ in range(count):
            if self.closed:
                yield 0.0
                continue
            owed += chance.expovariate(1.0)
            yield owed / self.rate if self.kind == "poisson" else self._ramped(owed)

    def _ramped(self, owed: float) -> float:
        """When the integral of a rate that grows evenly reaches `owed` requests."""
        slope = (self.end_rate - self.rate) / self.seconds
        whole = (self.rate + self.end_rate) / 2 * self.seconds
        if owed >= whole:
            return self.seconds + (owed - whole) / self.end_rate
        if slope == 0:
            return owed / self.rate
        # the smaller root of slope/2 t^2 + rate t = owed, in the form that loses no digits for a small slope
        return 2 * owed / (self.rate + math.sqrt(self.rate**2 + 2 * slope * owed))


def at_once(count: int) -> Load:
    """All `count` requests at the same moment."""
    return Load("concurrent", streams=max(1, count))
