"""Features that were consulted: a drafter that was off for a whole session, n-grams that found nothing in prose."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import claims_of, notices, observed
from make_run import run_of

ID = "feature-consulted"


def session(root: Path, rate: float, **counters: Any) -> list[Any]:
    """What is said of a session that is said to draft three tokens, 512 tokens a request."""
    request = {"prompt_tokens": 100, "completion_tokens": 512, "server": counters}
    cell = ({"phase": "decode", "streams": 1}, {"decode_tok_s": [rate] * 3}, [request | {"block": b} for b in range(3)])
    return notices(ID, run_of(root, [cell], parameters={"draft": 3}))


@pytest.mark.quick
def test_a_drafter_that_was_off_for_a_whole_session_fails(tmp_path: Path):
    # NIK: the server's default is to draft nothing: 21.8 tok/s were taken for those of MTP, which gives 41 to 42
    (notice,) = session(tmp_path, 21.8, draft_n=0, draft_n_accepted=0)
    assert notice.outcome == "fail"
    assert notice.arithmetic == ("draft=3; server.draft_n: 0 in all",)


def test_a_drafter_that_was_consulted_is_fine(tmp_path: Path):
    (notice,) = session(tmp_path, 41.5, draft_n=430, draft_n_accepted=337)
    assert notice.outcome == "ok"
    assert notice.arithmetic == ("draft=3; server.draft_n: 1,290 in all",)


def test_n_grams_that_found_nothing_only_forbid_to_claim_an_effect(tmp_path: Path):
    # NIK: prose at 34.9 tok/s with n-grams, 34.8 without
    (notice,) = session(tmp_path, 34.9, draft_n=96, draft_n_accepted=0)
    assert notice.outcome == "ok"
    assert "no effect of it should be claimed" in notice.text


def test_without_a_counter_it_cannot_be_told(tmp_path: Path):
    (notice,) = session(tmp_path, 41.5)
    assert notice.outcome == "not assessable"


@pytest.mark.parametrize("draft", ["none", 0, "off", None, [0, 3]])
def test_what_is_off_or_varied_needs_no_counter(tmp_path: Path, draft: Any):
    cell = ({"phase": "decode", "streams": 1}, {"decode_tok_s": [34.8]}, [])
    assert notices(ID, run_of(tmp_path, [cell], parameters={"draft": draft})) == []


def test_published_rows_tell_by_their_acceptance():
    settings = {"draft": "mtp3"}
    rows = [
        observed("decode_tok_s", 88.0, settings=settings),
        observed("acceptance", 0.846, settings=settings, phase="decode"),
    ]
    assert {notice.outcome for notice in notices(ID, claims_of(*rows))} == {"ok"}


def test_a_prompt_is_read_without_drafts_and_many_cells_are_one_notice(tmp_path: Path):
    counters = [{"prompt_tokens": 512, "server": {"draft_n": 0, "draft_n_accepted": 0}}]
    cells = [({"phase": "prefill", "streams": 1}, {"prefill_tok_s": [4000.0]}, counters)]
    cells += [({"phase": "decode", "streams": n}, {"decode_tok_s": [21.8 * n]}, counters * n) for n in (1, 2, 4)]
    (notice,) = notices(ID, run_of(tmp_path, cells, parameters={"draft": 3}))
    assert notice.about == tuple(f"phase=decode, streams={n}" for n in (1, 2, 4))
    assert notice.text.endswith("nor at 2 more cells")
