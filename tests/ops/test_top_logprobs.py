"""The top log-probabilities against float64 and scipy, ties, unusual values and lines in any company."""

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from labkit.errors import ParameterError
from labkit.ops import top_logprobs as op
from labkit.ops.top_logprobs import NONE, reference, top_logprobs

TOLERANCE = 1e-6  # normalised mean squared error of softmax


def draw(lines: int, vocab: int, seed: int = 0, scale: float = 4.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((lines, vocab)) * scale).astype(np.float32)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / max((want.astype(np.float64) ** 2).sum(), 1e-6))


def test_the_reference_is_log_softmax_sorted():
    x = draw(5, 300)
    ids, logprobs, lse = reference(x, 7)
    want = log_softmax(x.astype(np.float64), axis=1)
    assert np.allclose(logprobs, -np.sort(-want, axis=1)[:, :7], rtol=0, atol=1e-12)
    assert np.allclose(np.take_along_axis(want, ids.astype(int), axis=1), logprobs, rtol=0, atol=1e-12)
    assert np.allclose(lse, logsumexp(x.astype(np.float64), axis=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("lines", "vocab", "count"),
    [
        (1, 256, 1), (1, 256, 64), (2, 257, 5), (3, 768, 20), (5, 1023, 5), (1, 1024, 5), (7, 1025, 3), (33, 4099, 5),
        (1, 5, 5), (1, 1, 1), (3, 49152, 5), (2, 49152, 64), (2, 151936, 8), (1, 262144, 2),
    ],
)  # fmt: skip
def test_ids_are_exact_and_log_probabilities_close(device, lines, vocab, count):
    x = draw(lines, vocab, seed=vocab)
    ids, logprobs, lse = top_logprobs(device, x, count)
    want_ids, want, want_lse = reference(x, count)
    assert np.array_equal(ids, want_ids)
    assert error(logprobs, want) < TOLERANCE
    assert error(lse, want_lse) < TOLERANCE


@pytest.mark.parametrize("scale", [1e-38, 1e-42, 1e-3, 1e4, 1e30])
def test_tiny_denormal_and_huge_logits_keep_their_order_and_their_sum(device, scale):
    x = draw(4, 3001, scale=scale)
    x = np.where(np.abs(x) < 1.2e-38, 0, x).astype(np.float32) if scale < 1e-30 else x  # denormals may flush to zero
    ids, logprobs, lse = top_logprobs(device, x, 6)
    want_ids, want, want_lse = reference(x, 6)
    assert np.array_equal(ids, want_ids)
    assert error(logprobs, want) < TOLERANCE
    assert error(lse, want_lse) < TOLERANCE


@pytest.mark.quick
def test_ties_go_to_the_lowest_id_within_and_across_chunks(device):
    x = np.zeros((2, 5000), np.float32)
    x[1, [4999, 17, 2500, 18]] = 3.0
    ids, logprobs, _ = top_logprobs(device, x, 5)
    assert ids[0].tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(logprobs[0], -np.log(5000), atol=1e-5)
    assert ids[1].tolist() == [17, 18, 2500, 4999, 0]


def test_ids_masked_with_minus_infinity_come_last(device):
    x = np.full((2, 3000), -np.inf, np.float32)
    x[0, 2047], x[0, 5], x[1, 2999] = 1.0, 2.0, -4.0
    ids, logprobs, lse = top_logprobs(device, x, 4)
    assert ids.tolist() == [[5, 2047, 0, 1], [2999, 0, 1, 2]]
    assert np.allclose(logprobs[0, :2], log_softmax([2.0, 1.0]), atol=1e-6)
    assert logprobs[1, 0] == 0
    assert lse[1] == -4
    assert np.all(logprobs[:, 2:] == -np.inf)


@pytest.mark.parametrize("place", [0, 3, 1024, 2999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_line_that_is_not_finite_is_refused_alone(device, value, place):
    x = draw(3, 3000)
    clean = top_logprobs(device, x, 5)
    x[1, place] = value
    ids, logprobs, lse = top_logprobs(device, x, 5)
    assert np.all(ids[1] == NONE)
    assert np.isnan(logprobs[1]).all()
    assert np.isnan(lse[1])
    for got, want in zip((ids, logprobs, lse), clean, strict=True):
        assert np.array_equal(got[[0, 2]], want[[0, 2]])


def test_a_line_of_minus_infinities_is_refused(device):
    ids, logprobs, _ = top_logprobs(device, np.full((1, 300), -np.inf, np.float32), 2)
    assert np.all(ids == NONE)
    assert np.isnan(logprobs).all()


def test_a_line_is_bitwise_the_same_in_any_company(device):
    x = draw(33, 5003)
    whole = top_logprobs(device, x, 9)
    for part in (slice(0, 1), slice(32, 33), slice(5, 12), slice(None, None, -1)):
        for got, want in zip(top_logprobs(device, x[part].copy(), 9), whole, strict=True):
            assert np.array_equal(got, want[part])


@pytest.mark.parametrize("cut", [op.Cut(256, 2, 16), op.Cut(64, 4, 8), op.Cut(8, 4, 2)], ids=str)
def test_every_cut_of_the_work_gives_the_same_ids(device, monkeypatch, cut):
    x = draw(9, 5003)
    monkeypatch.setattr(op, "cut", lambda _: cut)
    ids, logprobs, lse = top_logprobs(device, x, 12)
    want_ids, want, want_lse = reference(x, 12)
    assert np.array_equal(ids, want_ids)
    assert error(logprobs, want) < TOLERANCE
    assert error(lse, want_lse) < TOLERANCE


def test_a_padding_line_is_skipped_and_says_so(device):
    x = op.padded(draw(3, 700))
    x[1] = np.nan
    with device.pool() as pool:
        top, lse = pool.buffer(3 * 2 * 8), pool.buffer(3 * 4)
        program = device.program()
        op.record(
            program, logits=pool.buffer(x), logit_rows=pool.buffer(np.array([0, NONE, 9], np.uint32)), top=top, lse=lse,
            partials=pool.buffer(op.partials_bytes(device, 3, 700)), lines=3, vocab=700, stride=700, count=2,
        )  # fmt: skip
        program.run()
        pool.check_guards()
        got = top.download(np.uint32, (3, 2, 2))
        program.close()
    assert np.all(got[1, :, 0] == NONE)
    assert np.all(got[1, :, 1].copy().view(np.float32) == -np.inf)
    assert np.array_equal(got[[0, 2], :, 0], reference(x[[0, 2]], 2)[0])


@pytest.mark.parametrize(("vocab", "count"), [(300, 0), (300, 65), (3, 4)])
def test_a_count_out_of_range_is_refused(device, vocab, count):
    with pytest.raises(ParameterError, match=f"count={count} is out of range: 1 to {min(64, vocab)}"):
        top_logprobs(device, draw(1, vocab), count)


def test_logits_of_a_wrong_shape_are_refused(device):
    with pytest.raises(ParameterError, match="not \\[lines, vocabulary\\]"):
        top_logprobs(device, np.zeros(5, np.float32), 1)
