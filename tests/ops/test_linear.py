"""The linear kernel against float64 products of the same dequantised weights, in every layout."""

import gguf
import numpy as np
import pytest
import scipy.special

from labkit.errors import ModelError, ParameterError
from labkit.models.tensor_types import tensor_type
from labkit.ops.linear import linear, reference
from labkit.ops.linear_cuts import Coopmat, Lanes, Matvec, MatvecInt8, subgroup_for_coopmat
from labkit.ops.rounding import as_int8
from labkit.ops.weights import LAYOUTS, interleave, pack

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
TOLERANCE = 1e-8  # normalised mean squared error of matrix products


def weights(n: int, k: int, kind: str, seed: int = 0) -> np.ndarray:
    """Random rows [n, k] in the file's blocks, as uint8 [n, bytes]."""
    data = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    quantised = gguf.quantize(data, gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(quantised).view(np.uint8).reshape(n, -1)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (33, 96), (7, 544)])
def test_linear_equals_the_product_with_the_dequantised_weights(device, kind, m, n, k):
    rows = weights(n, k, kind)
    x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
    want = reference(x, tensor_type(kind).dequantise(rows))
    assert error(linear(device, x, rows, kind), want) < TOLERANCE


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("k", [4, 20, 24, 100])
def test_rows_that_are_no_multiple_of_a_block_are_not_read_past_their_end(device, kind, k):
    rows = weights(19, k, kind)
    x = np.random.default_rng(1).standard_normal((3, k)).astype(np.float32)
    assert error(linear(device, x, rows, kind), reference(x, tensor_type(kind).dequantise(rows))) < TOLERANCE


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_the_result_is_bitwise_the_same_in_any_company(device, kind):
    rows = weights(80, 192, kind)
    x = np.random.default_rng(2).standard_normal((33, 192)).astype(np.float32)
    whole = linear(device, x, rows, kind)
    for m in (1, 2, 3, 7, 16):
        assert np.array_equal(linear(device, x[:m], rows, kind), whole[:m])
    assert np.array_equal(linear(device, x[::-1].copy(), rows, kind)[::-1], whole)


LANES = [Lanes(1, 2, 1, 8, False), Lanes(4, 1, 4, 16, False), Lanes(2, 4, 8, 8, False)]
TEAMS = [(1, 2, 4, 2), (2, 1, 2, 1), (4, 2, 8, 4), (8, 2, 4, 2), (2, 4, 4, 2)]  # columns, tiles, teams, unroll
CASES = [(48, 64, "swiglu"), (33, 96, "store"), (7, 544, "add")]  # n, k, epilogue


