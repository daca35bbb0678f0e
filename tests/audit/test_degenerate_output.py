"""Degenerate output: loops of filler that a drafter accepts at 88 to 100 %, and text, code and copies that are fine."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_evidence import notices
from make_run import run_of

from labkit.measure import statistics

ID = "degenerate-output"
PROSE = inspect.cleandoc("""
    A notebook for people who run language models on their own card and want to know what is true about it. Around the
    engine it puts the discipline of a laboratory: an experiment states its belief and its decision rule before it runs,
    every number carries its conditions and its distance from the physical limit, and the outcome is appended, dated, to
    a ledger. The audit stands between a measurement and that ledger, and looks for the known ways of fooling oneself. A
    claim that the data cannot carry never gets in; one that they can carry is recomputed whenever somebody asks for it.
""")
LOOP = "The sea was calm. " + "and the light was on the water " * 40


def drafted(root: Path, *texts: str, content: str = "", acceptance: float = 0.93, **request: Any) -> Any:
    """The notice on a cell that drafts and generated these texts."""
    cell = {"phase": "decode", "draft": 3} | ({"content": content} if content else {})
    asked = [{"block": block, "text": text, **request} for block, text in enumerate(texts)]
    metrics = {"decode_tok_s": [105.0] * 3, "acceptance": [acceptance] * 3}
    (notice,) = notices(ID, run_of(root, [(cell, metrics, asked)]))
    return notice


@pytest.mark.quick
def test_a_loop_of_filler_behind_an_acceptance_warns(tmp_path: Path):
    # NIK: random filler with the end of text ignored loops; acceptance 88 to 100 %, 105 tok/s where real text has 58 to 87
    notice = drafted(tmp_path, LOOP, LOOP, LOOP, content="prose")
    assert notice.outcome == "warn"
    assert "acceptance 0.93 is not that of prose" in notice.text
    words, looped = 5 + 40 * 7, 40 * 7
    assert f"in one loop to its end: {looped / words:.0%}, of 50%" in notice.arithmetic


def test_prose_and_code_are_not_degenerate(tmp_path: Path):
    assert drafted(tmp_path / "prose", PROSE, content="prose", acceptance=0.426).outcome == "ok"
    code = inspect.getsource(statistics.two_groups) + inspect.getsource(statistics.warmup_length)
    assert drafted(tmp_path / "code", code, content="code", acceptance=0.846).outcome == "ok"


def test_rows_of_json_repeat_their_keys_and_are_json(tmp_path: Path):
    rows = ",\n".join(f'{{"name": "{name}", "value": {at * at}}}' for at, name in enumerate(PROSE.split()))
    assert drafted(tmp_path, rows, content="json", acceptance=0.961).outcome == "ok"


def test_equal_texts_of_equal_greedy_prompts_are_no_degeneration(tmp_path: Path):
    # NIK: identical prompts that converged were once read as such
    assert drafted(tmp_path, *[PROSE] * 8).outcome == "ok"


def test_one_loop_of_many_texts_is_sampling(tmp_path: Path):
    assert drafted(tmp_path, LOOP, *[PROSE] * 24).outcome == "ok"


def test_token_ids_do_as_well_as_words(tmp_path: Path):
    ids = np.random.default_rng(0).integers(0, 32_000, 512).tolist()
    assert drafted(tmp_path / "text", "", token_ids=ids).outcome == "ok"
    assert drafted(tmp_path / "loop", "", token_ids=[5, 6, 7, 8] * 128).outcome == "warn"


def test_without_texts_it_cannot_be_told(tmp_path: Path):
    assert drafted(tmp_path / "none", "").outcome == "not assessable"
    assert drafted(tmp_path / "short", "Yes, it is.").outcome == "not assessable"


def test_a_rate_without_speculation_needs_no_texts(tmp_path: Path):
    plain = ({"phase": "decode", "streams": 1}, {"decode_tok_s": [34.8]}, [{"text": LOOP}])
    assert notices(ID, run_of(tmp_path, [plain])) == []
