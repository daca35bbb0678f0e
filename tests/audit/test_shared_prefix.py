"""Shared prefix: a second prompt that began with the first, and prompts that had nothing in common."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import claims_of, notices, observed
from make_run import run_of

ID = "shared-prefix"


def prompts(root: Path, *requests: dict[str, Any], rate: float = 4760.0, **cell: Any) -> list[Any]:
    """What is said of a cell that times prompts."""
    metrics = {"prefill_tok_s": [rate] * len(requests)}
    asked = [{"block": block, "submit_s": float(block), **one} for block, one in enumerate(requests)]
    return notices(ID, run_of(root, [({"phase": "prefill", "streams": 1} | cell, metrics, asked)]))


@pytest.mark.quick
def test_sixty_thousand_tokens_that_began_with_thirty_two_thousand_are_not_a_prefill_of_sixty(tmp_path: Path):
    # NIK: one seed at every depth, so 28,162 of the last prompt's 60,355 tokens were new, and 4,760 tok/s are 2,221
    (notice,) = prompts(tmp_path, {"prompt_tokens": 60_355, "cached_tokens": 60_355 - 28_162})
    assert notice.outcome == "fail"
    assert pytest.approx(2221, abs=1) == 4760 * 28_162 / 60_355
    assert "= 2,221 tok/s" in notice.arithmetic[1]


def test_prompts_of_which_nothing_was_cached_are_fine(tmp_path: Path):
    # llama-server on another prompt each time
    (notice,) = prompts(tmp_path, *[{"prompt_tokens": 4096, "server": {"cache_n": 0.0}}] * 3)
    assert notice.outcome == "ok"


def test_a_cell_that_is_declared_warm_may_be_warm(tmp_path: Path):
    # NIK: 58,350 tok/s with a shared prefix, and said so
    (notice,) = prompts(tmp_path, {"prompt_tokens": 55_254, "cached_tokens": 51_000, "cache": "warm"}, rate=58_350)
    assert notice.outcome == "ok"


def test_a_cell_may_say_so_by_its_own_knob(tmp_path: Path):
    (notice,) = prompts(tmp_path, {"prompt_tokens": 55_254, "cached_tokens": 51_000}, rate=58_350, cache="warm")
    assert notice.outcome == "ok"


def test_one_percent_is_a_template(tmp_path: Path):
    (notice,) = prompts(tmp_path, {"prompt_tokens": 4096, "cached_tokens": 40})
    assert notice.outcome == "ok"


def test_a_prompt_sent_again_without_a_counter_warns(tmp_path: Path):
    # NIK: 39,420 tok/s from a repeated prompt
    (notice,) = prompts(tmp_path, *[{"prompt_tokens": 14_000, "prompt_sha256": "ab" * 32}] * 2, rate=39_420)
    assert notice.outcome == "warn"
    assert "14,000 of 28,000 prompt tokens had been sent before = 50%" in notice.arithmetic


def test_growing_prompts_are_seen_by_their_leading_blocks(tmp_path: Path):
    # NIK: 55,081 tok/s from prompts that each began with the one before
    first = {"prompt_tokens": 2000, "prompt_sha256": "a", "block_hashes": ["1", "2"]}
    second = {"prompt_tokens": 4000, "prompt_sha256": "b", "block_hashes": ["1", "2", "3", "4"]}
    (notice,) = prompts(tmp_path, first, second)
    assert notice.outcome == "warn"
    assert "2,000 of 6,000" in notice.arithmetic[0]


def test_other_prompts_without_a_counter_cannot_be_told(tmp_path: Path):
    (notice,) = prompts(
        tmp_path, {"prompt_tokens": 512, "prompt_sha256": "a"}, {"prompt_tokens": 512, "prompt_sha256": "b"}
    )
    assert notice.outcome == "not assessable"


def test_a_published_rate_that_does_not_say_is_not_judged():
    unsaid, cold = observed("prefill_tok_s", 222_971, "unsaid"), observed("prefill_tok_s", 3860, "cold", cache="cold")
    assert [(n.subject, n.outcome) for n in notices(ID, claims_of(unsaid, cold))] == [("unsaid", "not assessable")]
