"""SwiGLU against scipy's logistic function, over odd widths and extreme gates."""

import numpy as np
import pytest
from scipy.special import expit, ndtr

from labkit.errors import ParameterError
from labkit.ops.swiglu import record, reference, swiglu

TOLERANCE = 1e-7  # normalised mean squared error of elementwise operations


def draw(rows: int, width: int, seed: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((rows, width))).astype(np.float32)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


def test_the_reference_is_gate_times_logistic_times_up():
    gate, up = draw(3, 50, 0, 10), draw(3, 50, 1)
    want = gate.astype(np.float64) * expit(gate.astype(np.float64)) * up
    assert np.allclose(reference(gate, up), want, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("width", [4, 132, 1536])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 30.0])
def test_the_kernel_equals_the_reference(device, rows, width, scale):
    gate, up = draw(rows, width, 0, scale), draw(rows, width, 1)
    assert error(swiglu(device, gate, up), reference(gate, up)) < TOLERANCE


def test_the_reference_of_gelu_is_near_the_gaussian_s_own():
    """The tanh form is within 1e-3 of gate * Phi(gate) (arXiv:1606.08415), and exact where that is 0 or gate."""
    gate = np.linspace(-6, 6, 400, dtype=np.float32)[None]
    got = reference(gate, np.ones_like(gate), gelu=True)
    assert np.abs(got - gate * ndtr(gate.astype(np.float64))).max() < 1e-3
    assert np.allclose(got[0, [0, -1]], [0, 6], atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("width", [4, 132, 1536])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 30.0])
def test_the_kernel_gates_by_gelu(device, rows, width, scale):
    gate, up = draw(rows, width, 0, scale), draw(rows, width, 1)
    assert error(swiglu(device, gate, up, gelu=True), reference(gate, up, gelu=True)) < TOLERANCE


@pytest.mark.parametrize(("gate", "want"), [(0.0, 0), (200.0, 400), (-200.0, 0), (-1e30, 0), (1e30, 2e30)])
def test_extreme_gates_saturate_in_gelu_too(device, gate, want):
    got = swiglu(device, np.full((1, 4), gate, np.float32), np.full((1, 4), 2, np.float32), gelu=True)
    np.testing.assert_allclose(got, np.full((1, 4), want, np.float32), rtol=1e-6)


@pytest.mark.parametrize(("gate", "want"), [(0.0, 0), (200.0, 400), (-200.0, 0), (-1e30, 0), (1e30, 2e30)])
def test_extreme_gates_saturate(device, gate, want):
    got = swiglu(device, np.full((1, 4), gate, np.float32), np.full((1, 4), 2, np.float32))
    np.testing.assert_allclose(got, np.full((1, 4), want, np.float32), rtol=1e-6)


def test_gate_and_up_may_lie_side_by_side(device):
    both = draw(3, 24, 0)
    with device.pool() as pool:
        source, target = pool.buffer(both), pool.buffer(3 * 12 * 4)
        program = device.program()
        record(program, source, source.range(48), target, count=3, width=12, in_stride=24, y_stride=12)
        program.run()
        pool.check_guards()
        assert error(target.download(np.float32, (3, 12)), reference(both[:, :12], both[:, 12:])) < TOLERANCE


def test_a_row_is_bitwise_the_same_in_any_company(device):
    gate, up = draw(33, 100, 0), draw(33, 100, 1)
    whole = swiglu(device, gate, up)
    assert np.array_equal(swiglu(device, gate[7:9], up[7:9]), whole[7:9])


def test_wrong_arguments_are_refused_in_one_line(device):
    with pytest.raises(ParameterError, match="two equal matrices"):
        swiglu(device, draw(1, 4, 0), draw(2, 4, 0))
    with pytest.raises(ParameterError, match="multiples of 4"):
        swiglu(device, draw(1, 6, 0), draw(1, 6, 0))
