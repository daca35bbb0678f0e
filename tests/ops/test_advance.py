"""The end of a step: rings, counts, the next input of each row, and when a row stops."""

import copy

import numpy as np
import pytest

from labkit.engine.sampling import Sampling, pack
from labkit.errors import ParameterError
from labkit.ops import advance as op
from labkit.ops.advance import (
    LIVE,
    MAX_STOPS,
    NOT_FINITE,
    OUT_WORDS,
    SPENT,
    STOPPED,
    State,
    advance,
    pack_stops,
    reference,
)
from labkit.ops.counts import ACTIVE, PROMPT, SEEN_IN_PROMPT
from labkit.ops.top_logprobs import NONE

VOCAB = 300


def situation(lines: int, seed: int = 0):
    """A random step: (state, chosen, logit_rows, params, stops) with inactive, stopping, ending and broken lines."""
    rng = np.random.default_rng(seed)
    count = lines + 3
    rows = np.zeros((count, 8), np.uint32)
    rows[:, 0], rows[:, 1], rows[:, 2] = (
        rng.integers(0, VOCAB, count),
        rng.permutation(count),
        rng.integers(0, 900, count),
    )
    rows[:, 3], rows[:, 4] = ACTIVE | PROMPT * rng.integers(0, 2, count), rng.integers(1, 4, count)
    logit_rows = rng.permutation(count)[:lines].astype(np.uint32)
    chosen = np.zeros((lines, 4), np.uint32)
    chosen[:, 0] = rng.integers(0, VOCAB, lines)
    chosen[:, 1] = rng.standard_normal(lines).astype(np.float32).view(np.uint32)
    chosen[:, 2] = rng.choice([LIVE, LIVE, LIVE, 0, LIVE | NOT_FINITE], lines)
    chosen[:, 0] = np.where(chosen[:, 2] == LIVE, chosen[:, 0], NONE)
    chosen[:, 3] = np.where(chosen[:, 2] == 0, 0, rows[logit_rows, 1])
    stops = pack_stops(sorted({int(t) for t in chosen[::3, 0] if t != NONE})[:MAX_STOPS])
    counts = rng.integers(0, 4, (count, VOCAB)).astype(np.uint32)
    params = pack([Sampling()] * count, [bool(b) for b in rng.integers(0, 2, count)])
    return State(rows, counts, np.zeros((4, lines, OUT_WORDS), np.uint32), 6), chosen, logit_rows, params, stops


def same(a: State, b: State) -> bool:
    return (
        np.array_equal(a.rows, b.rows)
        and np.array_equal(a.counts, b.counts)
        and np.array_equal(a.out, b.out)
        and a.step == b.step
    )


@pytest.mark.quick
def test_a_step_worked_by_hand(device):
    """Line 0 goes on, 1 stops at a stop id, 2 may pass it but has nothing left, 3 is broken, 4 is idle."""
    rows = np.array(
        [
            [1, 0, 10, ACTIVE, 5, 0, 0, 0], [2, 1, 20, ACTIVE | PROMPT, 5, 0, 0, 0], [3, 2, 30, ACTIVE, 1, 0, 0, 0],
            [4, 3, 40, ACTIVE, 5, 0, 0, 0], [5, 4, 50, 0, 5, 0, 0, 0], [6, 5, 60, ACTIVE, 5, 0, 0, 0],
        ],
        np.uint32,
    )  # fmt: skip
    chosen = np.array(
        [[70, 0, LIVE, 0], [99, 0, LIVE, 1], [99, 0, LIVE, 2], [NONE, 0, LIVE | NOT_FINITE, 3], [NONE, 0, 0, 0]],
        np.uint32,
    )
    counts = np.zeros((6, VOCAB), np.uint32)
    counts[0, 70] = SEEN_IN_PROMPT | 0xFFFF
    params = pack([Sampling()] * 6, [False, False, True, False, False, False])
    state = State(rows, counts, np.zeros((3, 5, OUT_WORDS), np.uint32), 4)
    after, _ = advance(device, state, chosen, np.arange(5, dtype=np.uint32), params, pack_stops([99]))
    assert after.rows[:, :5].tolist() == [
        [70, 0, 11, ACTIVE, 4], [99, 1, 21, 0, 4], [99, 2, 31, 0, 0], [4, 3, 40, 0, 5], [5, 4, 50, 0, 5],
        [6, 5, 60, ACTIVE, 5],
    ]  # fmt: skip
    assert after.out[1, :, 2].tolist() == [LIVE, LIVE | STOPPED, LIVE | SPENT, LIVE | NOT_FINITE, 0]
    assert after.out[1, :, 0].tolist() == [70, 99, 99, NONE, NONE]
    assert not after.out[[0, 2]].any()
    assert after.step == 5
    assert after.counts[0, 70] == SEEN_IN_PROMPT | 0xFFFF  # saturated
    assert (after.counts[1, 99], after.counts[2, 99]) == (1, 1)
    assert np.count_nonzero(after.counts) == 3


