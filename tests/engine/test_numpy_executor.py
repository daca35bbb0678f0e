"""The NumPy executor against transformers: the truth the kernels are compared with is itself checked."""

import numpy as np
import pytest
from tiny_models import FILES

from labkit.engine.numpy_executor import NumpyExecutor


@pytest.mark.parametrize("name", FILES)
def test_logits_equal_those_of_transformers(tiny, name):
    truth = tiny(name)
    executor = NumpyExecutor(truth.model)
    ids = truth.prompt + truth.greedy[:-1]
    rows = [(token, 0, position) for position, token in enumerate(ids)]
    logits = executor.run(rows, range(len(truth.prompt) - 1, len(ids)))
    scale = np.abs(truth.logits).max()
    assert np.abs(logits - truth.logits).max() / scale < 1e-4
    assert logits.argmax(axis=1).tolist() == truth.greedy


@pytest.mark.parametrize("name", ["llama-q4_1", "odd24-f32"])
def test_rows_in_chunks_and_between_other_slots_give_the_same_logits(tiny, name):
    truth = tiny(name)
    whole = NumpyExecutor(truth.model).run([(t, 0, p) for p, t in enumerate(truth.prompt)], [47])
    executor = NumpyExecutor(truth.model)
    other = truth.prompt[::-1]
    for start, end in ((0, 1), (1, 20), (20, 48)):
        rows = [(truth.prompt[p], 3, p) for p in range(start, end)] + [(other[p], 1, p) for p in range(start, end)]
        logits = executor.run(rows, [end - start - 1])
    np.testing.assert_allclose(logits, whole, rtol=0, atol=1e-5)


@pytest.mark.quick
def test_log_probabilities_are_those_of_the_step_before_each_token(tiny):
    truth = tiny("llama-f32")
    got = NumpyExecutor(truth.model).logprobs(truth.prompt + truth.greedy, 24)
    np.testing.assert_allclose(got, truth.logprobs, rtol=0, atol=2e-4)
