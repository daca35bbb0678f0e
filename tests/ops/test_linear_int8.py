"""Quantised weights on int8 cooperative matrices, the tiles of activations they read, and the magic-bias conversion."""

import gguf
import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.models.tensor_types import tensor_type
from labkit.ops.int8_tiles import (
    LARGEST,
    as_int8,
    as_int8_tiles,
    int8_tiles,
    order_for,
    place_tiles,
    read,
    tiles_bytes,
)
from labkit.ops.int8_tiles import record as record_tiles
from labkit.ops.linear import reference, upload
from labkit.ops.linear_int8 import (
    LAYOUTS,
    CoopmatInt8,
    choose,
    fits,
    int8_shapes,
    linear_int8,
    record,
    shared_bytes,
    subgroup_size,
)
from labkit.ops.weights import pack

KINDS = {"q8": "Q8_0", "q4": "Q4_0", "q4m": "Q4_1"}
TOLERANCE = 1e-8  # normalised mean squared error of matrix products
REACH = 1 << 22  # of the magic-bias conversion


def weights(n: int, k: int, layout: str, seed: int = 0) -> np.ndarray:
    """Random rows [n, k] in the file's blocks, as uint8 [n, bytes]."""
    data = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    quantised = gguf.quantize(data, gguf.GGMLQuantizationType[KINDS[layout]])
    return np.ascontiguousarray(quantised).view(np.uint8).reshape(n, -1)


