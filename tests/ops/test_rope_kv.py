"""Rotation and the cache write against the plain loop over rows: only active rows, only their own places."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops import rope
from labkit.ops.kv_cache import PAGE, cache_bytes, upload
from labkit.ops.rope_kv import reference, rope_kv
from labkit.ops.rows import make_rows

TOLERANCE = 1e-7  # normalised mean squared error of elementwise operations
SHAPES = [  # heads, kv_heads, head_dim, rope_dim
    (9, 3, 64, 64), (4, 4, 24, 24), (8, 1, 80, 32), (6, 2, 128, 128), (2, 1, 4, 4), (3, 1, 24, 12), (3, 3, 32, 20),
]  # fmt: skip


class Case:
    """A step of `count` rows over 4 slots of 3 pages each, scattered; the cache starts as NaN."""

    def __init__(self, shape: tuple[int, int, int, int], kind: str, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.heads, kv_heads, head_dim, rope_dim = shape
        self.pages = rng.permutation(12).reshape(4, 3).astype(np.uint32)
        places = rng.permutation(4 * 3 * PAGE)[:count]
        self.rows = make_rows(np.zeros(count, int), places // (3 * PAGE), places % (3 * PAGE), rng.random(count) < 0.8)
        self.rows[0, 3] |= 1
        self.qkv = rng.standard_normal((count, (self.heads + 2 * kv_heads) * head_dim)).astype(np.float32)
        self.table = rope.table(3 * PAGE, rope_dim, 1e4)
        self.k = np.full((12, kv_heads, PAGE, head_dim), np.nan, np.float16 if kind == "f16" else np.float32)
        self.v = self.k.copy()

    def run(self, device, pairing: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return rope_kv(
            device, self.qkv, self.rows, self.table, self.k, self.v, self.pages, heads=self.heads, pairing=pairing
        )

    def want(self, pairing: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out = self.qkv.copy(), self.k.copy(), self.v.copy()
        reference(out[0], self.rows, self.table, out[1], out[2], self.pages, heads=self.heads, pairing=pairing)
        return out


def error(got: np.ndarray, want: np.ndarray) -> float:
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    return float(np.nansum((got - want) ** 2) / np.nansum(want**2))


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("pairing", rope.PAIRINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 33])
def test_the_kernel_rotates_and_stores_what_the_loop_does(device, kind, pairing, shape, count):
    case = Case(shape, kind, count)
    (qkv, k, v), (want_qkv, want_k, want_v) = case.run(device, pairing), case.want(pairing)
    assert error(qkv, want_qkv) < TOLERANCE
    assert np.nanmax(np.abs(k.astype(np.float64) - want_k)) <= (2**-9 if kind == "f16" else 1e-6)  # one step of float16
    assert error(k, want_k) < TOLERANCE
    assert np.array_equal(v, want_v, equal_nan=True)  # a copy, rounded to nearest


def test_the_loop_itself_writes_one_place_a_row():
    case = Case((2, 1, 8, 8), "f32", 5)
    _, k, v = case.want("half")
    active = case.rows[case.rows[:, 3] == 1]
    assert np.isfinite(k).all(axis=-1).sum() == np.isfinite(v).all(axis=-1).sum() == len(active)
    for _, slot, position, *_ in active.tolist():
        assert np.isfinite(k[case.pages[slot, position // PAGE], 0, position % PAGE]).all()


def test_an_inactive_row_touches_nothing_even_with_senseless_indices(device):
    case = Case((4, 2, 16, 16), "f16", 3)
    case.rows[:, 3] = [1, 0, 0]
    case.rows[1:, 1:3] = 0xFFFFFFF0
    qkv, k, _ = case.run(device, "half")
    assert np.array_equal(qkv[1:], case.qkv[1:])
    assert np.isfinite(k).all(axis=-1).sum() == 2  # two heads of one position


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
def test_a_row_is_bitwise_the_same_in_any_company(device, pairing):
    case = Case((9, 3, 64, 64), "f16", 33)
    qkv, k, v = case.run(device, pairing)
    alone = Case((9, 3, 64, 64), "f16", 33)
    alone.qkv, alone.rows = case.qkv[::-1].copy(), case.rows[::-1].copy()
    got = alone.run(device, pairing)
    assert np.array_equal(got[0][::-1], qkv)
    assert np.array_equal(got[1], k, equal_nan=True)
    assert np.array_equal(got[2], v, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "stored"),
    [(0.0, 0.0), (65504.0, 65504.0), (1e6, np.inf), (-1e6, -np.inf), (6e-8, 5.9604645e-08), (2049.0, 2048.0)],
)
def test_values_round_to_the_nearest_float16(device, value, stored):
    case = Case((1, 1, 8, 8), "f16", 1)
    case.qkv[:] = value
    _, _, v = case.run(device, "half")
    assert np.array_equal(v[np.isfinite(v) | np.isinf(v)], np.full(8, stored, np.float16))


def test_wrong_arguments_are_refused_in_one_line(device):
    case = Case((4, 2, 16, 16), "f16", 3)
    with pytest.raises(ParameterError, match="pairing 'both'"):
        case.run(device, "both")
    case.heads = 3
    with pytest.raises(ParameterError, match="3 heads are not a multiple of the cache's 2"):
        case.run(device, "half")
    case.heads, case.rows[0, 2] = 4, 3 * PAGE
    with pytest.raises(ParameterError, match="outside 4 slots of 384 positions"):
        case.run(device, "half")
    case.rows[0, 2], case.table = 200, case.table[:100]
    with pytest.raises(ParameterError, match="behind the table's 100"):
        case.run(device, "half")
    case.table = rope.table(3 * PAGE, 6, 1e4)
    with pytest.raises(ParameterError, match="rope_dim=6"):
        case.run(device, "half")


def test_a_cache_that_cannot_be_is_refused_in_one_line(device):
    with pytest.raises(ParameterError, match="'f8' is not one of f16, f32"):
        cache_bytes("f8", 1, 1, 4)
    with pytest.raises(ParameterError, match="multiples of 4"):
        cache_bytes("f16", 1, 1, 6)
    k = np.zeros((2, 1, PAGE, 4), np.float16)
    with device.pool() as pool, pytest.raises(ParameterError, match="does not point into 2 pages"):
        upload(pool, k, k, np.array([[2]]))


def heads_case(shape, kind: str, count: int) -> tuple[Case, np.ndarray, np.ndarray]:
    """A case with a bias of q, k and v, and gains of the heads of q and of k."""
    case, rng = Case(shape, kind, count), np.random.default_rng(9)
    bias = rng.standard_normal(case.qkv.shape[1]).astype(np.float32)
    return case, bias, (1 + rng.standard_normal((2, shape[2])) * 0.3).astype(np.float32)


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("pairing", rope.PAIRINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("biased", "normed"), [(True, False), (False, True), (True, True)])
def test_heads_are_biased_and_normed_before_they_turn(device, kind, pairing, shape, biased, normed):
    case, bias, gains = heads_case(shape, kind, 5)
    more = {"bias": bias if biased else None, "gains": gains if normed else None, "eps": 1e-6}
    got = rope_kv(
        device, case.qkv, case.rows, case.table, case.k, case.v, case.pages, heads=case.heads, pairing=pairing, **more
    )
    want = case.qkv.copy(), case.k.copy(), case.v.copy()
    reference(want[0], case.rows, case.table, *want[1:], case.pages, heads=case.heads, pairing=pairing, **more)
    queries = slice(0, case.heads * shape[2])  # a kernel leaves k and v of qkv as they came
    assert error(got[0][:, queries], want[0][:, queries]) < TOLERANCE
    assert np.array_equal(got[0][:, queries.stop :], case.qkv[:, queries.stop :])
    for found, true in zip(got[1:], want[1:], strict=True):
        assert error(found, true) < (2e-7 if kind == "f16" else TOLERANCE)  # a bias may round the other way


def test_a_normed_row_is_bitwise_the_same_in_any_company(device):
    case, bias, gains = heads_case((9, 3, 64, 64), "f16", 33)
    more = {"heads": 9, "pairing": "half", "bias": bias, "gains": gains, "eps": 1e-6}
    first = rope_kv(device, case.qkv, case.rows, case.table, case.k, case.v, case.pages, **more)
    turned = case.qkv[::-1].copy(), case.rows[::-1].copy()
    again = rope_kv(device, *turned, case.table, case.k, case.v, case.pages, **more)
    assert np.array_equal(again[0][::-1], first[0])
    assert np.array_equal(again[1], first[1], equal_nan=True)
    assert np.array_equal(again[2], first[2], equal_nan=True)


def test_a_bias_or_gains_too_short_are_refused_in_one_line(device):
    case, bias, gains = heads_case((4, 2, 16, 16), "f16", 3)
    for more, words in (({"bias": bias[:-1]}, "holds no bias"), ({"gains": gains[:1], "eps": 1e-6}, "2 x 16 floats")):
        with pytest.raises(ParameterError, match=words):
            rope_kv(
                device, case.qkv, case.rows, case.table, case.k, case.v, case.pages, heads=4, pairing="half", **more
            )
