"""When requests are due: closed loops at once, a rate's gaps exponential, a ramp's integral its line."""

import math
import statistics

import pytest

from labkit.errors import ParameterError
from labkit.runtimes.load import Load, at_once


def test_a_closed_loop_has_no_moments_but_the_start() -> None:
    assert list(Load("concurrent", streams=4).moments(5)) == [0.0] * 5
    assert at_once(7).streams == 7


def test_gaps_of_a_rate_are_exponential_and_the_same_again() -> None:
    moments = list(Load("poisson", rate=4.0, seed=3).moments(4000))
    gaps = [b - a for a, b in zip([0.0, *moments], moments, strict=False)]
    assert min(gaps) > 0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.06)  # 4000 gaps: a standard error of 1.6 %
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.08)
    assert sum(gap > 0.25 for gap in gaps) / 4000 == pytest.approx(math.exp(-1), abs=0.03)
    assert moments == list(Load("poisson", rate=4.0, seed=3).moments(4000))
    assert moments != list(Load("poisson", rate=4.0, seed=4).moments(4000))


def test_a_ramp_sends_the_integral_of_its_rate() -> None:
    moments = list(Load("ramp", rate=10.0, end_rate=90.0, seconds=20.0, seed=1).moments(1900))
    assert moments == sorted(moments)
    for seconds in (5.0, 10.0, 15.0):  # 10 t + 2 t^2 requests by then
        wanted = 10 * seconds + 2 * seconds**2
        assert sum(at <= seconds for at in moments) == pytest.approx(wanted, abs=4 * math.sqrt(wanted))
    after = [at for at in moments if at > 20.0]
    assert len(after) / (after[-1] - 20.0) == pytest.approx(90.0, rel=0.15)


def test_a_ramp_that_does_not_grow_is_a_rate() -> None:
    flat = Load("ramp", rate=5.0, end_rate=5.0, seconds=3.0, seed=2)
    assert list(flat.moments(50)) == pytest.approx(list(Load("poisson", rate=5.0, seed=2).moments(50)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "steady"}, "use concurrent, poisson or ramp"),
        ({"kind": "concurrent", "streams": 0}, "0 is not from 1 to 4096"),
        ({"kind": "poisson", "rate": math.nan}, "give a number above 0"),
        ({"kind": "ramp", "rate": 1.0, "end_rate": 0.0, "seconds": 1.0}, "give a number above 0"),
        ({"kind": "ramp", "rate": 1.0, "end_rate": 2.0}, "a ramp takes a time above 0"),
    ],
)
def test_a_load_that_cannot_be_is_refused(options: dict, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Load(**options)