def activations(m: int, k: int, seed: int = 1) -> np.ndarray:
    """Rows of very different size."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


@pytest.fixture(scope="session")
def int8_device(coopmat_device):
    if not int8_shapes(coopmat_device):
        pytest.skip(f"{coopmat_device.name} multiplies no int8 matrices that fit float16 ones")
    return coopmat_device


def cut_of(device, fr, fc, sr, sc, sk, group, ahead, **more):
    s = int8_shapes(device)[0]
    return CoopmatInt8(fr, fc, sr, sc, sk, group, ahead, s.m, s.n, s.k, s.kf, subgroup_size(device), **more)


def truth(x, rows, layout, epilogue="store", y=None):
    """The product in float64 with activations rounded as the tiles round them."""
    return reference(as_int8(x), tensor_type(KINDS[layout]).dequantise(rows), epilogue, y)


# Tiles


def halves(a):
    return np.ascontiguousarray(a).view(np.uint16)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("m", "k"), [(1, 32), (5, 96), (16, 64), (33, 160)])
def test_tiles_are_bit_for_bit_the_reference(device, order, m, k):
    if not device.has("storage16"):
        pytest.skip(f"{device.name} stores no 16-bit values")
    codes, scales, sums = int8_tiles(device, x := activations(m, k), order)
    want = as_int8_tiles(x, order)
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(halves(scales), halves(want[1]))
    np.testing.assert_array_equal(halves(sums), halves(want[2]))


def test_extreme_activations_round_the_same_on_the_device(device):
    x = np.tile(activations(16, 64), (2, 1))
    for r, scale in enumerate([1e-12, 1e-9, 2e-9, 1e-8, 1e-6, 1e-5, 1e-4, 1e3, 2e4, 1e30, 1e-40]):
        x[r] *= np.float32(scale)
    x[12, 3], x[13, 40], x[14] = np.nan, -np.inf, 0
    x[15, :32] = np.arange(32) * 2.0**-31
    x[16] = LARGEST
    x[17] = np.nextafter(np.float32(LARGEST), np.float32(np.inf))
    x[18], x[19] = 2.0**-31, -1e-3
    x[20] = np.round(x[20] * 4) / 4  # ties
    x[21, :32] = np.arange(32) / 2
    x[21, 0] = 127  # h = 64: every other element is a tie
    for got, want in zip(int8_tiles(device, x), as_int8_tiles(x), strict=True):
        np.testing.assert_array_equal(
            np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8)
        )


def test_the_scale_is_the_least_that_keeps_codes_within_127():
    x = activations(64, 320)
    codes, scales, _ = as_int8_tiles(x)
    top = np.abs(x.reshape(4, 16, 10, 32)).max(axis=-1).transpose(0, 2, 1).astype(np.float64)
    assert np.abs(codes.astype(int)).max() == 127
    assert (scales.astype(np.float64) * 127 >= top * 64).all()
    assert (np.nextafter(scales, np.float16(0)).astype(np.float64) * 127 < top * 64).all()


def test_rounding_to_tiles_is_within_half_a_step_and_sums_hold_22_bits():
    x = activations(16, 320)
    _, scales, sums = as_int8_tiles(x)
    step = scales.astype(np.float64).transpose(0, 2, 1).reshape(16, 10)[..., None] / 64
    assert (np.abs(as_int8(x) - x).reshape(16, 10, 32) <= step / 2).all()
    total = as_int8(x).reshape(16, 10, 32).sum(axis=-1)
    held = sums.astype(np.float64).sum(axis=2)[0].T
    assert (np.abs(held - total) <= np.abs(total) * 2.0**-21 + 2.0**-24).all()


# Magic bias


def test_the_magic_bias_conversion_is_exact_over_its_whole_range(device):
    kernel = device.kernel("magic_bias", "", {"LOCAL": 64})
    with device.pool("magic bias") as pool:
        for first, step, count in [(-REACH, 1, 4096), (REACH - 4095, 1, 4096), (-2048, 1, 4096), (-REACH, 509, 16480)]:
            y = pool.buffer(count * 4)
            kernel.run(-(-count // 64), y=y, first=first, step_=step, count=count)
            want = np.arange(count) * step + first
            assert np.abs(want).max() <= REACH
            np.testing.assert_array_equal(y.download(np.float32, (count,)), want.astype(np.float32))
        pool.check_guards()


def test_sums_of_a_block_stay_within_reach_of_the_magic_bias():
    assert REACH >= 32 * 128 * 127  # 8-bit codes, and 16 (code - 8)


# Products. A pipeline takes the CPU driver seconds to compile: each case is a different cut, and sees every constant once.

CASES = [
    # layout, rows, n, k, epilogue, then fr, fc, sr, sc, sk, group, ahead
    ("q8", 2, 40, 512, "store", (1, 1, 1, 1, 1, 8, 1), {"prefetch": False}),
    ("q8", 17, 33, 576, "add", (1, 3, 1, 1, 2, 4, 2), {"ahead_x": 1}),
    ("q8", 32, 64, 1536, "swiglu", (1, 2, 2, 2, 2, 8, 2), {"ahead_x": 2, "magic": False}),
    ("q8", 64, 24, 4096, "store", (2, 1, 1, 8, 4, 8, 1), {"ahead_x": 1, "pipe": False}),
    ("q4", 5, 40, 576, "store", (1, 1, 1, 1, 4, 4, 2), {"buffers": 2}),
    ("q4", 16, 70, 512, "swiglu", (2, 2, 2, 1, 1, 8, 4), {"ahead_x": 1, "prefetch": False}),
    ("q4", 33, 33, 1536, "add", (4, 1, 1, 2, 2, 4, 4), {"magic": False, "pipe": False}),
    ("q4m", 8, 40, 576, "store", (1, 1, 1, 1, 3, 4, 2), {}),
    ("q4m", 32, 33, 512, "add", (2, 2, 1, 2, 2, 8, 2), {"ahead_x": 2, "buffers": 2}),
    ("q4m", 64, 48, 1536, "swiglu", (1, 4, 2, 1, 1, 4, 4), {"magic": False, "prefetch": False}),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "m", "n", "k", "epilogue", "pieces", "more"), CASES, ids=str)
def test_int8_matrices_give_the_product_with_activations_rounded_to_int8(
    int8_device, layout, m, n, k, epilogue, pieces, more
):
    rows, x = weights(n, k, layout), activations(m, k)
    y = np.random.default_rng(2).standard_normal((m, n)).astype(np.float32) if epilogue == "add" else None
    got = linear_int8(
        int8_device, x, rows, KINDS[layout], epilogue=epilogue, y=y, cut=cut_of(int8_device, *pieces, **more)
    )
    limit = 1e-7 if epilogue == "swiglu" else TOLERANCE
    assert error(got, truth(x, rows, layout, epilogue, y)) < limit


def by_row(tiled):
    """Codes, scales or sums as bytes, a row of x a line."""
    lead = tiled if tiled.shape[2] == 16 else tiled.transpose(0, 1, 3, 2)
    return np.ascontiguousarray(np.moveaxis(lead, 2, 1)).reshape(len(tiled) * 16, -1).view(np.uint8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_swiglu_leaves_the_tiles_that_rounding_its_result_makes(int8_device, layout):
    device, (m, n, k) = int8_device, (17, 192, 512)
    rows, x = weights(n, k, layout), activations(m, k)
    cut = cut_of(device, 1, 1, 8, 1, 1, 8, 1 if layout == "q8" else 2)
    with device.pool("int8 tiles out") as pool:
        matrix, source = upload(pool, pack(rows, KINDS[layout], k)), pool.buffer(x)
        inner = place_tiles(pool.buffer(tiles_bytes(m, k, sums=True)), m, k, order_for(layout), sums=True)
        y = pool.buffer(m * n // 2 * 4)
        made, plain = (
            place_tiles(pool.buffer(tiles_bytes(m, n // 2, sums=True)), m, n // 2, 1, sums=True) for _ in "ab"
        )
        program = device.program()
        record_tiles(program, source, inner, x_stride=k)
        record(program, matrix, inner, y, y_stride=n // 2, epilogue="swiglu", cut=cut)
        record_tiles(program, y, plain, x_stride=n // 2)
        record(program, matrix, inner, made, epilogue="swiglu", cut=cut)
        program.run()
        pool.check_guards()
        program.close()
        for got, want in zip(read(made), read(plain), strict=True):
            np.testing.assert_array_equal(by_row(got)[:m], by_row(want)[:m])
        assert error(y.download(np.float32, (m, n // 2)), truth(x, rows, layout, "swiglu")) < 1e-7


def test_a_row_is_bitwise_the_same_in_any_company_and_nan_stays_in_its_row(int8_device):
    rows, x = weights(40, 512, "q8"), activations(16, 512)
    cut = cut_of(int8_device, 1, 1, 1, 1, 1, 8, 1, prefetch=False)
    whole = linear_int8(int8_device, x, rows, "Q8_0", cut=cut)
    assert np.array_equal(linear_int8(int8_device, x[:3], rows, "Q8_0", cut=cut), whole[:3])
    assert np.array_equal(linear_int8(int8_device, x[::-1].copy(), rows, "Q8_0", cut=cut)[::-1], whole)
    x[5, 77] = np.nan
    x[7, 5] = 2 * LARGEST
    got = linear_int8(int8_device, x, rows, "Q8_0", cut=cut)
    assert np.isnan(got[[5, 7]]).all()
    others = [r for r in range(16) if r not in (5, 7)]
    assert np.array_equal(got[others], whole[others])


def test_what_does_not_fit_is_refused_in_one_line(int8_device):
    device = int8_device
    assert fits(device, "q4", 33, 512)
    assert not fits(device, "q4k", 33, 512)
    assert not fits(device, "q8", 33, 528)
    assert not fits(device, "q8", 33, 96)
    assert choose(device, "q8", 32, 28672, 4096).fr == 4
    rows, x = weights(32, 512, "q4"), activations(2, 512)
    for pieces, more, why in [
        ((5, 1, 1, 1, 1, 8, 2), {}, "fr is 1 to 4"),
        ((1, 1, 1, 1, 1, 8, 3), {}, "ahead divides it"),
        ((1, 1, 1, 1, 1, 8, 1), {}, "even"),
        ((1, 1, 1, 1, 1, 8, 4), {"ahead_x": 3}, "ahead_x"),
        ((4, 8, 4, 4, 4, 8, 2), {}, "bytes of shared memory"),
        ((1, 1, 1, 1, 1, 32, 2), {}, "group"),
    ]:
        with pytest.raises(ParameterError, match=why):
            linear_int8(device, x, rows, "Q4_0", cut=cut_of(device, *pieces, **more))
    with pytest.raises(ParameterError, match="cannot multiply"):
        choose(device, "f16", 2, 32, 512)


def test_shared_memory_is_what_the_pipeline_takes(int8_device):
    for layout in LAYOUTS:
        cut = cut_of(int8_device, 2, 2, 2, 1, 2, 8, 2, buffers=2)
        constants = {
            "CM": cut.m, "CN": cut.n, "CK": cut.k, "CKF": cut.kf, "FR": 2, "FC": 2, "SR": 2, "SK": 2, "G": 8, "AHEAD": 2,
            "BUFFERS": 2, "SUBGROUP": cut.subgroup, "LOCAL": 4 * cut.subgroup,
        }  # fmt: skip
        kernel = int8_device.kernel("linear_int8", layout, constants, cut.subgroup)
        assert kernel.interface.shared_bytes == shared_bytes(cut, layout)
