"""The staged product of many activation rows against float64 products of the same rounded operands."""

import gguf
import numpy as np
import pytest
from k_blocks import K_TYPES, float16_values, random_rows

from labkit.errors import ParameterError
from labkit.models.tensor_types import tensor_type
from labkit.ops.gemm_cuts import GEMM_LAYOUTS, Gemm, gemm_cut
from labkit.ops.linear import reference
from labkit.ops.linear_cuts import subgroup_for_coopmat
from labkit.ops.linear_gemm import linear_gemm

TYPES = ["F16", "Q8_0", "Q4_0", "Q4_1"]
ORDERS = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 1, 3, 4, 6, 5, 7], [0, 4, 1, 5, 2, 6, 3, 7]]  # of elements, as tile_f16.comp
# fr, fc, sr, sc, bk, buffers, ahead, put, spread, group
CUTS = [
    (2, 2, 2, 2, 32, 1, False, 0, False, 8), (2, 2, 1, 1, 32, 1, True, 0, True, 2), (2, 2, 2, 2, 32, 2, False, 0, False, 8),
    (2, 1, 2, 2, 32, 2, True, 0, True, 1), (2, 2, 1, 2, 32, 2, False, 1, False, 3), (2, 2, 2, 1, 32, 2, True, 2, False, 8),
]  # fmt: skip


def gemm(device, *pieces) -> Gemm:
    return Gemm(*pieces, size=device.coopmat_size, subgroup=subgroup_for_coopmat(device))


