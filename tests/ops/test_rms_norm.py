"""RMSNorm against its definition, over odd widths, extreme values and gathered rows."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops.rms_norm import record, record_rounded, reference, rms_norm
from labkit.ops.rounding import Rounding, place, scratch_bytes
from labkit.ops.rows import PADDING

TOLERANCE = 1e-7  # normalised mean squared error of norms


def draw(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


def test_the_reference_of_a_right_triangle_is_known():
    got = reference(np.array([[3.0, 4.0, 0.0, 0.0]], np.float32), np.array([1, 2, 1, 1], np.float32), 0.0)
    assert np.allclose(got, [[1.2, 3.2, 0, 0]], rtol=1e-7)  # rms = sqrt(25 / 4) = 2.5


def test_the_reference_leaves_a_mean_square_of_one():
    got = reference(draw(7, 640) * 30, np.ones(640, np.float32), 0.0).astype(np.float64)
    assert np.allclose((got**2).mean(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 33])
@pytest.mark.parametrize("width", [4, 28, 36, 576, 1020])
def test_the_kernel_equals_the_reference(device, rows, width):
    x, weight = draw(rows, width), draw(1, width, 1)[0]
    assert error(rms_norm(device, x, weight, 1e-5), reference(x, weight, 1e-5)) < TOLERANCE


@pytest.mark.parametrize("scale", [1e-35, 1e-30, 1e-10, 1e10, 1e17])
def test_large_and_tiny_rows_are_right(device, scale):
    x, weight = (draw(3, 64) * np.float32(scale)).astype(np.float32), np.ones(64, np.float32)
    got, want = rms_norm(device, x, weight, 1e-5), reference(x, weight, 1e-5)
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-37)


def test_zeros_stay_zeros_and_an_overflowing_square_gives_zero(device):
    x = np.zeros((2, 32), np.float32)
    x[1] = 3e30
    assert not rms_norm(device, x, np.ones(32, np.float32), 1e-6).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_value_reaches_only_its_own_row(device, value):
    x, weight = draw(3, 64), np.ones(64, np.float32)
    whole = rms_norm(device, x, weight, 1e-5)
    x[1, 5] = value
    got = rms_norm(device, x, weight, 1e-5)
    assert np.isnan(got[1]).any()
    assert np.array_equal(got[[0, 2]], whole[[0, 2]])


def test_a_row_is_bitwise_the_same_in_any_company(device):
    x, weight = draw(33, 576), draw(1, 576, 1)[0]
    whole = rms_norm(device, x, weight, 1e-5)
    for rows in (1, 2, 16):
        assert np.array_equal(rms_norm(device, x[:rows], weight, 1e-5), whole[:rows])
    assert np.array_equal(rms_norm(device, x[::-1].copy(), weight, 1e-5)[::-1], whole)


def test_gathered_rows_are_those_asked_for_and_padding_is_zeros(device):
    x, weight = draw(9, 100), draw(1, 100, 1)[0]
    wanted = np.array([8, PADDING, 0, 3, 3, PADDING], np.uint32)
    got, whole = rms_norm(device, x, weight, 1e-5, wanted), rms_norm(device, x, weight, 1e-5)
    assert np.array_equal(got[[0, 2, 3, 4]], whole[[8, 0, 3, 3]])
    assert not got[[1, 5]].any()


def test_strides_skip_what_lies_between_rows(device):
    x, weight = draw(3, 24), np.ones(16, np.float32)
    with device.pool() as pool:
        source, gain, target = pool.buffer(x), pool.buffer(weight), pool.buffer(3 * 20 * 4)
        program = device.program()
        record(program, source, gain, target, count=3, width=16, eps=1e-5, x_stride=24, y_stride=20)
        program.run()
        pool.check_guards()
        got = target.download(np.float32, (3, 20))
    assert error(got[:, :16], reference(x[:, :16], weight, 1e-5)) < TOLERANCE
    assert np.all(np.isnan(got[:, 16:]))  # as born


def test_wrong_arguments_are_refused_in_one_line(device):
    x = draw(2, 8)
    with pytest.raises(ParameterError, match="do not go together"):
        rms_norm(device, x, np.ones(4, np.float32), 1e-5)
    with pytest.raises(ParameterError, match="eps=2"):
        rms_norm(device, x, np.ones(8, np.float32), 2)
    with pytest.raises(ParameterError, match="points behind the 2 rows"):
        rms_norm(device, x, np.ones(8, np.float32), 1e-5, np.array([2], np.uint32))
    with pytest.raises(ParameterError, match="multiples of 4"):
        rms_norm(device, draw(2, 6), np.ones(6, np.float32), 1e-5)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("width", [64, 100, 576])
def test_a_norm_rounded_at_once_to_float16_is_the_norm_rounded(device, rows, width, order):
    x, weight = draw(rows, width), draw(1, width, 1)[0]
    height, k = -(-rows // 16) * 16, -(-width // 16) * 16
    with device.pool("test") as pool:
        to = place(pool.buffer(scratch_bytes(rows, width)), Rounding("float16", order), rows, width)
        program = device.program("test")
        record_rounded(program, pool.buffer(x), pool.buffer(weight), to, eps=1e-5, x_stride=width)
        program.run()
        pool.check_guards()
        tiles = to.data.buffer.download(np.float16)[: height * k].reshape(height // 16, k // 16, 16, 16)
        program.close()
    rounded = tiles.transpose(0, 2, 1, 3).reshape(height, k)
    places = {0: range(8), 1: [0, 2, 1, 3, 4, 6, 5, 7], 2: [0, 4, 1, 5, 2, 6, 3, 7]}[order]
    straight = np.empty_like(rounded)
    for j, element in enumerate(places):
        straight[:, element::8] = rounded[:, j::8]
    want = reference(x, weight, 1e-5)
    np.testing.assert_allclose(straight[:rows, :width], want, rtol=2**-10, atol=1e-6)
    assert not straight[rows:].any()
    assert not straight[:, width:].any()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("width", [64, 96, 576])
def test_a_norm_rounded_at_once_to_int8_is_the_norm_rounded(device, rows, width, order):
    x, weight = draw(rows, width), draw(1, width, 1)[0]
    with device.pool("test") as pool:
        to = place(pool.buffer(scratch_bytes(rows, width)), Rounding("int8", order), rows, width)
        program = device.program("test")
        record_rounded(program, pool.buffer(x), pool.buffer(weight), to, eps=1e-5, x_stride=width)
        program.run()
        pool.check_guards()
        whole = to.data.buffer.download(np.uint8)
        program.close()
    assert to.scales is not None
    codes = whole[: to.data.nbytes].view(np.int8).reshape(rows, -1, 8).astype(np.float32)
    scales = whole[to.scales.offset : to.scales.offset + to.scales.nbytes].view(np.float32).reshape(rows, -1, 2)
    if order:  # even elements first, then the odd
        codes = codes.reshape(rows, -1, 2, 4).transpose(0, 1, 3, 2)
    blocks = codes.reshape(rows, -1, 32)
    want = reference(x, weight, 1e-5).reshape(rows, -1, 32)
    step = np.abs(want).max(axis=-1) / 127
    np.testing.assert_allclose(scales[..., 0], step, rtol=1e-5)
    assert np.all(np.abs(blocks * scales[..., :1] - want) <= 0.501 * step[..., None])
    np.testing.assert_allclose(scales[..., 1], scales[..., 0] * blocks.sum(axis=-1), rtol=1e-5, atol=1e-6)
