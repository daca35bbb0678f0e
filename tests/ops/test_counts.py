"""Token counts: marking a prompt's tokens and clearing a slot."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops import counts as op
from labkit.ops.counts import ACTIVE, PROMPT, SEEN_IN_PROMPT, count_prompt, reference

VOCAB = 257


def table(count: int, slots: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, 8), np.uint32)
    rows[:, 0], rows[:, 1], rows[:, 3] = (rng.integers(0, n, count) for n in (VOCAB, slots, 4))
    return rows


@pytest.mark.quick
def test_only_active_prompt_rows_mark_their_token():
    rows = np.zeros((4, 8), np.uint32)
    rows[:, 0], rows[:, 1], rows[:, 3] = [7, 8, 9, 7], [0, 1, 1, 0], [ACTIVE | PROMPT, ACTIVE, PROMPT, ACTIVE | PROMPT]
    before = np.zeros((2, VOCAB), np.uint32)
    before[0, 7] = 5
    after = reference(rows, before)
    assert after[0, 7] == SEEN_IN_PROMPT | 5
    assert np.count_nonzero(after) == 1


@pytest.mark.parametrize("count", [1, 2, 7, 33, 64, 65, 300])
def test_the_kernel_marks_what_the_reference_marks_and_keeps_the_counts(device, count):
    rows = table(count, 5, seed=count)
    before = np.random.default_rng(1).integers(0, 3, (5, VOCAB)).astype(np.uint32)
    assert np.array_equal(count_prompt(device, rows, before), reference(rows, before))


def test_a_token_outside_the_vocabulary_marks_nothing(device):
    rows = np.array([[VOCAB, 0, 0, ACTIVE | PROMPT, 0, 0, 0, 0]], np.uint32)
    before = np.zeros((2, VOCAB), np.uint32)
    assert not count_prompt(device, rows, before).any()
    assert not reference(rows, before).any()


def test_reset_clears_one_slot_and_no_other(device):
    with device.pool() as pool:
        counts = pool.buffer(np.full((3, VOCAB), 9, np.uint32))
        program = device.program()
        op.reset(program, counts, 1, VOCAB)
        program.run()
        pool.check_guards()
        after = counts.download(np.uint32, (3, VOCAB))
        program.close()
    assert not after[1].any()
    assert np.all(after[[0, 2]] == 9)


def test_no_rows_are_refused(device):
    with device.pool() as pool:
        buffer, program = pool.buffer(64), device.program()
        with pytest.raises(ParameterError, match="0 rows over a vocabulary of 257"):
            op.record(program, rows=buffer, counts=buffer, count=0, vocab=VOCAB)
