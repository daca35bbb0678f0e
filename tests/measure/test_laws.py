"""Laws fitted to times: what was put in comes out, intervals cover it as often as they say, and misfit widens them."""

import math

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.measure.laws import fit_law

LENGTHS = np.array([32.0, 64, 128, 256, 512, 1024])
ONE = np.ones(len(LENGTHS))


def test_a_law_without_noise_is_found_exactly_and_by_name() -> None:
    times = 0.25 + 0.003 * LENGTHS
    law = fit_law({"start": ONE, "token": LENGTHS}, np.stack([times, times], axis=1))
    assert law.coefficients["start"].estimate == pytest.approx(0.25)
    assert law.coefficients["token"].estimate == pytest.approx(0.003)
    assert law.fitted == pytest.approx(times)
    assert law.worst < 1e-12
    assert law.at(start=1, token=100) == pytest.approx(0.55)
    assert (law.sign("start"), law.sign("token")) == (1, 1)


def test_a_depth_and_a_batch_are_told_apart() -> None:
    depth, batch = (a.ravel().astype(float) for a in np.meshgrid([16, 64, 256], [1, 2, 4]))
    times = 2e-3 + 1e-4 * batch + 3e-6 * depth * batch
    law = fit_law({"step": np.ones(9), "stream": batch, "position": depth * batch}, times[:, None])
    assert [c.estimate for c in law.coefficients.values()] == pytest.approx([2e-3, 1e-4, 3e-6])


@pytest.mark.parametrize("noise", [0.002, 0.03])
def test_intervals_cover_the_truth_as_often_as_they_say(noise: float) -> None:
    chance, hits, tries = np.random.default_rng(1), 0, 400
    for _ in range(tries):
        drift = np.exp(noise * chance.standard_normal(5))  # of a whole block
        times = (0.1 + 0.002 * LENGTHS)[:, None] * drift * np.exp(noise * chance.standard_normal((6, 5)))
        found = fit_law({"start": ONE, "token": LENGTHS}, times).coefficients["token"]
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.002 <= found.high
    assert 0.93 <= hits / tries <= 1.0


def test_a_law_that_does_not_hold_has_wide_intervals_though_blocks_agree() -> None:
    steps = 0.5 * np.ceil(LENGTHS / 300)
    law = fit_law({"start": ONE, "token": LENGTHS}, np.stack([steps, steps * 1.0001, steps * 0.9999], axis=1))
    token = law.coefficients["token"]
    assert token.low is not None
    assert token.high is not None
    assert token.high - token.low > 0.1 * token.estimate
    assert law.worst > 0.05


@pytest.mark.parametrize(("bend", "sign"), [(0.0, 0), (2e-6, 1), (-1e-6, -1)])
def test_a_quadratic_term_is_seen_only_where_there_is_one(bend: float, sign: int) -> None:
    chance = np.random.default_rng(3)
    times = (0.1 + 0.003 * LENGTHS + bend * LENGTHS**2)[:, None] * np.exp(0.003 * chance.standard_normal((6, 10)))
    law = fit_law({"start": ONE, "token": LENGTHS, "pair": LENGTHS**2}, times)
    assert law.sign("pair") == sign


def test_one_block_that_leaves_no_freedom_has_no_interval() -> None:
    law = fit_law({"start": [1, 1], "token": [10, 20]}, [[1.0], [1.5]])
    assert law.coefficients["token"].estimate == pytest.approx(0.05)
    assert law.coefficients["token"].low is None
    assert law.sign("token") == 0


@pytest.mark.parametrize(
    ("terms", "times", "told"),
    [
        ({"start": [1], "token": [10]}, [[1.0]], "tell the terms start, token apart"),
        ({"a": [1, 2, 3], "b": [2, 4, 6]}, [[1.0], [2.0], [3.0]], "tell the terms a, b apart"),
        ({"a": [1, 2]}, [[1.0], [0.0]], "positive times"),
        ({"a": [1, 2]}, [[1.0], [math.nan]], "positive times"),
        ({"a": [1, 2, 3]}, [[1.0], [2.0]], "one value for each of 2 cells"),
    ],
)
def test_what_cannot_be_fitted_is_refused(terms: dict[str, list[float]], times: list[list[float]], told: str) -> None:
    with pytest.raises(ParameterError, match=told):
        fit_law(terms, times)


def test_a_law_asked_without_one_of_its_terms_says_which_there_are() -> None:
    law = fit_law({"start": ONE, "token": LENGTHS}, (1 + LENGTHS)[:, None])
    with pytest.raises(ParameterError, match="terms start, token"):
        law.at(start=1)
