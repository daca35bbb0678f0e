"""More changed than declared: a peak at 330 W against one at 250 W with other streams, and bundles that are named."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import claims_of, notices, observed
from make_run import plan_of, run_of

from labkit.lab.plan import Rule

ID = "undeclared-changes"


def peaks(note: str, streams: tuple[float, float] = (64.0, 24.0)) -> list[Any]:
    """What is said of NIK's two peaks, 331.4 tok/s at 250 W and 385.8 at 330 W, with a text that compares them."""
    known = {"source": "NIK-D13", "date": "2026-09-12", "model": "Qwen3.8-27B-PARO"}
    rows = [
        observed("decode_tok_s", 331.4, "at 250 W", streams=streams[0], power_cap_w=250.0, **known),
        observed("decode_tok_s", 385.8, "at 330 W", streams=streams[1], power_cap_w=330.0, text=note, **known),
    ]
    return notices(ID, claims_of(*rows))


@pytest.mark.quick
def test_a_gain_by_power_that_is_one_by_other_streams_too_warns():
    (notice,) = peaks("331.4 → 385.8 tok/s (+16 %) from 250 to 330 W")
    assert notice.outcome == "warn"
    assert notice.arithmetic == ("streams: 64 → 24", "declared: power_cap_w; changed: streams, power_cap_w")


def test_the_same_step_at_equal_streams_is_of_power_alone():
    found = peaks("331.4 → 385.8 tok/s (+16 %) from 250 to 330 W", (24.0, 24.0))
    assert [notice.outcome for notice in found] == ["ok"]


def test_a_bundle_that_the_text_names_is_allowed_and_bounds_the_claim():
    (notice,) = peaks("331.4 → 385.8 tok/s from 250 W and 64 streams to 330 W and 24 streams")
    assert notice.outcome == "ok"
    assert "of streams and power_cap_w together, and of none alone" in notice.text


def servers(root: Path, knob: str | tuple[str, ...]) -> list[Any]:
    """What is said of NIK's repaired server, 10.3 → 32.0 tok/s: attention, prefix cache and graphs changed at once."""
    ends = [
        {"phase": "decode", "runtime": "vllm", "attention": "dense", "graphs": "off"},
        {"phase": "decode", "runtime": "vllm", "attention": "triton", "graphs": "1,2,4,8"},
    ]
    cells = [(end, {"decode_tok_s": [rate] * 3}, []) for end, rate in zip(ends, (10.3, 32.0), strict=True)]
    return notices(ID, run_of(root, cells, plan=plan_of(knob, ends[1], ends[0])))


def test_a_gain_put_to_the_graphs_after_another_change_warns(tmp_path: Path):
    (notice,) = servers(tmp_path, "graphs")
    assert notice.outcome == "warn"
    assert "attention: dense → triton" in notice.arithmetic


def test_a_plan_that_names_both_is_of_both(tmp_path: Path):
    (notice,) = servers(tmp_path, ("attention", "graphs"))
    assert notice.outcome == "ok"
    assert "together, and of none alone" in notice.text


def test_a_memory_clock_that_is_not_the_same_is_a_change(tmp_path: Path):
    ends = [{"phase": "decode", "kv": kv} for kv in ("f16", "f32")]
    clocks = (1258.0, 1359.0)  # the card's own, and the one that was called reduced
    cells = [
        (end, {"decode_tok_s": [34.6] * 3, "memory_mhz": [mhz] * 3}, []) for end, mhz in zip(ends, clocks, strict=True)
    ]
    (notice,) = notices(ID, run_of(tmp_path, cells, plan=plan_of("kv", *ends)))
    assert notice.outcome == "warn"
    assert "memory_mhz: 1,359 → 1,258" in notice.arithmetic


@pytest.mark.parametrize(("declared", "outcomes"), [(True, {"ok"}), (False, {"ok", "warn"})])
def test_what_the_cells_of_the_negative_control_differ_in_is_declared_by_it(
    tmp_path: Path, declared: bool, outcomes: set[str]
):
    few, many = ({"phase": "decode", "streams": streams} for streams in (1, 8))
    again, narrow = few | {"again": True}, few | {"kv": "f32"}
    same = Rule(metric="decode_tok_s", cell=again if declared else narrow, against=few, comparison="same", margin=0.1)
    plan = plan_of("streams", many, few).model_copy(update={"cells": (few, many, again, narrow)})
    plan = plan.model_copy(update={"negative_control": same, "rule": plan.rule.model_copy(update={"cell": many})})
    if not declared:  # the same pair again, named by the rule that is to find something
        plan = plan.model_copy(update={"rule": plan.rule.model_copy(update={"cell": again})})
    cells = [(cell, {"decode_tok_s": [20.0] * 3}, []) for cell in (few, many, again, narrow)]
    found = notices(ID, run_of(tmp_path, cells, plan=plan))
    assert {notice.outcome for notice in found} == outcomes
    assert not any("kv" in notice.text for notice in found)


def test_rows_that_no_text_compares_are_not_compared():
    assert peaks("") == []
