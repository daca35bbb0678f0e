"""linear and embedding over K-quants, against the gguf package's own dequantised values."""

import gguf
import numpy as np
import pytest
from k_blocks import K_TYPES, random_rows

from labkit.ops.embedding import embedding
from labkit.ops.linear import linear, reference
from labkit.ops.linear_cuts import Lanes, MatvecK, choose
from labkit.ops.rounding import as_int8

TOLERANCE = {
    "store": 1e-8,
    "add": 1e-8,
    "swiglu": 1e-7,
}  # of matrix products; elementwise where there is an exponential
CUTS = [
    MatvecK(1, 1, 1, 1), MatvecK(2, 2, 4, 1), MatvecK(4, 2, 2, 2), MatvecK(8, 1, 4, 2, True), MatvecK(1, 4, 8, 1, True),
]  # fmt: skip
LANES = [Lanes(1, 2, 1, 8, False), Lanes(4, 1, 4, 16, False), Lanes(2, 4, 8, 8, False)]
CASES = [(48, 256, "swiglu"), (37, 1280, "store"), (7, 512, "add")]  # n, k, epilogue


def values(rows: np.ndarray, kind: str) -> np.ndarray:
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


def case(kind, m, n, k, epilogue, seed):
    """Weights, activations, what was in y before ("add" only)."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    return random_rows(n, k, kind, seed), x, y if epilogue == "add" else None


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize(("n", "k", "epilogue"), CASES)
def test_linear_equals_the_product_with_the_dequantised_weights(device, kind, m, n, k, epilogue):
    rows, x, y = case(kind, m, n, k, epilogue, m)
    want = reference(x, values(rows, kind), epilogue, y)
    assert error(linear(device, x, rows, kind, epilogue=epilogue, y=y), want) < TOLERANCE[epilogue]


@pytest.mark.parametrize("kind", K_TYPES)
def test_a_row_of_the_result_is_bitwise_the_same_in_any_company(device, kind):
    rows, x, _ = case(kind, 33, 80, 512, "store", 2)
    whole = linear(device, x, rows, kind)
    for m in (1, 2, 3, 7, 16):
        assert np.array_equal(linear(device, x[:m], rows, kind), whole[:m])
    assert np.array_equal(linear(device, x[::-1].copy(), rows, kind)[::-1], whole)


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("cut", LANES, ids=str)
def test_every_cut_into_lanes_gives_the_product(device, kind, cut):
    rows, x, _ = case(kind, 5, 70, 768, "store", 3)
    assert error(linear(device, x, rows, kind, cut=cut), reference(x, values(rows, kind))) < TOLERANCE["store"]


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(("n", "k", "epilogue"), CASES)
def test_integer_dot_products_equal_the_product_with_activations_rounded_to_int8(device, kind, cut, n, k, epilogue):
    rows, x, y = case(kind, 5, n, k, epilogue, 9)
    want = reference(as_int8(x), values(rows, kind), epilogue, y)
    assert error(linear(device, x, rows, kind, epilogue=epilogue, y=y, cut=cut), want) < TOLERANCE[epilogue]


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_extreme_codes_and_scales_do_not_overflow_the_integer_sums(device, kind, byte):
    """Every code and scale at an end of its range, every activation at its largest."""
    rows = random_rows(16, 512, kind)
    stored = rows.reshape(-1, rows.shape[1] // 2)
    fields = {"Q6_K": slice(0, 208)}.get(kind, slice(4, None))
    stored[:, fields] = byte
    x = np.stack([np.full(512, 127.0), np.full(512, -127.0)]).astype(np.float32)
    want = reference(x, values(rows, kind))
    got = linear(device, x, rows, kind, cut=MatvecK(2, 1, 2, 1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(values(rows, kind)).max() * 127 * 512)


@pytest.mark.parametrize("kind", K_TYPES)
def test_infinite_activations_reach_only_their_own_row(device, kind):
    rows, x, _ = case(kind, 3, 16, 256, "store", 5)
    x[1, 3] = np.inf
    got = linear(device, x, rows, kind)
    assert not np.any(np.isfinite(got[1]))
    assert np.all(np.isfinite(got[[0, 2]]))


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (37, 768)])
def test_every_bit_of_an_embedding_is_that_of_the_dequantised_row(device, kind, n, k):
    rows, tokens = random_rows(n, k, kind, 6), np.random.default_rng(7).integers(0, n, 9)
    assert np.array_equal(embedding(device, tokens, rows, kind, k), values(rows, kind)[tokens])


@pytest.fixture
def gpu(device, monkeypatch):
    """The device, taken for a GPU by what chooses a cut."""
    monkeypatch.setattr(type(device), "is_cpu", False)
    return device


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("m", [1, 4, 7, 20])
@pytest.mark.parametrize(("n", "k", "epilogue"), CASES)
def test_a_gpu_takes_integer_dot_products_unless_exact(gpu, kind, m, n, k, epilogue):
    layout = {"Q4_K": "q4k", "Q5_K": "q5k", "Q6_K": "q6k"}[kind]
    cut, why = choose(gpu, layout, m, n, k, exact=False, swiglu=epilogue == "swiglu")
    rows, x, y = case(kind, m, n, k, epilogue, 11)
    got = linear(gpu, x, rows, kind, epilogue=epilogue, y=y, exact=False)
    if isinstance(cut, MatvecK):
        want = reference(as_int8(x), values(rows, kind), epilogue, y)
        assert error(got, want) < TOLERANCE[epilogue]
    assert isinstance(cut, MatvecK) or why
    exact, why = choose(gpu, layout, m, n, k, exact=True, swiglu=epilogue == "swiglu")
    assert isinstance(exact, Lanes)
    assert why
    want = reference(x, values(rows, kind), epilogue, y)
    assert error(linear(gpu, x, rows, kind, epilogue=epilogue, y=y, exact=True), want) < TOLERANCE[epilogue]


def test_without_integer_dot_products_activations_stay_float32(gpu, monkeypatch):
    monkeypatch.setattr(type(gpu), "has", lambda self, *names: "intdot" not in names)
    cut, why = choose(gpu, "q4k", 1, 4096, 4096, exact=False, swiglu=False)
    assert isinstance(cut, Lanes)
    assert "no integer dot products" in why
