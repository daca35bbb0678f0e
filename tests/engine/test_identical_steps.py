"""One step run again and again from one state: a thousand times on a GPU, some on a driver that runs on the CPU."""

import numpy as np
import pytest

from labkit.engine.engine import Engine
from labkit.engine.scheduler import Step
from labkit.models.shapes import ShapeModel
from labkit.ops.rows import ACTIVE


@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
@pytest.mark.parametrize(
    ("quant", "width"), [("f16", 1), ("f16", 8), ("q8_0", 1), ("q8_0", 32), ("q4_0", 1), ("q4_0", 8)]
)
def test_identical_steps_are_bitwise_equal(device, quant, width, arithmetic):
    shape, steps = ("tiny", 20) if device.is_cpu else ("llama-3.2-1b", 1000)
    with Engine(ShapeModel(shape, quant), device, slots=32, context=512, arithmetic=arithmetic) as engine:
        rng = np.random.default_rng(width)
        prompts = [rng.integers(3, 500, 300).tolist() for _ in range(width)]
        engine.generate(
            prompts, max_tokens=2, ignore_eos=True
        )  # keys and values of 300 positions, and clocks that are up
        executor = engine.executor
        rows = np.array([(7 + slot, slot, 300, ACTIVE, 1) for slot in range(width)], np.uint32)
        first = None
        for number in range(steps):
            executor.rows_changed()
            step = Step(rows, tuple(range(width)), True, width)
            tokens, logprobs, _, _ = executor.run(executor.prepare(step, top=0, plain=True), step, 1)[0]
            seen = [tokens, np.array(logprobs, np.float32).tobytes()]
            if number % 100 == 0 or number == steps - 1:
                seen.append(executor.logits.buffer.download(np.uint8)[: width * executor.logits.stride * 4].tobytes())
            if first is None:
                first = seen
                assert all(np.isfinite(logprobs))
            assert seen[:2] == first[:2], f"step {number} differs from the first"
            assert len(seen) == 2 or seen[2] == first[2], f"the logits of step {number} differ from the first"
