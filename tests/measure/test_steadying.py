"""Working until it is steady: a card that warms as 1 - exp(-t / T), and ones that never do or tell nothing."""

import math

import pytest

from labkit.errors import ParameterError
from labkit.measure.steadying import Steadied, until_steady
from labkit.measure.telemetry import Reading
from labkit.measure.transients import steady


class Card:
    """A clock of its own, and readings ten times a second while it works."""

    def __init__(self, celsius: float | None, watts: float = 300.0) -> None:
        self.now, self.rises, self.watts = 0.0, celsius, watts
        self.readings: list[tuple[float, Reading]] = []

    def work(self, seconds: float = 5.0) -> None:
        for _ in range(int(seconds * 10)):
            heat = None if self.rises is None else 60 + self.rises * (1 - math.exp(-self.now / 60))
            self.readings.append((self.now, Reading(power_w=self.watts, temperature_c=heat)))
            self.now += 0.1

    def steadied(self, most_s: float = 600.0) -> Steadied:
        return until_steady(self.work, lambda: self.readings, most_s, lambda: self.now)


def test_a_warming_card_is_worked_until_its_law_says_that_it_is_steady() -> None:
    """25 °C to come with a time constant of a minute: eight rounds of 5 s rise by 25 exp(-t / 60) (1 - exp(-40 / 60)), the
    line fitted to them by a little more, and are under 1 °C from about 150 s after their start on."""
    first = 60 * math.log(25 * (1 - math.exp(-40 / 60)))
    found = Card(25.0).steadied()
    assert found.steady is True
    assert first + 40 <= found.seconds <= first + 40 + 20
    assert found.rounds == pytest.approx(found.seconds / 5)
    assert found.words().startswith(f"{found.rounds} rounds, ")


def test_a_card_that_is_steady_takes_nine_rounds_and_one_that_is_not_takes_the_time_given() -> None:
    assert Card(0.0).steadied().rounds == 9
    found = Card(500.0).steadied(most_s=59.0)
    assert (found.steady, found.seconds) == (False, pytest.approx(60.0))
    assert "temperature_c rises by" in found.words()
    assert "not steady" in found.words()


def test_a_card_without_a_thermometer_is_judged_by_power_and_one_without_sensors_not_at_all() -> None:
    assert [one.metric for one in Card(None).steadied().found] == ["power_w"]
    still = Card(None)
    found = until_steady(still.work, list, 60.0, lambda: still.now)
    assert (found.steady, found.found) == (None, ())
    assert found.words().endswith("no reading tells power or temperature")
    with pytest.raises(ParameterError, match="give a time above 0"):
        until_steady(still.work, list, 0.0)


def test_the_published_rise_of_a_junction_is_not_steady_whatever_the_time_it_took() -> None:
    """From 82 to 91 °C, in a straight line: nine times what the rule lets pass."""
    for seconds in (30.0, 600.0):
        readings = [(seconds * i / 100, Reading(temperature_c=82 + 9 * i / 100)) for i in range(101)]
        found = steady(readings, 0.0, seconds)
        assert found.steady is False
        assert found.rise == pytest.approx(9.0, abs=0.3)
