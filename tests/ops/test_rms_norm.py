"""RMSNorm against its definition, over odd widths, extreme values and gathered rows."""

import numpy as np
import pytest
from float16_tiles import untiled

from labkit.errors import ParameterError
from labkit.ops.int8_tiles import read
from labkit.ops.rms_norm import record, record_add, record_rounded, reference, rms_norm, rms_norm_add
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


@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize("width", [4, 36, 576, 1020])
def test_a_norm_is_added_to_what_lies_there(device, rows, width):
    x, weight, y = draw(rows, width), draw(1, width, 1)[0], draw(rows, width, 2)
    got = rms_norm_add(device, x, weight, y, 1e-5)
    assert error(got, y + reference(x, weight, 1e-5)) < TOLERANCE
    assert np.array_equal(rms_norm_add(device, x[::-1], weight, y[::-1], 1e-5)[::-1], got)  # in any company
    with pytest.raises(ParameterError, match="do not go together"):
        rms_norm_add(device, x, weight, y[:, :-1], 1e-5)
    with device.pool("short") as pool:
        a, program = pool.buffer(x), device.program()
        with pytest.raises(ParameterError, match="eps=2"):
            record_add(program, a, a, a, count=1, width=4, eps=2, x_stride=4, y_stride=4)


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


def rounded_norm(device, x, weight, rounding: Rounding, wanted=None) -> tuple[np.ndarray, np.ndarray]:
    """What a norm rounded at once stands for, float32 [rows, width] (with padding where there are tiles of it), and the
    step between two values of each: of x [R, stride], or of its `wanted` rows."""
    rows, width = len(x) if wanted is None else len(wanted), len(weight)
    with device.pool("test") as pool:
        to = place(pool.buffer(scratch_bytes(rows, width)), rounding, rows, width)
        gathered = None if wanted is None else pool.buffer(np.array(wanted, np.uint32))
        program = device.program("test")
        record_rounded(
            program, pool.buffer(x), pool.buffer(weight), to, eps=1e-5, x_stride=x.shape[1], logit_rows=gathered
        )
        program.run()
        pool.check_guards()
        program.close()
        whole = to.data.buffer.download()
        tiles = read(to.tiles) if to.tiles else None
    if rounding.kind == "float16":
        values = untiled(whole[: to.data.nbytes].view(np.float16), rows, width, rounding.order).astype(np.float32)
        return values, np.abs(values) * 2**-10
    blocks, of_two = -(-width // 32), np.empty(0)
    if tiles is not None:
        codes, scales, sums = tiles
        codes = codes.swapaxes(1, 2).reshape(-1, blocks, 32)[:rows].astype(np.float32)
        step = scales.swapaxes(1, 2).reshape(-1, blocks)[:rows].astype(np.float32) / 64
        of_two = (
            sums.astype(np.float32).sum(axis=2).swapaxes(1, 2).reshape(-1, blocks)[:rows] if rounding.sums else of_two
        )
    else:
        codes = whole[: to.data.nbytes].view(np.int8).reshape(rows, blocks, 32).astype(np.float32)
        scales = whole[to.scales.offset : to.scales.offset + to.scales.nbytes].view(np.float32).reshape(rows, blocks, 2)
        step, of_two = scales[..., 0], scales[..., 1]
    if rounding.order:  # of each 8 the even elements first, then the odd
        codes = codes.reshape(rows, blocks, 4, 2, 4).swapaxes(3, 4).reshape(rows, blocks, 32)
    if of_two.size:
        np.testing.assert_allclose(of_two, step * codes.sum(axis=-1), rtol=1e-5, atol=1e-5)
    values = (codes * step[..., None]).reshape(rows, -1)
    return values, np.repeat(step, 32, axis=-1)


ROUNDINGS = [
    Rounding("float16", 0), Rounding("float16", 1), Rounding("float16", 2), Rounding("int8", 0), Rounding("int8", 1),
    Rounding("int8_tiles", 0), Rounding("int8_tiles", 1, True),
]  # fmt: skip


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda r: f"{r.kind}-{r.order}")
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("width", [32, 96, 516, 576, 1056, 8228])  # the last ones are more than registers hold
def test_a_norm_rounded_at_once_is_the_norm_rounded(device, rows, width, rounding):
    width -= width % 32 if rounding.kind == "int8_tiles" else 0
    x, weight = draw(rows, width), draw(1, width, 1)[0]
    got, step = rounded_norm(device, x, weight, rounding)
    want = reference(x, weight, 1e-5)
    assert np.all(np.abs(got[:rows, :width] - want) <= 0.501 * step[:rows, :width] + 1e-6)
    assert not got[rows:].any()
    assert not got[:, width:].any()
    if rounding.kind == "int8":
        blocks = np.pad(want, ((0, 0), (0, -width % 32))).reshape(rows, -1, 32)
        np.testing.assert_allclose(step[:, ::32], np.abs(blocks).max(axis=-1) / 127, rtol=1e-5)


@pytest.mark.parametrize("rounding", ROUNDINGS[1::2], ids=lambda r: f"{r.kind}-{r.order}")
@pytest.mark.parametrize("width", [64, 1056])
def test_a_norm_rounded_at_once_is_of_the_rows_asked_for_and_zeros_of_none(device, width, rounding):
    x, weight = np.full((9, width + 4), np.nan, np.float32), draw(1, width, 1)[0]  # NaN between the rows
    x[:, :width] = draw(9, width)
    x[0, 7] = x[5, 7] = np.nan
    wanted = np.array([8, PADDING, 1, 3, 3, 5], np.uint32)
    got, step = rounded_norm(device, x, weight, rounding, wanted)
    for r, i in enumerate(wanted[:5].tolist()):
        want = np.zeros(width) if i == PADDING else reference(x[i : i + 1, :width], weight, 1e-5)[0]
        assert np.all(np.abs(got[r, :width] - want) <= 0.501 * step[r, :width] + 1e-6)
    assert not got[1].any()
    assert np.array_equal(got[3], got[4])
