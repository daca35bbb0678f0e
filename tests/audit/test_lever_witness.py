"""Levers that moved nothing: a micro-batch at a prompt that fits into it, a rule for more columns than there were."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import notices
from make_run import plan_of, run_of

from labkit.lab.plan import Rule

ID = "lever-witness"


def micro_batches(root: Path, prompt: int, rates: tuple[float, float], **more: Any) -> list[Any]:
    """What is said of ub 512 against 2048 on HIP, as DIS measured them; a step reads `ub` rows of the prompt."""
    cells = [{"phase": "prefill", "prompt": prompt, "ub": ub} for ub in (512, 2048)]
    rows = [
        (cell, {"prefill_tok_s": [rate] * 3, "submits": [-(-prompt // cell["ub"])] * 3}, [{"prompt_tokens": prompt}])
        for cell, rate in zip(cells, rates, strict=True)
    ]
    return notices(ID, run_of(root, rows, plan=plan_of("ub", cells[1], cells[0], "prefill_tok_s", **more)))


@pytest.mark.quick
def test_a_micro_batch_does_nothing_at_a_prompt_that_fits_into_it(tmp_path: Path):
    # eleven parts were measured at 512 tokens, where ub 512 and 2048 are one step each
    (notice,) = micro_batches(tmp_path, 512, (3421.0, 3421.0))
    assert notice.outcome == "fail"
    assert notice.arithmetic[:2] == (
        "phase=prefill, prompt=512, ub=2048: submits 1",
        "phase=prefill, prompt=512, ub=512: submits 1",
    )
    assert "a prompt of 512 tokens is read in one step" in notice.arithmetic[2]


def test_it_acts_at_2048_tokens_which_are_four_steps_or_one(tmp_path: Path):
    (notice,) = micro_batches(tmp_path, 2048, (3391.0, 4635.0))
    assert notice.outcome == "ok"


def test_a_negative_control_must_not_move(tmp_path: Path):
    ends = [{"phase": "prefill", "prompt": 512, "ub": ub} for ub in (512, 2048)]
    control = Rule(metric="prefill_tok_s", cell=ends[1], against=ends[0], comparison="same", margin=0.02)
    more = {
        "negative_control": control,
        "rule": Rule(metric="prefill_tok_s", cell=ends[1], comparison=">=", threshold=1),
    }
    cells = [(one, {"prefill_tok_s": [3421.0] * 3, "submits": [1.0] * 3}, []) for one in ends]
    plan = plan_of("ub", ends[1], ends[0], "prefill_tok_s").model_copy(update=more)
    assert notices(ID, run_of(tmp_path, cells, plan=plan)) == []


def rows_rule(root: Path, columns: int, programs: dict[str, str]) -> list[Any]:
    """What is said of the rows of a mat-vec's group, 2 against 4; it acts from five columns on."""
    cells = [{"phase": "decode", "streams": columns, "ROWS": rows} for rows in (2, 4)]
    asked = [(cell, {"step_ms": [ms, ms, ms]}, []) for cell, ms in zip(cells, (33.46, 33.42), strict=True)]
    return notices(
        ID, run_of(root, asked, plan=plan_of("ROWS", cells[1], cells[0], "step_ms"), program_fingerprints=programs)
    )


def test_a_rule_that_starts_at_five_columns_does_nothing_at_the_four_that_were_verified(tmp_path: Path):
    # BLU: 33.42 against 33.46 ms a step with k = 3, that is four columns
    same = {"verify ROWS=2": "2328485d9dbc5a82", "verify ROWS=4": "2328485d9dbc5a82"}
    (notice,) = rows_rule(tmp_path, 4, same)
    assert notice.outcome == "fail"
    assert "did not move" in notice.text


def test_at_eight_columns_it_is_another_program(tmp_path: Path):
    other = {"verify ROWS=2": "2328485d9dbc5a82", "verify ROWS=4": "88c62b6c9af3a894"}
    assert [notice.outcome for notice in rows_rule(tmp_path, 8, other)] == ["ok"]


def test_without_fingerprints_at_each_value_nothing_is_said(tmp_path: Path):
    (notice,) = rows_rule(tmp_path, 8, {"verify": "2328485d9dbc5a82"})
    assert notice.outcome == "not assessable"
    assert "fingerprints" in notice.missing[0]


@pytest.mark.parametrize(("slots", "outcome"), [((1, 8), "ok"), ((1, 1), "fail"), ((0, 0), "not assessable")])
def test_streams_are_witnessed_by_the_slots_in_use(tmp_path: Path, slots: tuple[int, int], outcome: str):
    # NIK: 16 streams on one slot were 16 requests after each other
    cells = [{"phase": "decode", "streams": streams} for streams in (1, 16)]
    rows = [
        (cell, {"decode_tok_s": [16.8] * 3}, [{"slot": slot % used} for slot in range(cell["streams"] if used else 0)])
        for cell, used in zip(cells, slots, strict=True)
    ]
    (notice,) = notices(ID, run_of(tmp_path, rows, plan=plan_of("streams", cells[1], cells[0])))
    assert notice.outcome == outcome


@pytest.mark.parametrize(
    ("knob", "told", "outcome"),
    [
        ("kv", ("f16", "q8_0"), "ok"),
        ("kv", ("f16", "f16"), "fail"),  # the flag was passed, and the process took it for nothing
        ("kv", ("f16", None), "not assessable"),
        ("context", (256, 512), "ok"),
        ("context", (512, 512), "fail"),
        ("ub", (512, None), "not assessable"),
        ("drafts", (0, 4), "ok"),
    ],
)
def test_of_another_engine_the_witness_is_what_its_process_reports(
    tmp_path: Path, knob: str, told: tuple[Any, Any], outcome: str
):
    values = {"kv": ("f16", "q8_0"), "context": (256, 512), "ub": (512, 1024), "drafts": (0, 4)}[knob]
    name = "draft" if knob == "drafts" else knob
    cells = [{"phase": "prefill", "runtime": "llama-server", "prompt": 4096, knob: value} for value in values]
    rows = [
        (cell, {"prefill_tok_s": [900.0] * 3}, [{"settings": {"slots": 1} | ({} if value is None else {name: value})}])
        for cell, value in zip(cells, told, strict=True)
    ]
    plan = plan_of(knob, cells[1], cells[0], "prefill_tok_s")
    (notice,) = notices(ID, run_of(tmp_path, rows, plan=plan))
    assert notice.outcome == outcome
    if outcome == "ok":
        assert "requests.jsonl: settings, as their process reports them" in notice.text
    if outcome == "fail":
        assert "as its process reports it" in notice.text
