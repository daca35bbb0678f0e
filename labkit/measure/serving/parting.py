"""Where two greedy outputs of one prompt part, and whether a near-tie explains it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from labkit.engine.numpy_executor import NumpyExecutor
from labkit.measure.bench.agreement import INT8_GAP
from labkit.models.model import Model

TIE = 2 * INT8_GAP  # nats: each of two log-probabilities may be off by rounding to int8, in opposite directions


@dataclass(frozen=True)
class Parting:
    """Two outputs part at token `at`, where one says `first` and the other `second`; by a plain NumPy forward pass the
    log-probabilities of the two lie `gap` nats apart."""

    at: int
    first: int
    second: int
    gap: float

    @property
    def tie(self) -> bool:
        """Whether rounding explains it: either token is as likely, for all that an engine computes."""
        return self.gap <= TIE


def parting(
    model: Model, prompt: Sequence[int], one: Sequence[int], other: Sequence[int], ends: Collection[int] = ()
) -> Parting | None:
    """Where two outputs of `prompt` part; None where the shorter is the beginning of the longer, and where one of them says
    one of `ends`, which some engines never draw in an output of a fixed length. What comes after has another context, and
    is not compared."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return None
    first, second = int(one[at]), int(other[at])
    if first in ends or second in ends:
        return None
    truth = NumpyExecutor(model).logprobs([*prompt, *one[: at + 1]], 1)[0]
    return Parting(at, first, second, abs(float(truth[first] - truth[second])))
