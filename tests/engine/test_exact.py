"""Exact arithmetic: tokens and log-probabilities of transformers, at any chunk, width, slot and order."""

from collections.abc import Sequence

import numpy as np
import pytest
from tiny_models import FILES, words

from labkit.engine.engine import Engine
from labkit.engine.executor import padded, split_bucket
from labkit.engine.numpy_executor import NumpyExecutor

QUICK = ("llama-q4_1", "llama31-f32", "odd-q8_0", "odd24-f32")
EXACT = {"slots": 4, "context": 512, "kv": "f32", "arithmetic": "exact"}


def agree(got: Sequence[int], want: Sequence[int], gap: np.ndarray) -> bool:
    """Equal, but for what follows a step whose two best lie within 0.01."""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            return bool(gap[i] < 0.01)
    return True


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.quick) if n in QUICK else n for n in FILES])
def test_ids_and_log_probabilities_are_those_of_transformers(tiny, engines, name):
    truth = tiny(name)
    [done] = engines(name, **EXACT).generate([truth.prompt], max_tokens=24, ignore_eos=True, logprobs=64)
    assert agree(done.token_ids, truth.greedy, truth.gap)
    assert list(done.token_ids) == truth.greedy, "no tiny reference has a near tie"
    np.testing.assert_allclose(done.logprobs, truth.logprobs.max(axis=1), rtol=0, atol=1e-3)
    for step, top in enumerate(done.top_logprobs):
        ids = [i for i, _ in top]
        values = np.array([v for _, v in top])
        np.testing.assert_allclose(values, truth.logprobs[step][ids], rtol=0, atol=1e-3)
        kth = np.sort(truth.logprobs[step])[-64]
        assert len(set(ids)) == 64
        assert values.min() >= kth - 2e-3, "nothing likelier was left out"
        assert np.all(np.diff(values) <= 0)


@pytest.mark.parametrize("limit", [1, 3, 17, 32])
def test_a_prompt_read_in_chunks_gives_the_same_bits_as_in_one(tiny, device, limit):
    truth = tiny("odd24-f32")
    prompt = truth.prompt * 5  # 240 tokens: two pages
    with Engine(truth.model, device, **EXACT) as engine:
        whole = engine.generate([prompt], max_tokens=12, ignore_eos=True, logprobs=5)[0]
        engine.scheduler.max_rows = limit
        chunked = engine.generate([prompt], max_tokens=12, ignore_eos=True, logprobs=5)[0]
        assert max(step.rows for step in engine.steps[-10:]) <= limit
    assert chunked.token_ids == whole.token_ids
    assert chunked.logprobs == whole.logprobs
    assert chunked.top_logprobs == whole.top_logprobs


def test_scratch_for_attention_is_enough_at_every_depth(tiny, device, monkeypatch):
    """With little scratch the chunks get shorter as the prompt gets deeper; the result stays."""
    import labkit.engine.executor as executor_module

    truth = tiny("llama-f32")
    prompt = words(5, 700)
    with Engine(truth.model, device, **EXACT | {"context": 1024}) as engine:
        want = engine.generate([prompt], max_tokens=4, ignore_eos=True)[0]
    monkeypatch.setattr(executor_module, "SCRATCH_ROW_SPLITS", 56)
    monkeypatch.setattr(executor_module, "rows_limit", lambda device, slots: 32)
    with Engine(truth.model, device, **EXACT | {"context": 1024}) as engine:
        got = engine.generate([prompt] * 4, max_tokens=4, ignore_eos=True)
        assert max(step.rows for step in engine.steps) == 8  # 6 pages: 56 // 6 rows, programs are for powers of two
        assert {done.token_ids for done in got} == {want.token_ids}
        assert {done.logprobs for done in got} == {want.logprobs}


@pytest.mark.parametrize(("slots", "context"), [(1, 128), (3, 2048), (32, 2048), (33, 1000)])
def test_every_slot_decodes_at_full_depth_and_no_program_outgrows_the_scratch(
    tiny, device, monkeypatch, slots, context
):
    import labkit.engine.executor as executor_module

    monkeypatch.setattr(executor_module, "SCRATCH_ROW_SPLITS", 100)
    with Engine(tiny("odd-q4_1").model, device, slots=slots, context=context, arithmetic="exact") as engine:
        executor, c = engine.executor, engine.model.config
        room = executor.partial.nbytes // (c.heads * (c.head_dim + 2) * 4)
        for depth in range(1, context + 1):
            limit = executor.row_limit(depth)
            assert limit >= slots
            assert padded(limit) * split_bucket(depth) <= room
            assert limit <= executor.max_rows


