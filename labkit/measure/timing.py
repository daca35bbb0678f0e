"""Rates from emitted tokens over wall time: the window in which all streams decode, and what ran inside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.engine.engine import StepRecord
from labkit.engine.request import Completion
from labkit.errors import ParameterError


@dataclass(frozen=True)
class DecodeWindow:
    """The stretch of a generation in which every stream was decoding.

    `tokens` are ids emitted in it, `seconds` its wall time; `steps`, `gpu_s` and `host_s` come from the engine's own
    records of the submits that lie inside (`gpu_s` is a step's GPU time, `host_s` a step's CPU time of the engine thread).
    """

    streams: int
    tokens: int
    seconds: float
    steps: int
    gpu_s: float
    host_s: float

    @property
    def tok_s(self) -> float:
        """Emitted tokens over wall time, all streams together."""
        return self.tokens / self.seconds

    @property
    def step_s(self) -> float:
        """Wall seconds a step: every stream emits one token a step."""
        return self.seconds * self.streams / self.tokens


def decode_window(completions: Sequence[Completion], records: Sequence[StepRecord]) -> DecodeWindow:
    """From the moment the last stream has its first token to the moment the first stream has its last.

    Raises ParameterError when no submit lies wholly inside, which means the burst was too short to measure.
    """
    if any(len(c.token_times_s) < 2 for c in completions):
        raise ParameterError("a stream emitted fewer than two tokens: give each at least two to measure a rate")
    start = max(c.token_times_s[0] for c in completions)
    end = min(c.token_times_s[-1] for c in completions)
    inside = [
        r for r in records if r.decode_only and r.rows == len(completions) and r.start_s >= start - 1e-9 and r.end_s <= end + 1e-9
    ]  # fmt: skip
    if not inside or end <= start:
        raise ParameterError(f"no whole step had all {len(completions)} streams decoding: use more tokens a burst")
    tokens = sum(sum(start < t <= end for t in c.token_times_s) for c in completions)
    steps = sum(r.steps for r in inside)
    return DecodeWindow(
        len(completions), tokens, end - start, steps,
        gpu_s=sum(r.gpu_s * r.steps for r in inside) / steps, host_s=sum(r.host_s for r in inside) / steps,
    )  # fmt: skip
