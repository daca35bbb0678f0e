"""Energy from telemetry: closed forms, gaps that are not guessed over, and a counter before readings of power."""

import math

import pytest

from labkit.errors import ParameterError
from labkit.measure.energy import energy
from labkit.measure.telemetry import Reading


def powers(*points: tuple[float, float]) -> list[tuple[float, Reading]]:
    """Readings of power at moments."""
    return [(at, Reading(power_w=watts)) for at, watts in points]


def test_a_straight_line_of_power_is_integrated_exactly_whatever_the_moments() -> None:
    moments = [0.0, 0.13, 0.2, 0.31, 0.5, 0.62, 0.75, 0.88, 1.0]
    found = energy(powers(*((at, 100 + 200 * at) for at in moments)), 0.25, 0.75)
    assert found.covered_j == pytest.approx(100 * 0.5 + 100 * (0.75**2 - 0.25**2))  # 100 J
    assert (found.covered_s, found.source, found.gaps_s) == (pytest.approx(0.5), "power", ())
    assert found.per_token(50) == pytest.approx(2.0)


def test_a_sine_of_power_is_integrated_within_the_trapezoids_error() -> None:
    h = 0.01
    found = energy(powers(*((i * h, 200 + 50 * math.sin(2 * math.pi * i * h)) for i in range(101))), 0.0, 0.25)
    exact = 200 * 0.25 + 50 / (2 * math.pi)
    worst = 0.25 * h**2 / 12 * 50 * (2 * math.pi) ** 2  # (b - a) h^2 / 12 max |f''|
    assert abs(found.covered_j - exact) <= worst


def test_over_a_gap_nothing_is_counted_and_a_large_one_leaves_no_energy() -> None:
    readings = powers(*((0.1 * i, 100.0) for i in range(101)))
    hole = [one for one in readings if not 4.0 < one[0] < 4.5]
    found = energy(hole, 0.0, 10.0)
    assert found.covered_s == pytest.approx(9.5)
    assert found.covered_j == pytest.approx(950.0)
    assert found.gaps_s == (pytest.approx(0.5),)
    assert found.joules == pytest.approx(1000.0)  # the rest at the mean of what was seen
    half = energy([one for one in readings if not 2.0 < one[0] < 7.0], 0.0, 10.0)
    assert half.joules is None
    assert half.per_token(10) is None
    assert half.words() == "no energy: readings cover 5 of 10 s"
    late = energy(readings, 0.0, 20.0)
    assert late.gaps_s == (pytest.approx(10.0),)
    assert late.joules is None


def test_a_counter_goes_before_readings_of_power_and_sees_what_they_miss() -> None:
    """A spike of 1,000 W over 10 ms between two readings of 100 W: the counter has its 9 J more, the readings do not."""
    readings = [
        (t, Reading(power_w=100.0, energy_j=5e6 + 100 * t + (9.0 if t >= 0.5 else 0.0))) for t in (0.0, 0.5, 1.0)
    ]
    found = energy(readings, 0.0, 1.0)
    assert (found.source, found.joules) == ("counter", pytest.approx(109.0))
    assert energy([(t, Reading(power_w=one.power_w)) for t, one in readings], 0.0, 1.0).joules == pytest.approx(100.0)
    assert "by the card’s counter" in found.words()


def test_a_counter_that_was_reset_is_not_used() -> None:
    readings = [(t, Reading(power_w=100.0, energy_j=value)) for t, value in ((0.0, 500.0), (0.5, 550.0), (1.0, 3.0))]
    assert energy(readings, 0.0, 1.0).source == "power"


def test_without_power_there_is_no_energy_and_no_zero() -> None:
    found = energy([(0.0, Reading(core_mhz=2000.0)), (1.0, Reading(core_mhz=2000.0))], 0.0, 1.0)
    assert (found.source, found.joules, found.per_token(5)) == ("none", None, None)
    assert energy([], 0.0, 1.0).joules is None
    with pytest.raises(ParameterError, match="the end must come after"):
        energy([], 1.0, 1.0)