def case(kind, m, n, k, epilogue="store", seed=0, *, rounded=True):
    """Weights in the file's blocks, activations, what was in y before ("add" only), and what is to come out.

    `rounded`: of weights rounded to float16, as the kernel's are.
    """
    rng = np.random.default_rng(seed)
    if kind in K_TYPES:
        rows = random_rows(n, k, kind, seed)
    else:
        data = rng.standard_normal((n, k)).astype(np.float32)
        rows = np.ascontiguousarray(gguf.quantize(data, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(n, -1)
    x = rng.standard_normal((m, k)).astype(np.float32)
    y = rng.standard_normal((m, n)).astype(np.float32) if epilogue == "add" else None
    weights = tensor_type(kind).dequantise(rows)
    if rounded:
        weights = float16_values(rows, kind) if kind in K_TYPES else weights.astype(np.float16)
    return rows, x, y, reference(x.astype(np.float16), weights, epilogue, y)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


def tolerance(kind: str, epilogue: str = "store") -> float:
    """As for every matrix product; SwiGLU as elementwise.

    With a minimum a weight is the sum of two float16 numbers, rounded once or, the first of them before, twice: the two
    ways are 8e-8 of the square apart for K-quants here.
    """
    return 5e-7 if kind == "Q4_1" else 2e-7 if kind in ("Q4_K", "Q5_K") else 1e-7 if epilogue == "swiglu" else 1e-8


def untiled(tiles: np.ndarray, order: int) -> np.ndarray:
    """Rows of float16 tiles [rows / 16, width / 16, 16, 16], their elements put back in order."""
    down, across = tiles.shape[:2]
    placed = np.empty((down, across, 16, 2, 8), np.float16)
    placed[..., ORDERS[order]] = tiles.reshape(placed.shape)
    return placed.reshape(down, across, 16, 16).transpose(0, 2, 1, 3).reshape(down * 16, across * 16)


@pytest.mark.parametrize("pieces", CUTS, ids=str)
@pytest.mark.parametrize(
    ("kind", "m", "n", "k", "epilogue"),
    [
        ("F16", 65, 72, 160, "store"), ("F16", 100, 88, 80, "add"), ("F16", 33, 40, 544, "swiglu"),
        ("Q8_0", 33, 40, 544, "swiglu"), ("Q4_0", 65, 72, 160, "store"), ("Q4_1", 100, 88, 96, "add"),
    ],
)  # fmt: skip
def test_every_cut_gives_the_product_with_activations_rounded_to_float16(
    coopmat_device, pieces, kind, m, n, k, epilogue
):
    rows, x, y, want = case(kind, m, n, k, epilogue)
    got = linear_gemm(coopmat_device, x, rows, kind, epilogue=epilogue, y=y, cut=gemm(coopmat_device, *pieces))
    assert error(got, want) < tolerance(kind, epilogue)


@pytest.mark.parametrize(
    ("kind", "pieces", "m", "n", "k", "epilogue"),
    [
        ("Q4_K", CUTS[0], 65, 72, 256, "store"), ("Q4_K", CUTS[3], 100, 88, 768, "add"), ("Q5_K", CUTS[1], 33, 40, 512, "swiglu"),
        ("Q5_K", CUTS[5], 64, 64, 256, "store"), ("Q6_K", CUTS[2], 100, 88, 512, "add"), ("Q6_K", CUTS[4], 33, 40, 256, "swiglu"),
        ("Q4_K", (2, 2, 2, 1, 64, 1, False, 0, False, 2), 40, 72, 512, "store"),
        # 96 columns at a time, the last behind the end of a row
        ("Q6_K", (2, 2, 1, 1, 96, 2, True, 1, True, 8), 33, 40, 512, "store"),
    ],
    ids=str,
)  # fmt: skip
def test_k_quants_are_unpacked_to_float16_run_by_run(coopmat_device, kind, pieces, m, n, k, epilogue):
    rows, x, y, want = case(kind, m, n, k, epilogue)
    got = linear_gemm(coopmat_device, x, rows, kind, epilogue=epilogue, y=y, cut=gemm(coopmat_device, *pieces))
    assert error(got, want) < tolerance(kind, epilogue)


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_every_code_and_scale_at_an_end_of_its_range_is_unpacked_right(coopmat_device, kind, byte):
    rows = random_rows(32, 256, kind)
    rows[:, slice(0, 208) if kind == "Q6_K" else slice(4, None)] = byte
    x = np.random.default_rng(1).standard_normal((32, 256)).astype(np.float32)
    want = reference(x.astype(np.float16), float16_values(rows, kind))
    got = linear_gemm(coopmat_device, x, rows, kind, cut=gemm(coopmat_device, *CUTS[1]))
    limit = 2**-11 * np.abs(x).sum(axis=1).max() * np.abs(float16_values(rows, kind)).max()  # a rounding of each weight
    np.testing.assert_allclose(got, want, rtol=0, atol=limit)


@pytest.mark.parametrize(
    ("pieces", "m", "n", "k", "epilogue"),
    [
        (CUTS[0], 65, 72, 160, "store"), ((2, 2, 1, 2, 16, 2, True, 0, False, 2), 48, 48, 112, "add"),
        (CUTS[5], 33, 40, 20, "swiglu"),
    ],
    ids=str,
)  # fmt: skip
def test_bfloat16_weights_are_exact_as_float16(coopmat_device, pieces, m, n, k, epilogue):
    rows, x, y, want = case("BF16", m, n, k, epilogue)
    got = linear_gemm(coopmat_device, x, rows, "BF16", epilogue=epilogue, y=y, cut=gemm(coopmat_device, *pieces))
    assert error(got, want) < tolerance("BF16", epilogue)


def test_bfloat16_weights_beyond_float16_are_clamped(coopmat_device):
    values = np.zeros((32, 32), np.float32)
    values[0, :3], values[1, 5], values[2, 7] = [1e5, -3e38, 65280], 2**-30, np.inf
    rows = gguf.quantize(values, gguf.GGMLQuantizationType.BF16).view(np.uint8).reshape(32, -1)
    x = np.ones((32, 32), np.float32)
    x[1, 1:] = 0
    got = linear_gemm(coopmat_device, x, rows, "BF16", cut=gemm(coopmat_device, *CUTS[1]))
    assert list(got[0, :4]) == [65504 - 65504 + 65280, 0, 65504, 0]
    assert list(got[1, :4]) == [65504, 0, 0, 0]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("epilogue", ["store", "add", "swiglu"])
def test_whole_tiles_give_the_product(coopmat_device, kind, epilogue):
    rows, x, y, want = case(kind, 64, 64, 128, epilogue)
    got = linear_gemm(coopmat_device, x, rows, kind, epilogue=epilogue, y=y, cut=gemm(coopmat_device, *CUTS[2]))
    assert error(got, want) < tolerance(kind, epilogue)


@pytest.mark.parametrize("m", [65, 100, 512])
@pytest.mark.parametrize(("n", "k"), [(200, 192), (7, 64), (33, 20)])
def test_the_device_chooses_a_cut_that_gives_the_product(coopmat_device, m, n, k):
    rows, x, _, want = case("F16", m, n, k)
    assert error(linear_gemm(coopmat_device, x, rows, "F16"), want) < tolerance("F16")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", *K_TYPES])
def test_rounding_weights_to_float16_costs_little(coopmat_device, kind):
    rows, x, _, want = case(kind, 64, 64, 256, rounded=False)
    cost = error(linear_gemm(coopmat_device, x, rows, kind, cut=gemm(coopmat_device, *CUTS[2])), want)
    print(f"{kind}: {cost:.1e} of the square")
    assert 1e-9 < cost < (5e-7 if kind in ("Q4_1", "Q4_K", "Q5_K") else 2e-7 if kind == "Q6_K" else 1e-7)


def test_columns_of_sixteen_are_staged_alone(coopmat_device):
    rows, x, _, want = case("F16", 48, 48, 112)
    for ahead in (False, True):
        got = linear_gemm(coopmat_device, x, rows, "F16", cut=gemm(coopmat_device, 2, 2, 1, 2, 16, 2, ahead))
        assert error(got, want) < tolerance("F16")


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(("m", "n", "epilogue"), [(33, 56, "store"), (65, 80, "swiglu"), (64, 64, "swiglu")])
def test_the_result_comes_in_float16_tiles_with_zeros_behind_it(coopmat_device, m, n, epilogue, order):
    rows, x, _, want = case("Q8_0", m, n, 64, epilogue)
    cut = gemm(coopmat_device, *CUTS[2])
    got = untiled(linear_gemm(coopmat_device, x, rows, "Q8_0", epilogue=epilogue, cut=cut, order=order), order)
    assert error(got[:m, : want.shape[1]], want) < tolerance("Q8_0", epilogue) + 2**-22
    assert not got[m:].any()
    assert not got[:, want.shape[1] :].any()


@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("epilogue", ["store", "add", "swiglu"])
def test_rows_of_the_result_may_lie_apart(coopmat_device, pad, epilogue):
    rows, x, y, want = case("F16", 32, 64, 64, epilogue)
    got = linear_gemm(
        coopmat_device, x, rows, "F16", epilogue=epilogue, y=y, pad=pad, cut=gemm(coopmat_device, *CUTS[0])
    )
    assert error(got, want) < tolerance("F16", epilogue)


def test_infinite_and_nan_activations_reach_only_their_own_row(coopmat_device):
    rows, x, _, want = case("Q4_1", 40, 48, 96)
    x[3, 5], x[17, 90] = np.nan, np.inf
    got = linear_gemm(coopmat_device, x, rows, "Q4_1", cut=gemm(coopmat_device, *CUTS[2]))
    assert np.isnan(got[3]).all()
    assert not np.isfinite(got[17]).any()
    others = [r for r in range(40) if r not in (3, 17)]
    assert error(got[others], want[others]) < tolerance("Q4_1")


def test_two_runs_are_bitwise_equal(coopmat_device):
    rows, x, _, _ = case("Q4_0", 100, 72, 160)
    first, second = (linear_gemm(coopmat_device, x, rows, "Q4_0", cut=gemm(coopmat_device, *CUTS[2])) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_cut_that_does_not_fit_is_refused_in_one_line(coopmat_device):
    rows, x, _, _ = case("F16", 16, 32, 64)
    most = coopmat_device.info.max_shared_bytes

    def refuses(kind, blocks, *pieces):
        with pytest.raises(ParameterError) as caught:
            linear_gemm(coopmat_device, x, blocks, kind, cut=gemm(coopmat_device, *pieces))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert f"{most}" in refuses("F16", rows, 2, 2, 2, 2, 32 * most)
    assert "multiple of 16" in refuses("F16", rows, 2, 2, 1, 1, 24)
    assert "multiple of 32" in refuses("Q8_0", case("Q8_0", 16, 32, 64)[0], 2, 2, 1, 1, 16)
    assert "at most 8" in refuses("F16", rows, 2, 9, 1, 1)
    with pytest.raises(ParameterError, match="no staged product"):
        linear_gemm(coopmat_device, x, case("F32", 16, 32, 64)[0], "F32")


@pytest.mark.parametrize("rows", [65, 512, 4096])
@pytest.mark.parametrize(("n", "k"), [(28672, 4096), (4096, 14336), (6144, 4096), (1000, 512)])
@pytest.mark.parametrize("layout", GEMM_LAYOUTS)
def test_the_chosen_cut_fits_every_kind_of_device(layout, n, k, rows):
    from types import SimpleNamespace

    nvidia, amd, mesa = 0x10DE, 0x1002, 0x10005
    kinds = (
        (16, 32, 49152, nvidia),
        (16, 32, 65536, amd),
        (16, 32, 32768, nvidia),
        (16, 32, 32768, amd),
        (8, 8, 32768, mesa),
    )
    for size, subgroup, shared, vendor in kinds:
        info = SimpleNamespace(
            max_shared_bytes=shared,
            subgroup_min=subgroup,
            subgroup_max=subgroup,
            subgroup_size=subgroup,
            vendor_id=vendor,
        )
        cut = gemm_cut(SimpleNamespace(info=info, coopmat_size=size), layout, rows, n, k, False)
        assert cut is not None
        assert cut.shared_bytes <= shared
        assert cut.local <= 1024
