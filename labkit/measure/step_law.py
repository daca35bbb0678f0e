"""The law of a step over the streams that share it, t0 + r n, and where it bends: its knee, computed and not read off."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import ParameterError
from labkit.measure.laws import Law, fit_law
from labkit.measure.statistics import Interval

STEP, STREAM = "t0, a step", "r, a stream"


@dataclass(frozen=True)
class StepLaw:
    """A step of n streams takes t0 + r n seconds, so n / (t0 + r n) tokens come a second, and never more than `most_tok_s`
    = 1 / r.

    `knee` = t0 / r streams: there a step takes twice t0 and half of `most_tok_s` comes; the rate over the time of a step,
    which a queue's power is (Kleinrock, 1979), is greatest there. It is None where no stream was shown to cost anything,
    or no step, over the streams from `least` to `widest`."""

    law: Law
    least: float
    widest: float
    knee: Interval | None

    @property
    def t0_s(self) -> float:
        """Seconds that a step takes however few streams share it."""
        return self.law.coefficients[STEP].estimate

    @property
    def stream_s(self) -> float:
        """Seconds that each stream adds to a step."""
        return self.law.coefficients[STREAM].estimate

    @property
    def most_tok_s(self) -> float | None:
        """Tokens a second that no number of streams passes; None where no stream was shown to cost anything."""
        return 1 / self.stream_s if self.law.sign(STREAM) > 0 or (self.stream_s > 0 and self._alone) else None

    def step_s(self, streams: float) -> float:
        """Seconds of a step of so many streams."""
        return self.t0_s + self.stream_s * streams

    def tok_s(self, streams: float) -> float:
        """Tokens of all streams a second."""
        return streams / self.step_s(streams)

    @property
    def _alone(self) -> bool:
        return self.law.coefficients[STREAM].low is None

    @property
    def inside(self) -> bool:
        """Whether the knee lies within the streams that were measured."""
        return self.knee is not None and self.least <= self.knee.estimate <= self.widest

    def words(self) -> str:
        """Where the knee is, in a sentence."""
        if self.knee is None:
            return (
                f"no knee from {self.least:g} to {self.widest:g} streams: that a stream lengthens a step, which takes time of "
                f"its own, was not shown"
            )
        ends = (
            "" if self.knee.low is None or self.knee.high is None else f" [{self.knee.low:.3g}, {self.knee.high:.3g}]"
        )
        where = (
            "" if self.inside else f", outside of what was measured ({self.least:g} to {self.widest:g}): not seen there"
        )
        return f"the knee is at {self.knee.estimate:.3g}{ends} streams{where}"


def fit_steps(streams: Sequence[float], steps: ArrayLike) -> StepLaw:
    """The law of the times of a step `steps` [rungs, blocks] in seconds at these numbers of streams (one a rung).

    The knee's interval reaches from the least to the most that the ends of both coefficients' intervals give: where one
    is too large the other is too small, so these ends come together. ParameterError for fewer than two different rungs,
    or times that are not positive."""
    if len(set(streams)) < 2:
        raise ParameterError("one number of streams tells no law of a step: give at least two")
    n, data = np.asarray(streams, float), np.asarray(steps, float)
    law = fit_law({STEP: np.ones(len(n)), STREAM: n}, data)
    return StepLaw(law, float(n.min()), float(n.max()), _knee(law, data.shape[1]))


def _knee(law: Law, blocks: int) -> Interval | None:
    t0, r = law.coefficients[STEP], law.coefficients[STREAM]
    if t0.estimate <= 0 or r.estimate <= 0:
        return None
    if t0.low is None or t0.high is None or r.low is None or r.high is None:
        return Interval(t0.estimate / r.estimate, None, None, blocks, "none")
    if t0.low <= 0 or r.low <= 0:
        return None
    return Interval(t0.estimate / r.estimate, t0.low / r.high, t0.high / r.low, blocks, t0.method)
