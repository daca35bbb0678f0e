"""Programs as a GPU gets them, fused, against exact ones: their log-probabilities, their ids, and their dispatches."""

from dataclasses import replace

import pytest
from gpu_cuts import as_on_a_gpu
from tiny_models import words

from labkit.engine.engine import Engine
from labkit.models.shapes import SHAPES, ShapeModel
from labkit.ops.carried_norm import FEW

NEAR = 2e-2  # of a log-probability, fast against exact
SETTINGS = {"slots": 32, "context": 256, "kv": "f16", "ub": 64}
ASKED = {"max_tokens": 6, "ignore_eos": True, "logprobs": 5}
PROMPTS = [words(i, 5 + i, 512) for i in range(20)]
LONG = words(99, 200, 512)
LAYERS = SHAPES["tiny"].layers
WIDE = replace(SHAPES["tiny"], hidden=256, heads=8)  # rows long enough for int8 matrices of 8x8x8


def wide(quant: str) -> ShapeModel:
    """A shape of ours under a name of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, "wide", WIDE)
        return ShapeModel("wide", quant)


@pytest.fixture(scope="module", params=["f16", "q8_0", "q4_0", "q4_k"])
def engines(request, coopmat_device):
    """The type of the weights, a fast engine as on a GPU, and what an exact one says to `PROMPTS` and `LONG`."""
    model = ShapeModel("tiny", request.param)
    if request.param != "f16":
        model = wide(request.param)
    with Engine(model, coopmat_device, arithmetic="exact", **SETTINGS) as exact:
        sure = exact.generate([*PROMPTS, LONG], **ASKED)
    with pytest.MonkeyPatch.context() as patch:
        as_on_a_gpu(patch, coopmat_device)
        with Engine(model, coopmat_device, arithmetic="fast", **SETTINGS) as fast:
            yield request.param, fast, sure
            fast.executor.pool.check_guards()


def check(got, sure) -> None:
    """Near each other step by step, with the same ids; where exact itself is undecided between two, they may part."""
    for step, (mine, true) in enumerate(zip(got.top_logprobs, sure.top_logprobs, strict=True)):
        mine, true = dict(mine), dict(true)
        common = mine.keys() & true.keys()
        assert len(common) >= 3
        assert max(abs(mine[t] - true[t]) for t in common) < NEAR
        if got.token_ids[step] != sure.token_ids[step]:
            assert true[sure.token_ids[step]] - true[got.token_ids[step]] < NEAR
            return


@pytest.mark.parametrize("width", [1, 2, 5, 20])
def test_fast_programs_say_what_exact_ones_do(engines, width):
    _, fast, sure = engines
    for got, want in zip(fast.generate(PROMPTS[:width], **ASKED), sure[:width], strict=True):
        check(got, want)


def test_a_prompt_read_beside_streams_that_decode_disturbs_neither(engines):
    """The long prompt takes what rows are left of a step: three streams decode beside its later pieces."""
    _, fast, sure = engines
    before = len(fast.steps)
    got = fast.generate([*PROMPTS[:3], LONG], **ASKED)
    for one, want in zip(got, [*sure[:3], sure[20]], strict=True):
        check(one, want)
    mixed = [step for step in fast.steps[before:] if not step.decode_only and step.decoding >= 3 and step.rows > 4]
    assert len(mixed) >= 3


def test_a_decode_step_takes_as_many_dispatches_at_any_width_and_fewer_alone(engines):
    """Alone: embedding; q, k and v with norm, rotation and cache, attention, output, gate and up with norm, down, a
    layer; logits with norm; scan, choice, advance. In company the first norm and the last are dispatches of their own, and
    those between, of few rows, are carried by the products around them where all products take float16."""
    kind, fast, _ = engines
    took = {width: fast.executor.decode_program(width).dispatches for width in (1, 2, 3, 5, 8, 12, 20)}
    labels = [dispatch.label for dispatch in took[1]]
    assert len(labels) == 1 + 5 * LAYERS + 1 + 3, labels
    assert not any("norm" in label or "rope" in label for label in labels)
    counts = {width: len(program) for width, program in took.items() if width > 1}
    for width, count in counts.items():
        carried = width <= FEW and not any("int8" in dispatch.kernel for dispatch in took[width])
        norms = 2 if carried else 2 * LAYERS + 1
        # what a product does not leave rounded is rounded before the next
        roundings = 0 if kind == "f16" else 2 * LAYERS
        assert 0 <= count - len(labels) - norms <= roundings, counts
