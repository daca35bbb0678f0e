"""linear and embedding over K-quants, against the gguf package's own dequantised values."""

import gguf
import numpy as np
import pytest
from k_blocks import K_TYPES, float16_values, random_rows

from labkit.ops.carried_norm import FEW, stride
from labkit.ops.embedding import embedding
from labkit.ops.gemm_cuts import Gemm
from labkit.ops.linear import linear, reference
from labkit.ops.linear_cuts import Coopmat, Lanes, MatvecK, _coopmat, choose, subgroup_for_coopmat
from labkit.ops.rounding import as_int8
from labkit.vulkan.compile import load_spirv
from labkit.vulkan.reflect import reflect

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


# activation rows, and fr, fc, sr, sc, sk, unroll of a cut; n, k, epilogue. Each type meets two: the CPU driver takes long to
# compile one
MATRIX = [
    ("Q4_K", 13, (1, 1, 1, 1, 2, 2), 37, 768, "store"), ("Q5_K", 29, (2, 1, 1, 2, 1, 1), 48, 256, "swiglu"),
    ("Q6_K", 16, (2, 1, 1, 1, 4, 2), 7, 512, "add"), ("Q4_K", 48, (4, 1, 1, 2, 1, 1), 64, 256, "add"),
    ("Q5_K", 33, (2, 2, 1, 1, 4, 1), 37, 1280, "store"), ("Q6_K", 32, (1, 2, 2, 1, 1, 1), 64, 512, "store"),
]  # fmt: skip
# of the square. With a minimum a weight is rounded once or, the product in it before, twice: 8e-8 of the square between them
MATRIX_TOLERANCE = {"Q4_K": 2e-7, "Q5_K": 2e-7, "Q6_K": 1e-8}


@pytest.mark.parametrize(("kind", "m", "pieces", "n", "k", "epilogue"), MATRIX, ids=str)
def test_cooperative_matrices_give_the_product_of_both_sides_rounded_to_float16(
    coopmat_device, kind, m, pieces, n, k, epilogue
):
    cut = Coopmat(*pieces, size=coopmat_device.coopmat_size, subgroup=subgroup_for_coopmat(coopmat_device))
    rows, x, y = case(kind, m, n, k, epilogue, 12)
    want = reference(x.astype(np.float16), float16_values(rows, kind), epilogue, y)
    got = linear(coopmat_device, x, rows, kind, epilogue=epilogue, y=y, cut=cut)
    assert error(got, want) < max(MATRIX_TOLERANCE[kind], TOLERANCE[epilogue])
    # and what rounding weights costs: 2^-11 at most of a scale, of a product and of a sum
    assert error(got, reference(x.astype(np.float16), values(rows, kind), epilogue, y)) < 2e-6


@pytest.mark.parametrize("rows", [2, 8, 16, 17, 32, 64])
@pytest.mark.parametrize("n", [4096, 28672])
@pytest.mark.parametrize("layout", ["q4k", "q5k", "q6k", "bf16", "q4", "q8"])
def test_what_a_cut_of_matrices_unpacks_fits_in_shared_memory(layout, rows, n):
    cut = _coopmat(layout, rows, n, n > 16384, False, 16, 0, 32)
    constants = {
        "CM": 16, "CN": 16, "CK": 16, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc, "SK": cut.sk,
        "UNROLL": cut.unroll, "SUBGROUP": 32, "LOCAL": 32 * cut.sr * cut.sc * cut.sk,
    }  # fmt: skip
    carried = {"CARRIED": rows <= FEW, "CARRIED_ROWS": stride(rows)}
    assert reflect(load_spirv("linear_coopmat", layout), "linear_coopmat", constants | carried).shared_bytes <= 49152
    assert cut.fc * cut.sc * 16 >= rows


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
def test_a_gpu_without_matrices_takes_integer_dot_products_unless_exact(gpu, monkeypatch, kind, m, n, k, epilogue):
    monkeypatch.setattr(gpu, "coopmat_size", 0)
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


@pytest.mark.parametrize("layout", ["q4k", "q5k", "q6k", "bf16"])
def test_more_rows_than_one_go_to_matrices_where_there_are_some(coopmat_device, monkeypatch, layout):
    monkeypatch.setattr(type(coopmat_device), "is_cpu", False)

    def chosen(rows, exact=False):
        return choose(coopmat_device, layout, rows, 4096, 4096, exact=exact, swiglu=False)

    for rows in (2, 8, 9, 64):
        assert isinstance(chosen(rows)[0], Coopmat)
        assert not chosen(rows)[1]
    for rows in (65, 2048):
        assert isinstance(chosen(rows)[0], Gemm)
    for rows, exact in ((1, False), (1, True), (8, True), (300, True)):
        assert not isinstance(chosen(rows, exact)[0], Coopmat | Gemm)


def test_without_integer_dot_products_activations_stay_float32(gpu, monkeypatch):
    monkeypatch.setattr(type(gpu), "has", lambda self, *names: "intdot" not in names)
    cut, why = choose(gpu, "q4k", 1, 4096, 4096, exact=False, swiglu=False)
    assert isinstance(cut, Lanes)
    assert "no integer dot products" in why
