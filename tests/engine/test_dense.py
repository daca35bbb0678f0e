"""Dense architectures beside Llama: windows over pages, companions, GPU cuts, and dispatches no Llama pays for."""

import numpy as np
import pytest
from gpu_cuts import as_on_a_gpu
from tiny_models import words

from labkit.engine.engine import Engine
from labkit.engine.numpy_executor import NumpyExecutor

EXACT = {"slots": 4, "context": 512, "kv": "f32", "arithmetic": "exact"}
NAMES = ["qwen2-f32", "qwen3-f32", "qwen3-yarn-f32", "mistral-f32", "gemma3-f32"]


@pytest.mark.parametrize("name", NAMES)
def test_long_prompts_agree_with_the_numpy_executor(tiny, engines, name):
    """200 positions: two pages, of which Mistral's window has left the first."""
    prompt = words(77, 200)
    [done] = engines(name, **EXACT).generate([prompt], max_tokens=6, ignore_eos=True, logprobs=3)
    logprobs = NumpyExecutor(tiny(name).model).logprobs(prompt + list(done.token_ids), 6)
    assert list(done.token_ids) == logprobs.argmax(axis=1).tolist()
    np.testing.assert_allclose(done.logprobs, logprobs.max(axis=1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["qwen2-f32", "qwen3-f32", "mistral-f32", "gemma3-f32"])
def test_chunks_and_companions_change_no_bit(tiny, device, name):
    prompt = words(5, 150)
    with Engine(tiny(name).model, device, **EXACT) as engine:
        [alone] = engine.generate([prompt], max_tokens=8, ignore_eos=True, logprobs=2)
        engine.scheduler.max_rows = 17
        beside = engine.generate([words(6, 9), prompt, words(7, 40)], max_tokens=8, ignore_eos=True, logprobs=2)[1]
    assert beside.token_ids == alone.token_ids
    assert beside.logprobs == alone.logprobs
    assert beside.top_logprobs == alone.top_logprobs


@pytest.mark.parametrize("name", ["qwen2-f32", "qwen3-folder", "mistral-folder", "gemma3-f32"])
def test_programs_as_a_gpu_gets_them_say_what_exact_ones_do(tiny, coopmat_device, monkeypatch, name):
    prompts = [words(1, 150), words(2, 40), words(3, 7)]  # blocks of a prompt's rows, and rows alone
    asked = {"max_tokens": 6, "ignore_eos": True}
    with Engine(tiny(name).model, coopmat_device, **EXACT) as exact:
        sure = exact.generate(prompts, **asked)
    as_on_a_gpu(monkeypatch, coopmat_device)
    with Engine(tiny(name).model, coopmat_device, slots=4, context=512, ub=64, kv="f16", arithmetic="fast") as fast:
        got = fast.generate(prompts, **asked)
        assert any(recorded.key.blocks for recorded in fast.executor._programs.values()), "no rows attended together"
        fast.executor.pool.check_guards()
    for mine, true in zip(got, sure, strict=True):
        for a, b, x, y in zip(mine.token_ids, true.token_ids, mine.logprobs, true.logprobs, strict=True):
            if a != b:
                assert abs(x - y) < 0.1
                break
            assert abs(x - y) < 5e-2


def test_what_cannot_be_fused_says_why(tiny, engines):
    reasons = {"qwen2-f32": "adds a bias", "qwen3-f32": "norms the heads"}
    for name, reason in reasons.items():
        program = engines(name, **EXACT).executor.decode_program(2)
        turned = [d for d in program.dispatches if d.label.startswith("rope_kv")]
        assert len(turned) == tiny(name).model.config.layers
        assert all(d.kernel == "rope_kv_heads.f32" and reason in d.why for d in turned)
    program = engines("gemma3-f32", **EXACT).executor.decode_program(2)
    for kernel, reason in (("rms_norm_add", "norms its own result"), ("swiglu", "ends in GELU")):
        found = [d for d in program.dispatches if d.kernel == kernel]
        assert len(found) == (12 if kernel == "rms_norm_add" else 6)
        assert all(reason in d.why for d in found)


def test_gemma_s_layers_see_and_turn_by_turns(tiny):
    config = tiny("gemma3-f32").model.config
    assert config.windows == (16, 16, 16, 16, 16, 0)
    assert [config.turns_apart(layer) for layer in range(6)] == [True] * 5 + [False]
    assert (config.rope_theta, config.rope_theta_windowed, config.rope_freq_factors) == (1e6, 1e4, (8.0,) * 16)
    assert [config.window(0, 16), config.window(0, 17), config.window(5, 17)] == [0, 16, 0]


def test_the_other_architectures_cost_llama_no_dispatch_and_no_constant(engines):
    """Every layer: norm, product, rotation, attention (and the join of pages), output, norm, gate and up, down."""
    for depth, joins in ((1, 0), (300, 1)):
        for name in ("llama-f32", "qwen3-f32"):
            program = engines(name, **EXACT).executor.decode_program(4, depth)
            layers = 3
            kernels = [d.kernel for d in program.dispatches]
            assert len(kernels) - (8 + joins) * layers == 6, kernels
            known = {"HEAD_DIM", "KV_HEADS", "GROUP", "QPACK", "PAGE", "DIRECT"}
            for d in program.dispatches:
                if d.kernel.startswith("attention."):
                    assert {key for key, _ in d.constants} == known
            assert any(k.startswith("rope_kv_heads") for k in kernels) == (name != "llama-f32")
