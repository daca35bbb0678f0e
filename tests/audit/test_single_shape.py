"""Shapes that were not measured: a drafter settled on one stream, and a ladder that says what it covers."""

from pathlib import Path

import pytest
from make_evidence import claims_of, notices, observed
from make_run import plan_of, run_of

from labkit.lab.conditions import beyond
from labkit.lab.coverage import coverage_of
from labkit.lab.scope import scope_of

ID = "single-shape"
ENDS = ({"phase": "decode", "streams": 1, "draft": 4}, {"phase": "decode", "streams": 1, "draft": 0})
REQUEST = {"prompt_tokens": 71, "completion_tokens": 800, "prompt_sha256": "ab" * 32}


@pytest.mark.quick
def test_a_drafter_settled_on_one_stream_and_one_prompt_says_nothing_of_two(tmp_path: Path):
    # NIK: 79.1 against 34.7 tok/s alone, 59.0 against 62.2 at two streams: the choice was reversed two weeks later
    cells = [(ENDS[0], {"decode_tok_s": [79.1] * 3}, [REQUEST]), (ENDS[1], {"decode_tok_s": [34.7] * 3}, [REQUEST])]
    (notice,) = notices(ID, run_of(tmp_path, cells, plan=plan_of("draft", *ENDS)))
    assert notice.outcome == "ok"
    assert "Other numbers of streams than 1" in notice.arithmetic
    assert "Contents unlike the one prompt that all had: code, prose and repetition can differ" in notice.arithmetic
    assert any(line.startswith("Anything about other cards than AMD Radeon AI PRO R9700") for line in notice.arithmetic)


def test_it_says_what_an_entry_of_the_same_run_says(tmp_path: Path):
    cells = [(end, {"decode_tok_s": [79.1] * 3}, [REQUEST]) for end in ENDS]
    evidence = run_of(tmp_path, cells, plan=plan_of("draft", *ENDS))
    assert evidence.record is not None
    assert evidence.plan is not None
    assert evidence.folder is not None

    class Entry:
        plan = evidence.plan
        coverage = coverage_of(evidence.record, evidence.plan, evidence.folder)
        scope = scope_of(evidence.record, evidence.plan)

    (notice,) = notices(ID, evidence)
    assert list(notice.arithmetic) == list(beyond(Entry()))


def test_a_ladder_reaches_its_rungs(tmp_path: Path):
    cells = [({"phase": "decode", "streams": n}, {"decode_tok_s": [20.8 * n]}, [REQUEST] * n) for n in (1, 4, 8)]
    (notice,) = notices(ID, run_of(tmp_path, cells))
    assert "Other numbers of streams than 1, 4 and 8" in notice.arithmetic
    assert "Contexts deeper than 871 tokens" in notice.arithmetic


def test_a_published_sweep_is_of_its_rows_and_nothing_more():
    rows = [observed("decode_tok_s", rate, depth=depth, streams=1.0) for depth, rate in ((2400, 34.6), (184_200, 24.4))]
    (notice,) = notices(ID, claims_of(*rows))
    assert notice.outcome == "ok"
    expected = ("Other numbers of streams than 1", "Contexts deeper than 184,200 tokens")
    assert notice.arithmetic == ("Anything about other cards than R9700", *expected)


def test_what_tells_nothing_is_not_judged():
    row = observed("device_bytes", 1e9, device_name=None)
    assert [notice.outcome for notice in notices(ID, claims_of(row))] == ["not assessable"]
