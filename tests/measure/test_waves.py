"""Admission waves: residents fitted to synthetic staircases and to the published ladders, against independent figures."""

import math

import pytest

from labkit.errors import ParameterError
from labkit.measure.waves import fit_residents, tokens_a_resident, waves

pytestmark = pytest.mark.quick

OUTPUT = 800  # tokens a request, in every published ladder
# Aggregate tok/s by streams: NikoCloud/r9700-local-inference-notes, docs/13 section 6 and docs/14.
LADDERS = {
    "27B, no drafter, 250 W": {1: 20.8, 4: 79.6, 8: 147.7, 16: 270.5, 24: 211.6, 64: 331.4},
    "27B, no drafter, 330 W": {1: 22.3, 4: 84.8, 8: 157.1, 16: 287.1, 24: 385.8, 64: 353.7},
    "27B, DFlash2, 250 W": {1: 62.8, 4: 211.1, 8: 220.3, 16: 267.0, 24: 292.8, 64: 286.7},
    "9B, MTP": {1: 104.3, 8: 628.3, 16: 651.8, 30: 755.4, 60: 862.1, 64: 888.6, 90: 900.2},
    "9B, no drafter": {1: 77.9, 8: 510.7, 16: 884.2, 30: 1378.3, 60: 1915.5, 64: 1988.7, 90: 1517.4},
}
POOLS = {"27B, no drafter, 250 W": 89_630, "27B, no drafter, 330 W": 115_651, "9B, no drafter": 273_881}
# Residents worked out from the fastest and the slowest stream of the raw data, which the aggregates know nothing of.
BY_SPREAD = {
    "27B, no drafter, 250 W": (23, 23), "27B, no drafter, 330 W": (28, 28), "27B, DFlash2, 250 W": (5, 6),
    "9B, MTP": (12, 12), "9B, no drafter": (68, 68),
}  # fmt: skip


def published(name):
    ladder = LADDERS[name]
    return fit_residents(list(ladder), [[n * OUTPUT / rate] for n, rate in ladder.items()])


@pytest.mark.parametrize("residents", [2, 4, 7])
def test_residents_that_made_a_staircase_are_found_again(residents):
    streams = [1, 2, 3, 4, 5, 6, 8, 9, 12, 15]
    times = [[2.0 * math.ceil(n / residents) + 0.1 * n] * 3 for n in streams]
    found = fit_residents(streams, times)
    assert found.low <= residents <= found.high
    assert found.high - found.low <= 1
    assert found.bounded
    assert found.misfit < 1e-9 < 1e-3 < found.next_misfit
    assert found.law.at(wave=1, stream=0) == pytest.approx(2.0)
    assert found.law.at(wave=0, stream=1) == pytest.approx(0.1)


def test_where_a_wave_costs_nothing_the_rungs_tell_nothing():
    found = fit_residents([1, 2, 4, 8], [[2.1 * n] for n in (1, 2, 4, 8)])
    assert (found.low, found.high) == (1, 8)


def test_where_no_rung_waited_only_the_least_number_of_residents_is_known():
    found = fit_residents([1, 2, 4, 8], [[2.1], [2.2], [2.4], [2.8]])
    assert (found.low, found.bounded) == (8, False)
    assert found.words() == "8 or more"


@pytest.mark.parametrize("name", LADDERS)
def test_the_published_aggregates_alone_give_the_residents_that_the_spread_of_streams_gives(name):
    found, (least, most) = published(name), BY_SPREAD[name]
    assert found.low - 1 <= most, found.words()
    assert least <= found.high, found.words()
    assert found.misfit < 0.05
    assert found.next_misfit > 2 * found.misfit


def test_the_wave_of_23_and_a_lone_stream_give_the_rung_of_24():
    law = published("27B, no drafter, 250 W").law
    full, lone = law.at(wave=1, stream=23), law.at(wave=1, stream=1)
    assert full == pytest.approx(52.2, rel=0.01)  # seconds, from the raw data of the ladder
    assert lone == pytest.approx(38.5, rel=0.01)
    assert full + lone == pytest.approx(24 * OUTPUT / 211.6, rel=0.01)


def test_one_price_in_tokens_fits_the_three_ladders_without_a_drafter_and_none_with_one():
    plain = [tokens_a_resident(POOLS[name], published(name)) for name in POOLS]
    least, most = max(low for low, _ in plain), min(high for _, high in plain)
    assert least < 4000 < most, "R = pool / c with c of about 4,000 tokens"
    assert tokens_a_resident(110_649, published("9B, MTP"))[0] > most
    assert tokens_a_resident(58_709, published("27B, DFlash2, 250 W"))[0] > most


def test_dropping_the_drafter_is_more_residents_times_slower_streams():
    drafted, plain = LADDERS["9B, MTP"], LADDERS["9B, no drafter"]
    assert plain[60] / drafted[60] == pytest.approx(2.22, abs=0.005)
    assert drafted[8] / plain[8] == pytest.approx(1.23, abs=0.005), (
        "where all eight are resident, the drafter is faster"
    )


def test_what_cannot_be_fitted_is_refused_in_one_line():
    with pytest.raises(ParameterError, match="at least four"):
        fit_residents([1, 2, 3], [[1.0], [1.0], [1.0]])
    with pytest.raises(ParameterError, match="at least one of each"):
        waves(0, 4)
    with pytest.raises(ParameterError, match="holds nothing"):
        tokens_a_resident(0, published("9B, MTP"))
    with pytest.raises(ParameterError, match="positive"):
        fit_residents([1, 2, 3, 4], [[1.0], [1.0], [0.0], [1.0]])
