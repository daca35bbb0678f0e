"""Transients and steady state: what readings see of a known power, and when a window counts as steady."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from labkit.errors import ParameterError
from labkit.measure.telemetry import Reading
from labkit.measure.transients import steady, transients


def sampled(
    power: Callable[[float], float], period_s: float, seconds: float, start_s: float = 0.0
) -> list[tuple[float, Reading]]:
    """Readings of a power that is known at every moment."""
    return [
        (start_s + i * period_s, Reading(power_w=power(start_s + i * period_s)))
        for i in range(int((seconds - start_s) / period_s) + 1)
    ]


def test_the_statistics_of_a_square_wave_by_hand() -> None:
    """200 W, and 584 W in one tenth of the time, under a cap of 250 W: the peak was published of such a cap."""
    readings = [(0.01 * i, Reading(power_w=584.0 if i % 10 == 0 else 200.0)) for i in range(1000)]
    found = transients(readings, 0.0, 100.0, cap_w=250.0)
    assert (found.n, found.peak_w, found.median_w) == (1000, 584.0, 200.0)
    assert found.mean_w == pytest.approx(238.4)  # under the cap, as a mean is kept
    assert found.over_cap == 0.1
    assert found.peak_of_cap == pytest.approx(2.336)
    assert found.p99.value == 584.0
    assert found.period_s == pytest.approx(0.01)
    assert "234% of the cap of 250 W; 10.0% of readings above it" in found.words()
    few = transients(readings[:100], 0.0, 100.0)
    assert few.p99.value is None  # 368 are needed
    assert (few.peak_of_cap, few.over_cap) == (None, None)


@pytest.mark.parametrize(("period_s", "length_s"), [(0.05, 0.001), (0.05, 0.02), (0.01, 0.02), (0.1, 0.1)])
def test_a_transient_is_seen_as_often_as_is_said(period_s: float, length_s: float) -> None:
    """One pulse at a random moment of a second, read every `period_s`: seen where a reading falls on it."""
    chance = random.Random(11)
    seen, tries = 0, 300
    for _ in range(tries):
        at, phase = chance.uniform(0.3, 0.6), chance.uniform(0.0, period_s)
        readings = sampled(lambda t, at=at: 500.0 if at <= t < at + length_s else 100.0, period_s, 1.0, phase)
        seen += transients(readings, 0.0, 1.0).peak_w == 500.0
    said = transients(sampled(lambda t: 100.0, period_s, 1.0), 0.0, 1.0).sees(length_s)
    assert said == pytest.approx(min(1.0, length_s / period_s))
    assert abs(seen / tries - said) <= 4 * math.sqrt(max(said * (1 - said), 1e-9) / tries) + 1e-3


def test_no_transient_as_long_as_the_longest_distance_is_missed() -> None:
    readings = [one for one in sampled(lambda t: 100.0, 0.01, 1.0) if not 0.4 < one[0] < 0.5]
    found = transients(readings, 0.0, 1.0)
    assert found.shortest_s == pytest.approx(0.1)
    assert found.sees(0.005) == pytest.approx(0.5)
    assert found.sees(5.0) == 1.0
    with pytest.raises(ParameterError, match="1 readings of power"):
        transients(readings, 0.0, 0.001)


def temperatures(seed: int, course: Callable[[float], float], noise: float = 0.3) -> list[tuple[float, Reading]]:
    """30 s of a sensor, ten readings a second, whose noise of 0.3 °C hangs together over a second."""
    chance = random.Random(seed)
    kept, error, found = math.exp(-0.1), chance.gauss(0, noise), []
    for i in range(300):
        error = kept * error + math.sqrt(1 - kept**2) * chance.gauss(0, noise)
        found.append((0.1 * i, Reading(temperature_c=course(0.1 * i) + error, power_w=250.0)))
    return found


def verdicts(course: Callable[[float], float]) -> Counter[bool | None]:
    return Counter(steady(temperatures(seed, course), 0.0, 30.0).steady for seed in range(100))


def test_a_card_that_warms_is_not_steady_and_one_that_has_warmed_is() -> None:
    """From 60 °C by 25 with a time constant of a minute: in the first half minute it rises by 9.8, after five by 0.07."""
    assert 25 * (1 - math.exp(-0.5)) == pytest.approx(9.8, abs=0.05)
    assert verdicts(lambda t: 60 + 25 * (1 - math.exp(-t / 60))) == {False: 100}
    warmed = verdicts(lambda t: 60 + 25 * (1 - math.exp(-(t + 300) / 60)))
    assert warmed[True] >= 80
    assert warmed[False] == 0


def test_a_still_card_is_nearly_always_called_steady_and_never_unsteady() -> None:
    found = verdicts(lambda t: 80.0)
    assert found[True] >= 80
    assert found[False] == 0


def test_what_is_at_the_limit_cannot_be_told() -> None:
    assert verdicts(lambda t: 80 + t / 30)[None] >= 75


def test_a_power_that_falls_by_a_tenth_is_not_steady_and_a_constant_one_is() -> None:
    falling = [(0.1 * i, Reading(power_w=250.0 - i * 25 / 300)) for i in range(300)]
    found = steady(falling, 0.0, 30.0, "power_w")
    assert found.steady is False
    assert found.rise == pytest.approx(-0.105, abs=0.001)
    assert "not steady" in found.words()
    assert steady(temperatures(1, lambda t: 80.0), 0.0, 30.0, "power_w").steady is True
    few = steady(falling[::30], 0.0, 30.0, "power_w")
    assert (few.steady, few.n) == (None, 10)
    assert "10 readings do not tell" in few.words()
    with pytest.raises(ParameterError, match="has no steady state here"):
        steady(falling, 0.0, 30.0, "utilisation")
    with pytest.raises(ParameterError, match="the end must come after the start"):
        steady(falling, 30.0, 30.0)
