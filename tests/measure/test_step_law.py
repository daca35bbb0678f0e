"""The law of a step gives back the knee it was made with, and says where it was not seen or not shown."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.measure.step_law import fit_steps

pytestmark = pytest.mark.quick
LADDER = [1, 2, 4, 8, 16, 32]


def steps(t0: float, r: float, noise: float = 0.0, blocks: int = 5) -> np.ndarray:
    """Seconds of a step [rungs, blocks], made by these coefficients."""
    chance = np.random.default_rng(7)
    line = t0 + r * np.array(LADDER, float)
    return line[:, None] * np.exp(noise * chance.standard_normal((len(LADDER), blocks)))


def test_the_knee_is_where_a_step_takes_twice_t0_and_half_of_the_most_comes() -> None:
    found = fit_steps(LADDER, steps(0.020, 0.002, noise=0.01))
    assert found.inside
    assert found.knee is not None
    assert found.knee.low is not None
    assert found.knee.high is not None
    assert found.knee.low < 10 < found.knee.high
    assert found.knee.estimate == pytest.approx(10, rel=0.05)
    exact = fit_steps(LADDER, steps(0.020, 0.002))
    assert exact.step_s(10) == pytest.approx(0.040)
    assert exact.most_tok_s == pytest.approx(500)
    assert exact.tok_s(10) == pytest.approx(250)
    power = [exact.tok_s(n) / exact.step_s(n) for n in (9, 10, 11)]
    assert power[1] == max(power)


def test_a_knee_beyond_the_widest_rung_is_said_not_to_be_seen() -> None:
    found = fit_steps(LADDER, steps(0.050, 0.001))
    assert not found.inside
    assert "outside of what was measured (1 to 32)" in found.words()


@pytest.mark.parametrize(("t0", "r"), [(0.02, 0.0), (0.0, 0.002), (0.02, -0.0001)])
def test_where_a_step_or_a_stream_costs_nothing_there_is_no_knee(t0: float, r: float) -> None:
    found = fit_steps(LADDER, steps(t0, r, noise=0.02))
    assert found.knee is None
    assert "no knee from 1 to 32 streams" in found.words()


def test_of_one_block_of_two_rungs_there_is_a_knee_without_an_interval() -> None:
    found = fit_steps([1, 16], [[0.022], [0.052]])
    assert found.knee is not None
    assert (found.knee.estimate, found.knee.low) == (pytest.approx(10), None)
    assert found.most_tok_s == pytest.approx(500)


def test_the_published_ladder_of_a_27b_gives_its_knee_far_beyond_its_rungs() -> None:
    """n over the rates of NikoCloud's docs/13 at 250 W, of the rungs below the cap of its residents."""
    rates = {1: 20.8, 4: 79.6, 8: 147.7, 16: 270.5}
    found = fit_steps(list(rates), [[n / rate] for n, rate in rates.items()])
    assert found.t0_s == pytest.approx(0.0474, abs=5e-4)
    assert found.stream_s == pytest.approx(0.00074, abs=5e-5)
    assert found.law.worst < 0.015
    assert not found.inside


def test_one_rung_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least two"):
        fit_steps([4, 4], [[0.1], [0.1]])