@pytest.mark.parametrize("lines", [1, 2, 5, 31, 32, 33, 64, 65, 130])
def test_the_kernel_does_what_the_reference_does(device, lines):
    state, *rest = situation(lines, seed=lines)
    want = copy.deepcopy(state)
    reference(want, *rest)
    got, ring = advance(device, state, *rest)
    assert ring is None
    assert same(got, want)


@pytest.mark.parametrize(("lines", "count"), [(1, 1), (3, 5), (33, 64)])
def test_top_log_probabilities_go_to_the_place_of_the_step_alone(device, lines, count):
    state, *rest = situation(lines)
    top = np.random.default_rng(3).integers(1, 1 << 32, (lines, count, 2)).astype(np.uint32)
    _, ring = advance(device, state, *rest, top=top)
    assert np.array_equal(ring[state.step % 4], top)
    assert not ring[[0, 1, 3]].any()


def test_several_steps_in_one_submit_fill_the_ring_in_order(device):
    state, chosen, logit_rows, params, stops = situation(5)
    chosen[:, 2], state.rows[:, 4] = LIVE, 100
    chosen[:, 0] = np.arange(5)
    stops = pack_stops([])
    want = copy.deepcopy(state)
    for _ in range(6):
        reference(want, chosen, logit_rows, params, stops)
    with device.pool() as pool:
        rows, counts = pool.buffer(state.rows), pool.buffer(state.counts)
        out, control = pool.buffer(state.out), pool.buffer(np.array([state.step], np.uint32))
        program = device.program()
        op.record(
            program, chosen=pool.buffer(chosen), rows=rows, logit_rows=pool.buffer(logit_rows),
            params=pool.buffer(params), counts=counts, stops=pool.buffer(stops),
            control=control, out_ring=out, lines=5, vocab=VOCAB, ring=4,
        )  # fmt: skip
        program.submit(6).wait()
        pool.check_guards()
        got = State(
            rows.download(np.uint32, state.rows.shape), counts.download(np.uint32, state.counts.shape),
            out.download(np.uint32, state.out.shape), int(control.download(np.uint32)[0]),
        )  # fmt: skip
        program.close()
    assert same(got, want)


def test_two_lines_of_one_slot_count_both_tokens(device):
    state, _, _, params, stops = situation(2)
    state.rows[:2, 1], state.counts[:] = 1, 0
    chosen = np.array([[8, 0, LIVE, 1], [8, 0, LIVE, 1]], np.uint32)
    after, _ = advance(device, state, chosen, np.array([0, 1], np.uint32), params, stops)
    assert after.counts[1, 8] == 2


def test_more_stop_ids_than_fit_are_refused():
    assert pack_stops([]).tolist() == [NONE] * MAX_STOPS
    with pytest.raises(ParameterError, match="17 stop ids were given; at most 16"):
        pack_stops(list(range(17)))


def test_top_without_its_ring_is_refused(device):
    names = ("chosen", "rows", "logit_rows", "params", "counts", "stops", "control", "out_ring")
    with device.pool() as pool:
        buffers, program = dict.fromkeys(names, pool.buffer(64)), device.program()
        with pytest.raises(ParameterError, match="count=5 above 0 needs top and top_ring"):
            op.record(program, **buffers, lines=1, vocab=9, ring=1, count=5)
