"""Nominal against actual lengths: depths that were 1.7 times their label, and labels that are right."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import notices
from make_run import plan_of, run_of

ID = "nominal-lengths"


def at_depth(root: Path, nominal: int, prompt: int, out: int = 256) -> list[Any]:
    """What is said of a cell that names its depth."""
    request = {"prompt_tokens": prompt, "completion_tokens": out}
    cell = {"phase": "decode", "streams": 1, "depth": nominal}
    return [n for n in notices(ID, run_of(root, [(cell, {"decode_tok_s": [19.8]}, [request])]))]


@pytest.mark.quick
def test_a_depth_that_was_sized_by_a_wrong_sample_warns(tmp_path: Path):
    # NIK: a sample of 107 words was taken for 200, so 60,000 tokens were to be 200 / 107 times as many; counted: 102,000
    assert pytest.approx(1.87, abs=0.01) == 200 / 107
    (notice,) = at_depth(tmp_path, 60_000, 102_000)
    assert notice.outcome == "warn"
    assert "60,000 tokens named, 102,000 to 102,256 counted: 42,000 apart = 70.0%" in notice.arithmetic[0]


def test_a_label_that_was_rounded_is_right(tmp_path: Path):
    (notice,) = at_depth(tmp_path, 38_700, 38_724)
    assert notice.outcome == "ok"


def compared(root: Path, first: dict[str, int], second: dict[str, int]) -> list[Any]:
    """What is said of two engines whose requests have these lengths."""
    ends = [{"phase": "decode", "runtime": name, "streams": 1} for name in ("vllm", "llama.cpp")]
    cells = [(ends[0], {"decode_tok_s": [32.0] * 3}, [first]), (ends[1], {"decode_tok_s": [26.0] * 3}, [second])]
    return notices(ID, run_of(root, cells, plan=plan_of("runtime", *ends)))


def test_engines_compared_at_the_same_label_and_other_lengths_warn(tmp_path: Path):
    # NIK: "32k" was 54,000 tokens for one engine and 47,600 for the other
    lengths = [{"prompt_tokens": prompt, "completion_tokens": 256} for prompt in (54_000, 47_600)]
    (notice,) = compared(tmp_path, *lengths)
    assert notice.outcome == "warn"
    assert notice.arithmetic[1] == "6,400 apart = 13.4%, of 952 at the most"


def test_outputs_of_their_natural_lengths_are_not_compared_alike(tmp_path: Path):
    # NIK: 90 to 175 tokens of one model against 460 to 720 of another
    (notice,) = compared(tmp_path, {"completion_tokens": 132}, {"completion_tokens": 590})
    assert notice.outcome == "warn"
    assert "outputs of 132 and 590 tokens" in notice.text


def test_forced_lengths_are_alike_and_a_few_tokens_are_nothing(tmp_path: Path):
    lengths = [{"prompt_tokens": 2400, "completion_tokens": out} for out in (768, 771)]
    assert [n.outcome for n in compared(tmp_path, *lengths)] == ["ok"]


def test_a_varied_prompt_may_differ(tmp_path: Path):
    ends = [{"phase": "prefill", "prompt": n, "streams": 1} for n in (4096, 512)]
    cells = [(one, {"prefill_tok_s": [4000.0] * 3}, [{"prompt_tokens": one["prompt"]}]) for one in ends]
    found = notices(ID, run_of(tmp_path, cells, plan=plan_of("prompt", *ends, "prefill_tok_s")))
    assert {notice.outcome for notice in found} == {"ok"}


def test_without_counts_of_tokens_nothing_is_said(tmp_path: Path):
    assert [notice.outcome for notice in compared(tmp_path, {}, {})] == ["not assessable"]
