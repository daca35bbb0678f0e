"""The rotation table and the rotation against complex numbers and exact angles."""

import math

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops import rope


def test_the_table_holds_the_angles_of_the_definition():
    table = rope.table(5000, 8, 10000.0)
    assert table.shape == (5000, 4, 2)
    assert table.dtype == np.float32
    for position, i in ((0, 0), (1, 0), (1, 3), (4999, 2)):
        angle = position * 10000.0 ** (-2 * i / 8)
        assert table[position, i, 0] == np.float32(math.cos(angle))
        assert table[position, i, 1] == np.float32(math.sin(angle))


def test_far_positions_keep_a_unit_circle():
    table = rope.table(200_000, 4, 5e5).astype(np.float64)[-1000:]
    assert np.abs((table**2).sum(axis=-1) - 1).max() < 2e-7


def test_frequency_factors_divide_the_frequencies():
    plain, factored = rope.table(64, 4, 100.0), rope.table(64, 4, 100.0, (1.0, 2.0))
    assert np.array_equal(plain[:, 0], factored[:, 0])
    assert np.allclose(plain[:32, 1], factored[::2, 1], atol=1e-6)


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
@pytest.mark.parametrize("rope_dim", [4, 8, 16])
def test_the_reference_multiplies_pairs_by_a_unit_complex_number(pairing, rope_dim):
    rng = np.random.default_rng(rope_dim)
    x, table = rng.standard_normal((3, 2, 16)).astype(np.float32), rope.table(40, rope_dim, 1e4)
    positions = np.array([0, 7, 39])
    got = rope.reference(x, table[positions], pairing)
    for i in range(rope_dim // 2):
        a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + rope_dim // 2)
        turned = (x[..., a] + 1j * x[..., b]) * np.exp(1j * positions * 1e4 ** (-2 * i / rope_dim))[:, None]
        assert np.allclose(got[..., a], turned.real, atol=1e-5)
        assert np.allclose(got[..., b], turned.imag, atol=1e-5)
    assert np.array_equal(got[..., rope_dim:], x[..., rope_dim:])


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
def test_scores_depend_on_the_distance_of_positions_alone(pairing):
    rng, table = np.random.default_rng(1), rope.table(300, 32, 1e4)
    q, k = rng.standard_normal((2, 1, 1, 32)).astype(np.float32)

    def score(i: int, j: int) -> float:
        turned = [rope.reference(x, table[[p]], pairing)[0, 0].astype(np.float64) for x, p in ((q, i), (k, j))]
        return float(turned[0] @ turned[1])

    assert score(17, 5) == pytest.approx(score(212, 200), abs=1e-4)
    assert score(17, 5) != pytest.approx(score(17, 6), abs=1e-2)


def test_wrong_arguments_are_refused_in_one_line():
    with pytest.raises(ParameterError, match="no meaning"):
        rope.table(10, 3, 1e4)
    with pytest.raises(ParameterError, match="1 frequency factors were given for 2"):
        rope.table(10, 4, 1e4, (1.0,))


def test_yarn_leaves_fast_dimensions_alone_slows_slow_ones_and_ramps_between() -> None:
    """arXiv:2309.00071, section 3.2, by its own words: r(d) = original / wavelength of dimension d."""
    factors = np.array(rope.yarn_factors(128, 1e4, 8.0, 4096))
    turns = 4096 * 1e4 ** (-np.arange(0, 128, 2) / 128) / (2 * np.pi)
    assert np.all(factors[turns > 32 * 1.3] == 1)  # the ramp's ends are whole dimensions
    np.testing.assert_allclose(factors[turns < 1 / 1.3], 8)
    assert np.all(np.diff(factors) >= 0)
    assert rope.yarn_scale(8.0) == pytest.approx(1 + 0.1 * np.log(8))
    assert rope.yarn_scale(0.5) == 1
    table = rope.table(4, 8, 1e4, scale=1.5)
    np.testing.assert_allclose(table, rope.table(4, 8, 1e4) * 1.5, rtol=1e-6)
