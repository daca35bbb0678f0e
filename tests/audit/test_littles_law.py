"""Little's law: SGLang's table breaks it by 2.4 to 2.8, a ladder whose step time is its own does not."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import claims_of, measured, notices, observed
from make_run import run_of

ID = "littles-law"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("streams", "rate", "tpot_ms", "needs"), [(1, 44.3, 62.9, 2.8), (4, 134.6, 70, 9.4), (8, 234.2, 85.8, 20)]
)
def test_a_rate_and_a_time_that_need_more_streams_than_there_were_cannot_both_be(
    streams: int, rate: float, tpot_ms: float, needs: float
):
    rows = [
        observed("decode_tok_s", rate, "rate", streams=float(streams)),
        observed("tpot_s", tpot_ms / 1e3, "time", streams=float(streams)),
    ]
    (notice,) = notices(ID, claims_of(*rows))
    assert rate * tpot_ms / 1e3 == pytest.approx(needs, rel=0.02)
    assert notice.outcome == "fail"
    assert set(notice.about) == {"rate", "time"}
    assert " tok/s × " in notice.arithmetic[0]


def test_an_honest_time_per_token_agrees():
    # 14B: 30.18 tok/s of 4 streams, each token 0.1325 s: 4.0 streams
    rows = [observed("decode_tok_s", 30.18, "rate", streams=4.0), observed("tpot_s", 0.1325, "time", streams=4.0)]
    (notice,) = notices(ID, claims_of(*rows))
    assert notice.outcome == "ok"


def test_a_mean_over_another_window_only_warns():
    rows = [observed("decode_tok_s", 100.0, "rate", streams=4.0), observed("tpot_s", 0.048, "time", streams=4.0)]
    assert [notice.outcome for notice in notices(ID, claims_of(*rows))] == ["warn"]


def test_a_rate_multiplied_by_its_batch_does_not_agree_with_its_own_steps():
    honest = {"decode_tok_s": [800.0, 808.0, 792.0], "step_ms": [10.0, 9.9, 10.1]}
    planted = {"decode_tok_s": [1000.0, 1010.0, 990.0], "step_ms": [10.0, 9.9, 10.1]}
    assert [n.outcome for n in notices(ID, claims_of(*measured({8.0: honest})))] == ["ok"]
    assert [n.outcome for n in notices(ID, claims_of(*measured({8.0: planted})))] == ["fail"]


def test_speculation_counts_its_tokens_and_without_them_nothing_is_said():
    # BLU: 88 tok/s at 40.2 ms a step: 3.54 tokens a step, of 4 at the most
    step = {"decode_tok_s": [88.0], "step_ms": [40.2]}
    for tokens, outcome in ((4.0, "ok"), (1.0, "fail"), (None, "not assessable")):
        cells = measured({1.0: step}, tokens_per_pass_max=tokens)
        assert [notice.outcome for notice in notices(ID, claims_of(*cells))] == [outcome]


def test_rows_of_other_conditions_are_not_put_together():
    rows = [
        observed("decode_tok_s", 134.6, "rate", streams=4.0),
        observed("tpot_s", 0.0629, "time", streams=1.0),
        observed("tpot_s", 0.7, "elsewhere", streams=4.0, depth=60_000.0),
    ]
    assert notices(ID, claims_of(*rows)) == []


def test_the_median_of_gaps_is_not_held_beside_a_mean_and_alone_it_is():
    """Three gaps of 1.2 ms and one of 0.4 ms: 1,000 tok/s at a mean of 1 ms and a median of 1.2 ms."""
    gaps = [observed("decode_tok_s", 1000.0, "rate", streams=1.0), observed("itl_s", 1.2e-3, "gaps", streams=1.0)]
    assert [notice.outcome for notice in notices(ID, claims_of(*gaps))] == ["warn"]
    mean = observed("tpot_s", 1e-3, "mean", streams=1.0)
    assert [notice.outcome for notice in notices(ID, claims_of(*gaps, mean))] == ["ok"]


def waited(block: int, inflated: float = 1.0) -> tuple[float, float, list[dict[str, Any]]]:
    """(decode_tok_s, tpot_s, rows) of two requests whose prompts take 1 s each, one after the other, then ten steps of
    0.1 s: 20 tok/s while both decode, and the first waits 1 s behind its first token."""
    gaps = ([1.1, *[0.1] * 9], [0.1] * 10)
    rows = [
        {"block": block, "submit_s": 0.0, "first_token_s": 1.0 + i, "last_token_s": 3.0, "completion_tokens": 11, "gaps_s": each}
        for i, each in enumerate(gaps)
    ]  # fmt: skip
    return 20.0 * inflated, (0.2 + 0.1) / 2, rows


@pytest.mark.parametrize(("inflated", "outcome"), [(1.0, "ok"), (1.04, "ok"), (1.1, "warn"), (2.0, "fail")])
def test_a_rate_while_all_decode_is_held_against_the_time_of_a_token_then(
    tmp_path: Path, inflated: float, outcome: str
):
    """By the mean time of whole requests, which holds the others' prompts, the honest rate would need 3 streams of 2."""
    blocks = [waited(block, inflated) for block in range(3)]
    cell = {"phase": "decode", "streams": 2}
    metrics = {"decode_tok_s": [each[0] for each in blocks], "tpot_s": [each[1] for each in blocks]}
    found = notices(ID, run_of(tmp_path, [(cell, metrics, [row for each in blocks for row in each[2]])]))
    assert pytest.approx(3) == 20.0 * 0.15
    assert [notice.outcome for notice in found] == [outcome]


def test_without_the_times_of_its_tokens_a_run_is_held_to_the_mean(tmp_path: Path):
    rate, time, rows = waited(0)
    cell, short = {"phase": "decode", "streams": 2}, [{**row, "gaps_s": []} for row in rows]
    found = notices(ID, run_of(tmp_path, [(cell, {"decode_tok_s": [rate], "tpot_s": [time - 0.01]}, short)]))
    assert [notice.outcome for notice in found] == ["warn"]
