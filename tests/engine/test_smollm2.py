"""The real model, SmolLM2-135M-Instruct Q4_1: ids and log-probabilities of float32 transformers, at every width."""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from labkit.engine.engine import Engine
from labkit.engine.numpy_executor import NumpyExecutor
from labkit.models.model import Model

pytestmark = pytest.mark.slow
REFERENCE = json.loads((Path(__file__).resolve().parents[1] / "data" / "smollm2_greedy.json").read_text())
TOKENS, NEAR = 48, 0.01
OTHERS = [
    "<|im_start|>user\nWhy is the sky blue? Größe: 3 µm, 北京.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village by the sea, " * 14,  # crosses a page of the cache
]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model("smollm2-135m") as opened:
        yield opened


@pytest.fixture(scope="module")
def engine_of(model, device) -> Iterator[Callable[..., Engine]]:
    made: dict[str, Engine] = {}

    def get(arithmetic: str = "exact") -> Engine:
        if arithmetic not in made:
            kv = "f32" if arithmetic == "exact" else "f16"
            made[arithmetic] = Engine(model, device, slots=32, context=512, kv=kv, arithmetic=arithmetic)
        return made[arithmetic]

    yield get
    for engine in made.values():
        engine.executor.pool.check_guards()
        engine.close()


def test_greedy_ids_and_top_five_are_those_of_float32_transformers(engine_of):
    cases = REFERENCE["prompts"]
    prompts = [case["prompt"] for case in cases.values()]
    done = engine_of().generate(prompts, max_tokens=TOKENS, ignore_eos=True, logprobs=8)
    compared = 0
    for got, (name, case) in zip(done, cases.items(), strict=True):
        want = case["hf_fp32_dequant"]
        assert list(got.prompt_ids) == case["prompt_ids"], name
        assert len(got.token_ids) == len(want["ids"]) == TOKENS
        for step, top in enumerate(want["top5"]):
            mine = dict(got.top_logprobs[step])
            for token, logprob in top:
                assert mine[token] == pytest.approx(logprob, abs=1e-3), f"{name}, step {step}, token {token}"
            compared += 1
            if got.token_ids[step] != want["ids"][step]:
                assert top[0][1] - top[1][1] < NEAR, f"{name}: parts at step {step} without a near tie"
                break
        else:
            assert engine_of().tokenizer.decode(got.token_ids, special=True) == want["text"]
    assert compared >= TOKENS * 2
    print(f"{compared} of {TOKENS * len(prompts)} steps equal the reference")


@pytest.mark.parametrize("prompt", OTHERS, ids=["chat in other scripts", "two pages"])
def test_prompts_without_a_reference_agree_with_the_numpy_executor(model, engine_of, prompt):
    [got] = engine_of().generate([prompt], max_tokens=12, ignore_eos=True, logprobs=5)
    logprobs = NumpyExecutor(model).logprobs([*got.prompt_ids, *got.token_ids], 12)
    for step, (token, top) in enumerate(zip(got.token_ids, got.top_logprobs, strict=True)):
        assert logprobs[step].max() - logprobs[step][token] < NEAR
        for other, logprob in top:
            assert logprobs[step][other] == pytest.approx(logprob, abs=1e-3)


def test_32_prompts_in_32_slots_give_the_ids_they_give_alone(engine_of):
    engine = engine_of()
    text = engine.tokenizer.encode(
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was " * 2
    )
    prompts = [text[i : 2 * i + 2] for i in range(16)] + [[1000 + i, *text[20 - i : 24]] for i in range(16)]
    assert len({tuple(p) for p in prompts}) == 32
    together = engine.generate(prompts, max_tokens=6, ignore_eos=True, logprobs=1)
    streams = [engine.stream(p, max_tokens=6, ignore_eos=True) for p in prompts[::-1]]  # in slots that others had used
    again = [tuple(token.id for token in stream if token.id >= 0) for stream in streams]
    assert again == [done.token_ids for done in together][::-1]
    for prompt, done in list(zip(prompts, together, strict=True))[::3]:
        [alone] = engine.generate([prompt], max_tokens=6, ignore_eos=True, logprobs=1)
        assert (alone.token_ids, alone.logprobs) == (done.token_ids, done.logprobs)


def test_a_step_of_32_streams_costs_the_host_little(engine_of):
    engine = engine_of()

    def median() -> float:
        before = len(engine.steps)
        streams = [engine.stream([1000 + i], max_tokens=9, ignore_eos=True) for i in range(32)]
        texts = ["".join(token.text for token in stream) for stream in streams]
        assert len(set(texts)) > 16, "detokenising is part of it"
        full = [step for step in engine.steps[before:] if step.decode_only and step.decoding == 32]
        assert len(full) >= 4
        return statistics.median(step.host_s / step.steps for step in full)

    costs = [median()]
    while costs[-1] >= 0.5e-3 and len(costs) < 3:  # other work on the machine empties the caches, and it costs
        costs.append(median())
    print(f"host CPU a step of 32 streams: {', '.join(f'{cost * 1e3:.3f}' for cost in costs)} ms")
    assert min(costs) < 1.5e-3  # the aim is 0.5 ms: see test_lifecycle.py


def test_the_cost_of_fast_on_the_real_model_is_printed_and_bounded(engine_of):
    prompts = [case["prompt"] for case in REFERENCE["prompts"].values()]
    options = {"max_tokens": 16, "ignore_eos": True}
    fast_engine = engine_of("fast")
    fast = fast_engine.generate(prompts, **options)
    sure = engine_of("exact").generate(prompts, **options)
    costs = []
    for got, want in zip(fast, sure, strict=True):
        for a, b, x, y in zip(got.token_ids, want.token_ids, got.logprobs, want.logprobs, strict=True):
            if a != b:
                break
            costs.append(abs(x - y))
    print(f"fast against exact over {len(costs)} tokens: mean {np.mean(costs):.1e}, most {max(costs):.1e}")
    assert len(costs) >= 24
    # a GPU rounds activations to int8 in blocks of 32 (few rows) or to float16; the CPU driver's cut rounds nothing
    mean, most = (1e-2, 1e-1) if fast_engine.device.is_cpu else (5e-2, 5e-1)
    assert np.mean(costs) < mean
    assert max(costs) < most


def test_dispatches_of_a_step_are_as_many_at_32_streams_as_at_one(engine_of):
    counts = {width: engine_of().dispatches(width) for width in (1, 8, 32)}
    print(f"dispatches a step by width {counts}")
    assert counts[32] - counts[1] <= 4
