"""Faster than solo: the batch ladder whose step gets shorter, prompts counted as output; honest ladders pass."""

import pytest
from make_evidence import claims_of, measured, notices, observed

ID = "faster-than-solo"


@pytest.mark.quick
def test_a_ladder_multiplied_by_its_batch_has_steps_that_get_shorter():
    # AMA: 17, 60, 208, 619, 1,724 tok/s; a step took 59 ms alone and 18.6 ms among 32
    ladder = [(1, 17), (4, 60), (8, 208), (16, 619), (32, 1724)]
    rows = [observed("decode_tok_s", rate, f"b={n}", streams=float(n), slots=32.0) for n, rate in ladder]
    found = {notice.subject: notice.outcome for notice in notices(ID, claims_of(*rows))}
    assert pytest.approx(59, abs=0.3) == 1000 / 17
    assert pytest.approx(18.6, abs=0.1) == 32_000 / 1724
    assert found == {"b=4": "ok", "b=8": "warn", "b=16": "fail", "b=32": "fail"}


def test_prompts_counted_as_output_make_two_streams_faster_than_two_alone():
    # NIK docs/02: 524 at two streams, 112 alone; divided by (2000 + 512) / 512 it is 107
    rows = [observed("decode_tok_s", rate, f"n={n}", streams=float(n)) for n, rate in ((1, 112), (2, 524))]
    (notice,) = notices(ID, claims_of(*rows))
    assert notice.outcome == "fail"
    assert "262" in notice.arithmetic[1]
    assert pytest.approx(107, abs=0.5) == 524 * 512 / 2512
    rows = [observed("decode_tok_s", rate, f"n={n}", streams=float(n)) for n, rate in ((1, 112), (2, 107))]
    assert [notice.outcome for notice in notices(ID, claims_of(*rows))] == ["ok"]


@pytest.mark.parametrize(
    "ladder",
    [
        [(1, 7.52), (2, 15.15), (3, 22.69), (4, 30.18)],  # 14B on vLLM: the step stays as long, to a hundredth
        [(1, 77.9), (8, 510.7), (16, 884.2), (30, 1378.3), (60, 1915.5), (90, 1517.4)],  # 9B without a drafter
        [(1, 20.8), (4, 79.6), (8, 147.7), (16, 270.5), (24, 211.6), (64, 331.4)],  # waves, and still no faster
    ],
)
def test_honest_ladders_pass(ladder: list[tuple[int, float]]):
    rows = [observed("decode_tok_s", rate, f"n={n}", streams=float(n)) for n, rate in ladder]
    assert {notice.outcome for notice in notices(ID, claims_of(*rows))} == {"ok"}


def test_rungs_of_other_conditions_are_not_a_ladder():
    rows = [
        observed("decode_tok_s", 17.0, "deep", streams=1.0, depth=100_000.0),
        observed("decode_tok_s", 208.0, "shallow", streams=8.0, depth=0.0),
    ]
    assert notices(ID, claims_of(*rows)) == []


def test_repetitions_that_overlap_are_not_called_faster():
    noisy = {1.0: {"decode_tok_s": [17.0, 25.0, 12.0]}, 2.0: {"decode_tok_s": [40.0, 41.0, 39.0]}}
    assert [notice.outcome for notice in notices(ID, claims_of(*measured(noisy)))] == ["ok"]


def test_a_step_alone_is_enough():
    cells = {1.0: {"step_ms": [59.0, 59.2, 58.9]}, 8.0: {"step_ms": [38.0, 38.2, 37.9]}}
    (notice,) = notices(ID, claims_of(*measured(cells)))
    assert notice.outcome == "warn"
    assert "36% less time" in notice.text
