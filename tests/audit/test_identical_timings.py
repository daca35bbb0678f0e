"""Identical timings: a replay of one configuration under the name of another; honest cells differ."""

import pytest
from make_evidence import claims_of, measured, notices, observed

from labkit.audit.evidence import Evidence, Observation

ID = "identical-timings"


def run_of(cells: list[Observation]) -> Evidence:
    """Cells as the evidence of a run."""
    return Evidence("run", "a run", tuple(cells))


@pytest.mark.quick
def test_a_stale_cache_that_replays_one_configuration_under_three_names_is_seen():
    times = [37.412533, 37.398121, 37.420077, 37.401988]
    cells = measured({n: {"step_ms": list(times)} for n in (1.0, 2.0, 4.0)})
    found = [notice for notice in notices(ID, run_of(cells)) if notice.outcome == "fail"]
    assert [set(notice.about) for notice in found] == [{"width=1", "width=2"}, {"width=1", "width=4"}]


def test_cells_that_differ_in_one_repetition_are_no_replay():
    cells = measured(
        {1.0: {"step_ms": [37.412533, 37.398121, 37.420077]}, 2.0: {"step_ms": [37.412533, 37.398121, 37.420078]}}
    )
    assert {notice.outcome for notice in notices(ID, run_of(cells))} == {"ok"}


@pytest.mark.parametrize("values", [[37.4, 37.4, 37.4], [37.4, 37.5, 37.4], [1.38624, 1.38624, 1.38624]])
def test_coarse_or_constant_times_are_no_evidence(values: list[float]):
    cells = measured({1.0: {"step_ms": list(values)}, 2.0: {"step_ms": list(values)}})
    assert notices(ID, run_of(cells)) == []


def published(setting: str, values: list[float]) -> list[Observation]:
    """A published ladder of one configuration."""
    return [
        observed("decode_tok_s", value, f"{setting} {n}", streams=float(n), settings={"moe": setting})
        for n, value in zip((1, 2, 4), values, strict=True)
    ]


def test_published_ladders_that_are_equal_to_the_last_digit_warn():
    same = [1234.5, 2345.6, 4567.8]
    found = notices(ID, claims_of(*published("a", same), *published("b", same)))
    assert [notice.outcome for notice in found] == ["warn"]
    honest = notices(ID, claims_of(*published("a", same), *published("b", [1234.5, 2345.6, 4567.9])))
    assert honest == []


def test_three_digits_may_well_be_equal():
    # NIK docs/12: 34.8 tok/s without a drafter on copies, code and prose alike
    rounded = [34.8, 62.2, 76.8]
    assert notices(ID, claims_of(*published("a", rounded), *published("b", rounded))) == []
