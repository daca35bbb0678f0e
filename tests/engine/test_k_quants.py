"""Models of K-quants, pure and mixed: what the engine says is what NumPy says of the same weights dequantised."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
from gpu_cuts import as_on_a_gpu
from k_models import CONFIG, HIDDEN, MIXES, quantise, write
from tiny_models import words

from labkit.engine.engine import Engine
from labkit.engine.numpy_executor import NumpyExecutor
from labkit.models.model import Model
from labkit.models.shapes import SHAPES, ShapeModel
from labkit.ops import embedding
from labkit.ops.rows import make_rows

STEPS = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Callable[[str], Model]:
    made: dict[str, Model] = {}

    def get(mix: str) -> Model:
        if mix not in made:
            made[mix] = Model(write(tmp_path_factory.mktemp("k") / f"{mix}.gguf", mix))
        return made[mix]

    return get


@pytest.mark.parametrize(("kind", "bound"), [("Q4_K", 0.085), ("Q5_K", 0.042), ("Q6_K", 0.021)])
def test_the_quantiser_of_these_tests_writes_blocks_that_gguf_reads(kind, bound):
    """Bounds a little above ggml's own relative errors of normal data: 0.072, 0.036 and 0.018."""
    values = np.random.default_rng(1).standard_normal((16, 1024)).astype(np.float32)
    back = gguf.dequantize(quantise(values, kind), gguf.GGMLQuantizationType[kind])
    assert np.sqrt(((back - values) ** 2).mean() / (values**2).mean()) < bound


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
def test_tokens_and_log_probabilities_are_those_of_the_dequantised_weights(device, models, mix, arithmetic):
    model, prompt = models(mix), words(7, 30)
    with Engine(model, device, slots=4, context=256, kv="f32", arithmetic=arithmetic) as engine:
        together = engine.generate([prompt, words(8, 9), words(9, 50)], max_tokens=STEPS, ignore_eos=True, logprobs=8)
        [alone] = engine.generate([prompt], max_tokens=STEPS, ignore_eos=True, logprobs=8)
        if arithmetic == "exact":
            assert together[0].token_ids == alone.token_ids
            assert together[0].logprobs == alone.logprobs
        engine.weights.pool.check_guards()
    truth = NumpyExecutor(model).logprobs([*prompt, *alone.token_ids], STEPS)
    rows = np.arange(STEPS)
    # Fast rounds activations to int8 on a GPU: of 36 tokens the farthest was 0.12 away on an H200.
    limit = 1e-3 if arithmetic == "exact" else 5e-2 if device.is_cpu else 0.2
    np.testing.assert_allclose(alone.logprobs, truth[rows, list(alone.token_ids)], rtol=0, atol=limit)
    assert np.all(truth[rows, list(alone.token_ids)] >= truth.max(axis=1) - 2 * limit), "no token was far likelier"


@pytest.mark.parametrize("mix", ["q4_k_m", "q5_k_m"])
def test_matrices_over_prompts_and_streams_say_what_numpy_says_of_the_dequantised_weights(
    coopmat_device, models, monkeypatch, mix
):
    """Two layouts in a model, so that a norm is rounded for each; 90 rows of a prompt at once, and then three streams."""
    as_on_a_gpu(monkeypatch, coopmat_device)
    model, prompts = models(mix), [words(7, 90), words(8, 9), words(9, 20)]
    with Engine(model, coopmat_device, slots=4, context=256, kv="f16", ub=128, arithmetic="fast") as engine:
        got = engine.generate(prompts, max_tokens=STEPS, ignore_eos=True, logprobs=8)
        ran = {d.kernel for made in engine.executor._programs.values() for d in made.program.dispatches}
        assert {"linear_gemm", "linear_coopmat"} <= {kernel.split(".")[0] for kernel in ran}
        engine.weights.pool.check_guards()
    for prompt, said in zip(prompts, got, strict=True):
        truth = NumpyExecutor(model).logprobs([*prompt, *said.token_ids], STEPS)[np.arange(STEPS), list(said.token_ids)]
        np.testing.assert_allclose(said.logprobs, truth, rtol=0, atol=5e-2)  # as of int8 activations above


@pytest.mark.parametrize("mix", ["q4_k_m", "q5_k_m"])
def test_weights_stay_at_the_bits_of_the_file(device, models, mix):
    model = models(mix)
    with Engine(model, device, slots=1, context=64) as engine:
        matrices = [m for group in engine.weights._matrices.values() for m in group]
        assert sum(m.nbytes for m in matrices) == sum(t.nbytes for t in model.tensors.values() if len(t.shape) == 2)
        assert {m.layout for m in matrices} == {"q4_k_m": {"q4k", "q6k"}, "q5_k_m": {"q5k", "q6k"}}[mix]


@pytest.mark.parametrize("quant", ["q4_k", "q5_k", "q6_k"])
def test_a_shape_of_k_quants_decodes_random_weights_of_the_spread_they_should_have(device, monkeypatch, quant):
    monkeypatch.setitem(SHAPES, "k", CONFIG)
    with Engine(ShapeModel("k", quant), device, slots=2, context=64) as engine, device.pool() as pool:
        done = engine.generate([[1, 2, 3], [4, 5]], max_tokens=5, ignore_eos=True)
        assert all(np.isfinite(c.logprobs).all() for c in done)
        [table] = engine.weights.matrices("token_embd.weight")
        described, values = pool.buffer(make_rows(range(64), [0] * 64, [0] * 64)), pool.buffer(64 * HIDDEN * 4)
        program = device.program()
        embedding.record(program, table, described, values, count=64, x_stride=HIDDEN)
        program.run()
        program.close()
        found = values.download(np.float32, (64, HIDDEN))
        assert 0.01 < found.std() < 0.04
        assert abs(found.mean()) < 0.01
