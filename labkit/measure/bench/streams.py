"""Rates from arrival times of tokens, whoever made them: the window in which every stream decodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.errors import ParameterError


@dataclass(frozen=True)
class Arrivals:
    """What one stream sent: `times` of its tokens in seconds of one clock, ascending, and its prompt's length."""

    prompt: int
    submit_s: float
    times: Sequence[float]


@dataclass(frozen=True)
class Window:
    """The stretch in which all streams decode: `counts` tokens of each came in it.

    `depth`: positions a stream sees on average, at the middle of it."""

    counts: tuple[int, ...]
    start_s: float
    end_s: float
    depth: float

    @property
    def streams(self) -> int:
        """How many decode."""
        return len(self.counts)

    @property
    def tokens(self) -> int:
        """Tokens of all streams."""
        return sum(self.counts)

    def row(self, stream: int, since: Callable[[float], float]) -> dict[str, float]:
        """What a record keeps of one stream's part, so that the rate can be computed again."""
        return {
            "window_start_s": since(self.start_s), "window_end_s": since(self.end_s), "window_tokens": self.counts[stream],
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    @property
    def tok_s(self) -> float:
        """Tokens of all streams a second of wall time."""
        return self.tokens / self.seconds

    @property
    def step_s(self) -> float:
        """Seconds a step: every stream gets one token a step."""
        return self.seconds * self.streams / self.tokens


def window_of(streams: Sequence[Arrivals]) -> Window:
    """From the moment the last stream has its first token to the moment the first stream has its last.

    Raises ParameterError when the streams do not all decode at once for at least two steps."""
    if any(len(s.times) < 2 for s in streams):
        raise ParameterError("a stream sent fewer than two tokens: ask for more to measure a rate")
    start = max(s.times[0] for s in streams)
    end = min(s.times[-1] for s in streams)
    before = [sum(t <= start for t in s.times) for s in streams]
    inside = [sum(start < t <= end for t in s.times) for s in streams]
    if end <= start or sum(inside) < 2 * len(streams):
        raise ParameterError(
            f"{len(streams)} streams did not all decode at once: give each more tokens than others take to start"
        )
    depth = sum(s.prompt + b + i / 2 for s, b, i in zip(streams, before, inside, strict=True)) / len(streams)
    return Window(tuple(inside), start, end, depth)
