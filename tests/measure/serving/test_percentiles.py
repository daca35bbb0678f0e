"""Percentiles: the count each needs, their intervals' ranks, and how often these hold the truth."""

import math

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.measure.serving.percentiles import least_count, percentile, ranks


@pytest.mark.parametrize(("p", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688), (0.01, 368)])
def test_a_percentile_needs_the_count_whose_power_leaves_a_fortieth(p: float, n: int) -> None:
    assert least_count(p) == n
    side = max(p, 1 - p)
    assert side**n <= 0.025 < side ** (n - 1)
    assert n == math.ceil(math.log(0.025) / math.log(side))


def test_below_its_count_a_percentile_has_no_value_and_at_it_it_does() -> None:
    few, enough = percentile(range(367), 0.99), percentile(range(368), 0.99)
    assert (few.value, few.low, few.high, few.n) == (None, None, None, 367)
    assert (enough.value, enough.high) == (364.0, 367.0)  # 0.99 * 368 = 364.3: the 365th; the largest bounds it
    assert percentile([], 0.5).value is None


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (100, 40, 61)])
def test_the_ranks_of_a_medians_interval_are_those_of_the_sign_test(n: int, low: int, high: int) -> None:
    assert ranks(n, 0.5) == (low, high)
    below = sum(math.comb(n, k) for k in range(low)) / 2**n
    assert below <= 0.025 < below + math.comb(n, low) / 2**n


def test_the_median_is_what_everybody_takes() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0, 6.0, 5.0], 0.5).value == 3.5
    assert percentile([4.0, 1.0, 3.0, 2.0, 6.0, 5.0, 7.0], 0.5).value == 4.0
    assert percentile([1.0] * 6, 0.5).name == "p50"


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_the_interval_holds_the_truth_in_95_of_100_cases_whatever_the_distribution(p: float) -> None:
    truth = -math.log(1 - p)  # of the exponential
    chance = np.random.default_rng(7)
    held = 0
    for _ in range(500):
        found = percentile(chance.exponential(size=400), p)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 0.93 * 500  # at least 0.95 is promised; three deviations of 500 draws are 0.029


@pytest.mark.parametrize("p", [0.0, 1.0, 99, -0.5])
def test_a_share_outside_0_and_1_is_refused(p: float) -> None:
    with pytest.raises(ParameterError, match="give a share between 0 and 1"):
        percentile([1.0], p)
    with pytest.raises(ParameterError, match="finite"):
        percentile([1.0, math.nan], 0.5)
