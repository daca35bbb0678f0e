"""What a power sensor sees of pulses: closed forms against a sensor that is simulated, and by hand."""

import itertools
import math
import random

import pytest

from labkit.errors import ParameterError
from labkit.measure.sensor import Pulse, renewal, sense, why_no_power
from labkit.measure.telemetry import Reading
from labkit.vulkan.device import Device

PUBLISHED = Pulse(200.0, 584.0, 0.001)  # a peak under a cap of 250 W, and a millisecond of it


def test_the_window_that_hides_a_published_peak_by_hand() -> None:
    """584 W for a millisecond from 200 W is 0.384 J above them; 50 W more than 200 W are 0.384 J in 7.68 ms."""
    assert PUBLISHED.hidden_by_s(250.0) == pytest.approx(7.68e-3)
    assert PUBLISHED.seen_w(7.68e-3) == pytest.approx(250.0)
    assert PUBLISHED.seen_w(0.1) == pytest.approx(203.84)
    assert PUBLISHED.seen_w(0.0) == PUBLISHED.seen_w(0.001) == 584.0
    assert PUBLISHED.duty(250.0) == pytest.approx(50 / 384)
    assert Pulse(200.0, 488.0, 0.001).hidden_by_s(250.0) == pytest.approx(5.76e-3)
    with pytest.raises(ParameterError, match="a cap of 600 W does not lie between 200 and 584 W"):
        PUBLISHED.hidden_by_s(600.0)
    with pytest.raises(ParameterError, match="give a peak above the base"):
        Pulse(300.0, 200.0, 0.1)


@pytest.mark.parametrize(
    ("length_s", "window_s", "renewal_s", "level_w"),
    [(0.02, 0.0, 0.1, 250.0), (0.02, 0.05, 0.1, 250.0), (0.02, 0.1, 0.1, 250.0), (0.001, 0.02, 0.05, 250.0),
     (0.05, 0.02, 0.1, 400.0), (0.3, 0.1, 0.1, 500.0)],
)  # fmt: skip
def test_a_pulse_is_read_above_a_level_as_often_as_is_said(
    length_s: float, window_s: float, renewal_s: float, level_w: float
) -> None:
    pulse, chance, tries = Pulse(200.0, 584.0, length_s), random.Random(5), 400
    over = 0
    for _ in range(tries):
        readings = sense(
            pulse, [chance.uniform(0.4, 0.6)], window_s, renewal_s, renewal_s / 2, 1.2, chance.uniform(0, renewal_s)
        )
        over += max(one.power_w for _, one in readings) > level_w
    said = pulse.chance(level_w, window_s, renewal_s)
    assert abs(over / tries - said) <= 4 * math.sqrt(max(said * (1 - said), 1e-9) / tries) + 1e-3


def test_what_is_read_is_never_above_what_is_said_to_be_seen() -> None:
    for length_s, window_s in itertools.product((0.001, 0.01, 0.1), (0.0, 0.005, 0.05, 0.5)):
        pulse = Pulse(200.0, 584.0, length_s)
        readings = sense(pulse, [0.6], window_s, 0.0005, 0.0005, 1.5)
        most = max(one.power_w for _, one in readings)
        assert most == pytest.approx(pulse.seen_w(window_s), rel=0.06)
        assert most <= pulse.seen_w(window_s) + 1e-9
    assert Pulse(200.0, 584.0, 0.001).chance(250.0, 0.01, 0.01) == 0.0  # 7.68 ms hide it
    assert Pulse(200.0, 584.0, 0.001).chance(100.0, 0.01, 0.01) == 1.0
    assert Pulse(200.0, 584.0, 0.001).chance(600.0, 0.01, 0.01) == 0.0
    with pytest.raises(ParameterError, match="give a time above 0"):
        PUBLISHED.chance(250.0, 0.01, 0.0)


def test_a_sensor_read_oftener_than_it_is_renewed_tells_its_renewal() -> None:
    noise = random.Random(2)
    values = [100 + noise.random() for _ in range(60)]
    readings = [(0.05 * i, Reading(power_w=values[i // 2])) for i in range(100)]
    found = renewal(readings)
    assert (found.period_s, found.read_s) == (pytest.approx(0.1), pytest.approx(0.05))
    assert found.seconds == pytest.approx(0.1)
    assert found.words() == "read every 50 ms, and renewed every 100 ms"
    each = renewal([(0.05 * i, Reading(power_w=values[i])) for i in range(50)])
    assert each.words() == "read every 50 ms, and renewed as often or oftener"
    still = renewal([(0.05 * i, Reading(power_w=100.0)) for i in range(50)])
    assert (still.period_s, still.changes, still.seconds) == (None, 0, pytest.approx(0.05))
    assert "0 changes do not tell" in still.words()
    with pytest.raises(ParameterError, match="1 readings of power_w"):
        renewal([(0.0, Reading(power_w=1.0))])


class Told:
    """A source that says what it was given, whatever it is asked of."""

    name = "the imitated sensor"

    def __init__(self, *readings: Reading, **facts: str) -> None:
        self.left, self.said = list(readings), facts

    def read(self) -> Reading:
        return self.left.pop(0)

    def facts(self) -> dict[str, str]:
        return self.said


def test_a_device_without_a_sensor_of_power_says_why(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    def give(source: Told | None, name: str = "") -> None:
        monkeypatch.setattr("labkit.measure.telemetry.find_source", lambda device: (source, name))

    give(None, "no telemetry: nothing is there")
    assert why_no_power(device, 0.0) == "no telemetry: nothing is there"
    give(Told(Reading(core_mhz=1.0), Reading(core_mhz=1.0), no_power="the counter is for root alone"))
    assert why_no_power(device, 0.0) == "the counter is for root alone"
    give(Told(Reading(core_mhz=1.0), Reading(core_mhz=1.0)))
    assert why_no_power(device, 0.0) == f"the imitated sensor tells no power of {device.name}"
    give(Told(Reading(), Reading(power_w=80.0)))  # the power of a counter is a difference: the first look has none
    assert why_no_power(device, 0.0) == ""
