"""Fast arithmetic: bitwise the same whoever the neighbours are at one width, and its cost against exact."""

import numpy as np
import pytest
from tiny_models import FILES, words

from labkit.engine.engine import Engine

FAST = {"slots": 32, "context": 256, "kv": "f16", "arithmetic": "fast"}


@pytest.mark.parametrize("name", ["llama-q4_1", "odd24-f32"])
@pytest.mark.parametrize("width", [2, 5, 8, 32])
def test_a_stream_is_bitwise_the_same_whoever_its_neighbours_are(engines, name, width):
    engine = engines(name, **FAST)
    mine = words(1, 23)
    lengths = {"max_tokens": 10, "ignore_eos": True, "logprobs": 5}

    def beside(seed: int, place: int):
        others = [words(seed + i, 23) for i in range(width - 1)]
        return engine.generate([*others[:place], mine, *others[place:]], **lengths)[place]

    first = beside(1000, 0)
    for seed, place in ((2000, 0), (3000, width - 1), (4000, width // 2)):
        other = beside(seed, place)
        assert other.token_ids == first.token_ids
        assert other.logprobs == first.logprobs
        assert other.top_logprobs == first.top_logprobs


@pytest.mark.parametrize("name", FILES)
def test_the_cost_of_fast_against_exact_is_printed_and_bounded(tiny, engines, device, name):
    """Step by step up to where the two part, over eight prompts in one batch."""
    truth = tiny(name)
    prompts = [words(50 + i, 40, truth.model.config.vocab) for i in range(8)]
    fast = engines(name, **FAST).generate(prompts, max_tokens=12, ignore_eos=True)
    with Engine(truth.model, device, **FAST | {"kv": "f32", "arithmetic": "exact"}) as exact:
        want = exact.generate(prompts, max_tokens=12, ignore_eos=True)
    costs = []
    for got, sure in zip(fast, want, strict=True):
        for a, b, x, y in zip(got.token_ids, sure.token_ids, got.logprobs, sure.logprobs, strict=True):
            costs.append(abs(x - y))
            if a != b:
                break
    print(
        f"{name}: fast with a f16 cache against exact, log-probability: mean {np.mean(costs):.1e}, most {max(costs):.1e}"
    )
    assert len(costs) >= 48
    assert np.mean(costs) < 5e-3
    assert max(costs) < 5e-2
