"""Whether an engine's tokens are right: its log-probabilities against NumPy's, and against its own at other settings."""

from collections.abc import Collection, Sequence

import numpy as np

from labkit.engine.numpy_executor import NumpyExecutor
from labkit.engine.request import Completion
from labkit.models.model import Model
from labkit.vulkan.device import Device

INT8_GAP = 0.3  # nats: what activations rounded to float16 or int8 put log-probabilities off by, at the most


def gap_bound(device: Device, kv: str, arithmetic: str) -> float:
    """How far log-probabilities may lie apart: by rounding of sums alone, of the cache to float16 too, or on a GPU in
    fast arithmetic of the activations to float16 or int8."""
    if kv == "f32" and arithmetic == "exact":
        return 0.001
    return 0.02 if device.is_cpu or arithmetic == "exact" else INT8_GAP


def numpy_gap(model: Model, made: Completion) -> float:
    """The largest difference of a completion's log-probabilities to those of a plain NumPy forward pass."""
    ids = made.token_ids
    truth = NumpyExecutor(model).logprobs([*made.prompt_ids, *ids], len(ids))
    return max(abs(float(truth[i, token]) - made.logprobs[i]) for i, token in enumerate(ids))


def greedy_gap(model: Model, prompt: Sequence[int], ids: Sequence[int], ends: Collection[int] = ()) -> float:
    """How far the worst of the tokens `ids`, which somebody took as the likeliest behind `prompt`, lies below the likeliest
    by a plain NumPy forward pass, in nats of log-probability. Who is off by b at most takes none further than 2 b below.
    `ends`: tokens that some engines never draw where an output has a fixed length; none of them is missed."""
    truth = NumpyExecutor(model).logprobs([*prompt, *ids], len(ids))
    likeliest = np.delete(truth, list(ends), axis=-1).max(axis=-1)
    return max(max(0.0, float(best - row[token])) for row, best, token in zip(truth, likeliest, ids, strict=True))


def gap_between(made: Sequence[Completion]) -> float:
    """The largest difference of log-probability between completions of one prompt, each against the first, up to the
    first token in which they part: what comes after has another context."""
    first, gap = made[0], 0.0
    for other in made[1:]:
        for mine, yours, ours, theirs in zip(
            first.token_ids, other.token_ids, first.logprobs, other.logprobs, strict=False
        ):
            gap = max(gap, abs(ours - theirs))
            if mine != yours:
                break
    return gap