@pytest.mark.parametrize("name", ["llama-q4_1", "odd-q8_0"])
def test_32_streams_give_the_ids_of_32_solo_runs_and_again_in_used_slots(tiny, device, prompts, name):
    options = EXACT | {"slots": 32, "context": 256}
    lengths = {"max_tokens": 12, "ignore_eos": True, "logprobs": 2}
    with Engine(tiny(name).model, device, **options | {"slots": 1}) as solo:
        want = [solo.generate([prompt], **lengths)[0] for prompt in prompts]
    with Engine(tiny(name).model, device, **options) as engine:
        first = engine.generate(prompts, **lengths)
        assert sorted(done.slot for done in first) == list(range(32))
        assert [done.token_ids for done in first] == [done.token_ids for done in want]
        assert [done.logprobs for done in first] == [done.logprobs for done in want]
        order = np.random.default_rng(0).permutation(32).tolist()
        again = engine.generate([prompts[i] for i in order], **lengths)
        assert [done.token_ids for done in again] == [want[i].token_ids for i in order]
        assert [done.top_logprobs for done in again] == [want[i].top_logprobs for i in order]
        assert any(done.slot != i for done, i in zip(again, order, strict=True)), "prompts met slots others had used"
        more = engine.generate(prompts + prompts[::-1], **lengths)  # twice as many as slots: half of them wait
        assert [done.token_ids for done in more] == [done.token_ids for done in [*want, *want[::-1]]]
        engine.executor.pool.check_guards()


def test_prompts_never_seen_agree_with_the_numpy_executor(tiny, engines):
    truth = tiny("llama31-f32")
    prompt = words(77, 200, 768)  # crosses a page
    [done] = engines("llama31-f32", **EXACT).generate([prompt], max_tokens=8, ignore_eos=True, logprobs=3)
    logprobs = NumpyExecutor(truth.model).logprobs(prompt + list(done.token_ids), 8)
    assert list(done.token_ids) == logprobs.argmax(axis=1).tolist()
    np.testing.assert_allclose(done.logprobs, logprobs.max(axis=1), rtol=0, atol=1e-3)


def test_a_half_precision_cache_costs_little(tiny, engines):
    truth = tiny("llama-f32")
    [done] = engines("llama-f32", **EXACT | {"kv": "f16"}).generate(
        [truth.prompt], max_tokens=24, ignore_eos=True, logprobs=1
    )
    same = 0
    while same < 24 and done.token_ids[same] == truth.greedy[same]:
        same += 1
    assert same >= 8
    cost = np.abs(np.array(done.logprobs[:same]) - truth.logprobs.max(axis=1)[:same])
    print(f"a f16 cache moves log-probabilities by {cost.max():.2e} at most over {same} tokens")
    assert cost.max() < 1e-2
    assert cost.max() > 0, "the cache was not half precision"


def test_steps_many_to_a_submit_give_what_one_a_submit_gives(tiny, engines):
    truth = tiny("llama-q4_1")
    engine = engines("llama-q4_1", **EXACT)
    many = engine.generate([truth.prompt, truth.prompt[:9]], max_tokens=100, ignore_eos=True)
    assert max(step.steps for step in engine.steps) > 1
    streamed = list(engine.stream(truth.prompt, max_tokens=100, ignore_eos=True))
    assert tuple(token.id for token in streamed if token.id >= 0) == many[0].token_ids


def test_the_step_program_gives_the_same_bits_when_independent_dispatches_change_places(tiny, device):
    """Every group between two barriers of a real decode step is run backwards: were a range undeclared, bits would move."""
    truth = tiny("odd-q4_1")
    with Engine(truth.model, device, **EXACT) as engine:
        engine.generate([truth.prompt[: 20 - i] for i in range(4)], max_tokens=2, ignore_eos=True)
        executor = engine.executor
        program = executor.decode_program(4)
        rows = executor.row_state.array(np.uint32, (executor.max_rows, 8))
        wanted = executor.logit_rows.array(np.uint32)

        def outcome(run):
            rows[:4] = [[5 + i, i, 3 * i, 1, 9, 0, 0, 0] for i in range(4)]
            wanted[:4] = range(4)
            executor.logits.buffer.fill(0xFF)
            run()
            logits = executor.logits.buffer.download(np.float32, (4, executor.logits.stride))[
                :, : truth.model.config.vocab
            ]
            return logits.copy(), rows[:4].copy()

        forward = outcome(program.run)
        groups: list[list[tuple]] = [[]]
        for operation in program._operations:
            if operation[0] == "barrier":
                groups.append([])
            else:
                groups[-1].append(operation)
        assert any(len(group) > 1 for group in groups) or len(groups) == len(program.dispatches)
        twin = device.program("turned")
        for group in groups:
            twin._operations += [*reversed(group), ("barrier",)]
        backward = outcome(twin.run)
        twin.close()
        assert np.all(np.isfinite(forward[0]))
        np.testing.assert_array_equal(backward[0], forward[0])
        np.testing.assert_array_equal(backward[1], forward[1])
