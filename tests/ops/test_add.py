"""The residual addition: one rounding, so every bit is that of NumPy's float32 sum."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops.add import add, record, reference


def draw(rows: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("width", [4, 132, 576])
def test_every_bit_is_that_of_the_float32_sum(device, rows, width):
    x, y = draw(rows, width, 0), draw(rows, width, 1) * np.float32(1e3)
    want = (x.astype(np.float64) + y).astype(np.float32)
    assert np.array_equal(reference(x, y), want)
    assert np.array_equal(add(device, x, y), want)


def test_unusual_values_add_as_ieee_says(device):
    x = np.array([[np.inf, -np.inf, np.nan, 3e38]], np.float32)
    y = np.array([[1.0, np.inf, 1.0, 3e38]], np.float32)
    assert np.array_equal(add(device, x, y), np.array([[np.inf, np.nan, np.nan, np.inf]], np.float32), equal_nan=True)


def test_strides_skip_what_lies_between_rows(device):
    x, y = draw(3, 12, 0), draw(3, 16, 1)
    with device.pool() as pool:
        source, target = pool.buffer(x), pool.buffer(y)
        program = device.program()
        record(program, source, target, count=3, width=8, x_stride=12, y_stride=16)
        program.run()
        pool.check_guards()
        got = target.download(np.float32, (3, 16))
    assert np.array_equal(got[:, :8], x[:, :8] + y[:, :8])
    assert np.array_equal(got[:, 8:], y[:, 8:])


def test_wrong_arguments_are_refused_in_one_line(device):
    with pytest.raises(ParameterError, match="two equal matrices"):
        add(device, draw(1, 4, 0), draw(1, 8, 0))
    with pytest.raises(ParameterError, match="multiples of 4"):
        add(device, draw(1, 5, 0), draw(1, 5, 0))