def case(kind, m, n, k, epilogue, seed):
    """Weights, activations, what was in y before ("add" only)."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    return weights(n, k, kind), x, y if epilogue == "add" else None


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("cut", LANES, ids=str)
def test_every_cut_into_lanes_gives_the_product(device, kind, cut):
    rows, x, _ = case(kind, 5, 70, 320, "store", 3)
    assert error(linear(device, x, rows, kind, cut=cut), reference(x, tensor_type(kind).dequantise(rows))) < TOLERANCE


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("cut", [Matvec(*cut) for cut in TEAMS], ids=str)
@pytest.mark.parametrize(("n", "k", "epilogue"), CASES)
def test_every_cut_into_teams_gives_the_product(device, kind, cut, n, k, epilogue):
    rows, x, y = case(kind, 5, n, k, epilogue, 8)
    want = reference(x, tensor_type(kind).dequantise(rows), epilogue, y)
    got = linear(device, x, rows, kind, epilogue=epilogue, y=y, cut=cut)
    assert error(got, want) < (1e-7 if epilogue == "swiglu" else TOLERANCE)  # elementwise behind a product


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("cut", [MatvecInt8(*cut) for cut in TEAMS], ids=str)
@pytest.mark.parametrize(("n", "k", "epilogue"), CASES)
def test_integer_dot_products_equal_the_product_with_activations_rounded_to_int8(device, kind, cut, n, k, epilogue):
    rows, x, y = case(kind, 5, n, k, epilogue, 9)
    want = reference(as_int8(x), tensor_type(kind).dequantise(rows), epilogue, y)
    got = linear(device, x, rows, kind, epilogue=epilogue, y=y, cut=cut)
    assert error(got, want) < (1e-7 if epilogue == "swiglu" else TOLERANCE)  # elementwise behind a product


def test_a_block_of_zeros_rounds_to_zeros(device):
    rows = weights(16, 64, "Q4_0")
    x = np.zeros((2, 64), np.float32)
    x[1, 40] = 3.0
    got = linear(device, x, rows, "Q4_0", cut=MatvecInt8(2, 1, 2, 1))
    np.testing.assert_array_equal(got[0], 0)
    np.testing.assert_allclose(got[1], 3.0 * tensor_type("Q4_0").dequantise(rows)[:, 40], rtol=1e-6, atol=1e-7)


# activation rows, and fr, fc, sr, sc, sk, unroll of the cut
COOPMAT = [
    (13, (1, 1, 1, 1, 1, 1)), (29, (2, 2, 1, 1, 2, 2)), (16, (2, 1, 1, 1, 4, 2)), (32, (2, 4, 2, 1, 1, 1)),
    (48, (4, 2, 1, 2, 1, 1)), (33, (2, 2, 1, 1, 4, 2)),
]  # fmt: skip


# each cut meets every type of weights once and each type every shape: the CPU driver takes seconds to compile one
MATRIX_TYPES, MATRIX_CASES = ["F16", "Q8_0", "Q4_0", "Q4_1"], [*CASES, (64, 160, "add")]
MATRIX = [
    (kind, *cut, *MATRIX_CASES[(i + j) % len(MATRIX_CASES)])
    for i, cut in enumerate(COOPMAT)
    for j, kind in enumerate(MATRIX_TYPES)
]
MATRIX += [
    ("BF16", *COOPMAT[1], 33, 100, "store"),
    ("BF16", *COOPMAT[2], 7, 544, "add"),
    ("BF16", *COOPMAT[3], 48, 64, "swiglu"),
]


@pytest.mark.parametrize(("kind", "m", "pieces", "n", "k", "epilogue"), MATRIX, ids=str)
def test_cooperative_matrices_give_the_product_with_activations_rounded_to_float16(
    coopmat_device, kind, m, pieces, n, k, epilogue
):
    device = coopmat_device
    cut = Coopmat(*pieces, size=device.coopmat_size, subgroup=subgroup_for_coopmat(device))
    rows, x, y = case(kind, m, n, k, epilogue, 10)
    want = reference(x.astype(np.float16), tensor_type(kind).dequantise(rows), epilogue, y)
    # a code times its scale is rounded to float16 as well: at most 2^-11 of it, so 2e-7 of the square, and less a minimum
    tolerance = 2e-6 if kind not in ("F16", "BF16") else 1e-7 if epilogue == "swiglu" else TOLERANCE
    assert error(linear(device, x, rows, kind, epilogue=epilogue, y=y, cut=cut), want) < tolerance


def test_the_residual_epilogue_adds_to_what_was_there(device):
    rows = weights(40, 64, "Q4_0")
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((3, 64)).astype(np.float32), rng.standard_normal((3, 40)).astype(np.float32)
    want = reference(x, tensor_type("Q4_0").dequantise(rows), "add", y)
    assert error(linear(device, x, rows, "Q4_0", epilogue="add", y=y), want) < TOLERANCE


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_swiglu_epilogue_pairs_gate_and_up(device, scale):
    gate, up = weights(52, 64, "Q8_0", 5), weights(52, 64, "Q8_0", 6)
    x = (scale * np.random.default_rng(7).standard_normal((3, 64))).astype(np.float32)
    g, u = (reference(x, tensor_type("Q8_0").dequantise(part)).astype(np.float64) for part in (gate, up))
    want = g * scipy.special.expit(g) * u
    assert error(linear(device, x, interleave(gate, up), "Q8_0", epilogue="swiglu"), want) < 1e-7  # as elementwise


@pytest.mark.parametrize("value", [0.0, 1e-38, 3e30, -3e30])
def test_extreme_activations_stay_finite_and_right(device, value):
    rows = weights(16, 32, "F16")
    x = np.full((1, 32), value, np.float32)
    got, want = linear(device, x, rows, "F16"), reference(x, tensor_type("F16").dequantise(rows))
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-38 * 32 if abs(value) < 1 else 0)


def test_infinite_and_nan_activations_reach_only_their_own_row(device):
    rows = weights(16, 32, "Q4_1")
    x = np.ones((3, 32), np.float32)
    x[1, 3] = np.nan
    got = linear(device, x, rows, "Q4_1")
    assert np.all(np.isnan(got[1]))
    assert np.all(np.isfinite(got[[0, 2]]))


@pytest.mark.parametrize("kind", TYPES)
def test_packing_keeps_the_bits_per_weight_of_the_file(kind):
    packed = pack(weights(64, 256, kind), kind, 256)
    assert packed.nbytes * 8 / (64 * 256) == tensor_type(kind).bits_per_weight


def test_every_layout_has_a_runnable_file_type():
    assert all(tensor_type(name).runnable for name in LAYOUTS)


def test_wrong_arguments_are_refused_in_one_line(device):
    with pytest.raises(ModelError, match="multiple of 4"):
        linear(device, np.zeros((1, 6), np.float32), np.zeros((1, 24), np.uint8), "F32")
    with pytest.raises(ModelError, match="no device layout"):
        pack(np.zeros((1, 18), np.uint8), "Q3_K", 32)
    with pytest.raises(ParameterError, match="epilogue"):
        linear(device, np.zeros((1, 8), np.float32), np.zeros((1, 32), np.uint8), "F32", epilogue="gelu")
