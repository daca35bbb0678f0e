"""How many requests there were at once, as a step function of time: waiting, decoding, in flight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.errors import ParameterError
from labkit.measure.serving.requests import Timed


@dataclass(frozen=True)
class Steps:
    """A number that changes at moments: from `times[i]` on it is `counts[i]`, and 0 before the first."""

    times: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        """The largest."""
        return max(self.counts, default=0)

    def mean(self, start_s: float, end_s: float) -> float:
        """The mean over a stretch of time. ParameterError for none."""
        if end_s <= start_s:
            raise ParameterError(f"a mean from {start_s:g} to {end_s:g} s: the end must come after the start")
        whole = 0.0
        for i, (at, count) in enumerate(zip(self.times, self.counts, strict=True)):
            until = self.times[i + 1] if i + 1 < len(self.times) else end_s
            whole += count * max(0.0, min(until, end_s) - max(at, start_s))
        return whole / (end_s - start_s)

    def at(self, moment: float) -> int:
        """How many at a moment."""
        return next((count for at, count in zip(self.times[::-1], self.counts[::-1], strict=True) if at <= moment), 0)

    def line(self) -> tuple[list[float], list[int]]:
        """(times, counts) of a picture, drawn as steps: plotly's `line_shape="hv"`."""
        return list(self.times), list(self.counts)


def count_at_once(intervals: Iterable[tuple[float, float]]) -> Steps:
    """How many of these (start, end) hold at each moment; one that ends when another begins does not overlap it."""
    changes: dict[float, int] = {}
    for start, end in intervals:
        if end > start:
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    times: list[float] = []
    counts: list[int] = []
    now = 0
    for at in sorted(changes):
        now += changes[at]
        if not counts or counts[-1] != now:
            times.append(at)
            counts.append(now)
    return Steps(tuple(times), tuple(counts))


def resident(requests: Sequence[Timed]) -> Steps:
    """Requests that decode: from the first token of each to its last. What a server holds in its batch is at least this."""
    return count_at_once(
        (one.first_s, one.last_s) for one in requests if one.first_s is not None and one.last_s is not None
    )


def in_flight(requests: Sequence[Timed]) -> Steps:
    """Requests sent and not ended: from the submit of each to its last token."""
    return count_at_once(
        (one.submit_s, one.last_s) for one in requests if one.submit_s is not None and one.last_s is not None
    )


def waiting(requests: Sequence[Timed]) -> Steps:
    """Requests that wait for their first token, in the server's queue or while their prompts are read: from the submit
    of each to its first token."""
    return count_at_once(
        (one.submit_s, one.first_s) for one in requests if one.submit_s is not None and one.first_s is not None
    )
