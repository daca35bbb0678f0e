"""Joules a token: closed forms, what a sensor holds from before, and rest that is not told."""

import pytest

from labkit.errors import ParameterError
from labkit.measure.metrics import METRICS
from labkit.measure.sensor import Pulse, sense
from labkit.measure.telemetry import Reading
from labkit.measure.token_energy import energy_metrics, mean_reading, rest, token_energy


def test_joules_a_token_of_a_known_power_by_hand() -> None:
    """600 W for 2 s and 500 tokens: 2.4 J each, of which 100 W at rest are 0.4."""
    readings = [(0.05 * i, Reading(power_w=600.0)) for i in range(60)]
    found = token_energy(readings, [(0.0, 2.0)], 500, 0.1, 100.0)
    assert (found.joules, found.above_rest) == (pytest.approx(2.4), pytest.approx(2.0))
    assert (found.renewals, found.source) == (pytest.approx(19.0), "power")
    assert found.metrics().keys() == {"power_w", "j_per_token", "j_per_token_above_rest"}
    assert found.metrics("prefill").keys() == {"power_w", "j_per_prompt_token", "j_per_prompt_token_above_rest"}
    assert {*found.metrics(), *found.metrics("prefill")} <= METRICS.keys()
    assert "2.4 J a token (600 W, by power), 2 J of it above rest" in found.words()


@pytest.mark.parametrize("phase_s", [0.01, 0.03, 0.07, 0.099])
def test_what_the_sensor_holds_from_before_the_window_is_not_counted(phase_s: float) -> None:
    """A sensor renewed every 100 ms and read every 50 shows 130 W for up to that long after 640 W have begun."""
    load = Pulse(130.0, 640.0, 0.56)
    readings = sense(load, [1.0], 0.0, 0.1, 0.05, 3.0, phase_s)
    assert readings[20][1].power_w == 130.0  # at 1.0 s
    found = token_energy(readings, [(1.0, 1.56)], 1, 0.1)
    assert found.watts == pytest.approx(640.0)
    assert found.joules == pytest.approx(640.0 * 0.56)


def test_a_window_too_short_for_the_sensor_tells_nothing_and_counts_where_others_tell() -> None:
    readings = [(0.05 * i, Reading(power_w=300.0)) for i in range(100)]
    short = token_energy(readings, [(1.0, 1.04)], 512, 0.1, 100.0)
    assert (short.joules, short.above_rest, short.metrics()) == (None, None, {})
    assert short.words() == "no energy: no window lasts 2 renewals of the sensor, 0.2 s"
    both = token_energy(readings, [(1.0, 1.04), (2.0, 3.0)], 104, 0.1)
    assert both.joules == pytest.approx(300.0 * 1.04 / 104)
    assert both.above_rest is None  # what rest is, is not told


def test_a_counter_goes_before_power_and_a_gap_leaves_no_energy() -> None:
    counted = [(0.05 * i, Reading(power_w=100.0, energy_j=12.5 * i)) for i in range(80)]  # 250 W by the counter
    found = token_energy(counted, [(1.0, 3.0)], 100, 0.1)
    assert (found.source, found.joules) == ("counter", pytest.approx(5.0))
    reset = [(at, one if at < 2.0 else Reading(power_w=100.0, energy_j=0.0)) for at, one in counted]
    assert token_energy(reset, [(1.0, 3.0)], 100, 0.1).source == "power"
    assert token_energy(counted, [(1.0, 1.5)], 100, 0.1).source == "power"  # too short for the moments of its changes
    holed = [(at, Reading(power_w=100.0)) for at, _ in counted if not 1.2 < at < 2.5]
    assert "no energy: readings cover" in token_energy(holed, [(1.0, 3.0)], 100, 0.1).words()
    none = token_energy([(0.1 * i, Reading(core_mhz=2000.0)) for i in range(40)], [(1.0, 3.0)], 100, 0.1)
    assert "tells neither its power nor a counter" in none.words()
    with pytest.raises(ParameterError, match="0 tokens in 1 windows"):
        token_energy(counted, [(1.0, 3.0)], 0, 0.1)
    with pytest.raises(ParameterError, match="the end must come after the start"):
        token_energy(counted, [(3.0, 3.0)], 1, 0.1)


def test_rest_is_of_readings_in_which_nothing_worked() -> None:
    readings = [(0.1 * i, Reading(power_w=80.0 + i % 3, utilisation=0.0)) for i in range(20)]
    readings += [(2.0 + 0.1 * i, Reading(power_w=600.0, utilisation=1.0)) for i in range(20)]
    found = rest(readings, [(0.0, 4.0)])
    assert (found.watts, found.low_w, found.high_w, found.n) == (81.0, 80.0, 82.0, 20)
    assert found.words() == "81 W at rest, half of 20 readings from 80 to 82"
    busy = rest(readings, [(2.0, 4.0)])
    assert (busy.watts, busy.n) == (None, 0)
    assert "0 readings at rest" in busy.words()
    clocked = [
        (0.1 * i, Reading(power_w=125.0 if i < 9 else 81.0, core_mhz=1980.0 if i < 9 else 345.0)) for i in range(20)
    ]
    awake, asleep = rest(clocked, [(0.0, 4.0)], least_mhz=1700.0), rest(clocked, [(0.0, 4.0)], most_mhz=1700.0)
    assert ((awake.watts, awake.n), (asleep.watts, asleep.n)) == ((125.0, 9), (81.0, 11))
    assert mean_reading(readings, [(2.0, 4.0)], "power_w") == 600.0
    assert mean_reading(readings, [(2.0, 4.0)], "temperature_c") is None


def test_requests_have_joules_where_the_span_lasts_two_renewals_and_the_card_tells() -> None:
    """A sensor renewed every 0.1 s that shows 300 W up to 1 s and 500 W from then on: what is read first in the span from
    1 s on may still be of before it."""
    readings = [
        (0.05 * i, Reading(power_w=300.0 + 0.1 * (i // 2) if i < 21 else 500.0 + 0.1 * (i // 2))) for i in range(81)
    ]
    found = energy_metrics(readings, (1.0, 4.0), 1000)
    assert found["power_w"] == pytest.approx(502.55, abs=0.2)  # 500 and a tenth of the renewals 11 to 40
    assert found["j_per_token"] == pytest.approx(502.55 * 3 / 1000, rel=0.001)
    assert energy_metrics(readings, (1.0, 1.15), 100) == {}
    assert energy_metrics([(at, Reading(core_mhz=2000.0)) for at, _ in readings], (1.0, 4.0), 1000) == {}
    assert energy_metrics(readings[:1], (1.0, 4.0), 1000) == {}
