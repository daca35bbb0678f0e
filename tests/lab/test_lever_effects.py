"""Effects of levers: the ratio with its interval, their rows in LEVERS.md, and what becomes of them when data change."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_runs import DEVICE, make_lab, make_plan, make_run
from scipy import stats

from labkit.lab import ledger
from labkit.lab.lever_effect import LeverEffect, effect_line, outcome_of
from labkit.lab.lever_ratio import unpaired_ratio
from labkit.lab.plan import Rule
from labkit.lab.recheck import verify
from labkit.lab.run_effects import one_knob_away
from labkit.lab.session_spread import Spread

WIDTHS = [{"width": width, "kv": kv} for kv in ("f16", "f32") for width in (1, 4, 8)]
SPEED = {1: 20.0, 4: 70.0, 8: 100.0}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "lab")


def grid_plan(**fields: Any) -> Any:
    """Three widths by two types of the cache; the rule compares eight with one."""
    rule = {"cell": WIDTHS[2], "against": WIDTHS[0]}
    return make_plan(rule=rule, knob=("width", "kv"), cells=WIDTHS, control=WIDTHS[0], **fields)


def grid_samples(pairs: int = 10, f32: float = 0.9) -> list[tuple[int, dict[str, Any], float]]:
    """Block b is b % slower in every cell; f32 has a share of f16's speed; a little noise, never the same twice."""
    noise = np.random.default_rng(7)
    return [
        (
            block,
            cell,
            SPEED[cell["width"]] * (f32 if cell["kv"] == "f32" else 1.0) * 0.99**block * noise.lognormal(0, 0.003),
        )
        for block in range(pairs)
        for cell in WIDTHS
    ]


def test_two_runs_are_as_far_apart_as_sessions_lie_whatever_their_blocks_say() -> None:
    a, b = [10.0, 11.0, 9.5, 10.4], [12.0, 13.1, 12.5]
    alone = stats.ttest_ind(np.log(b), np.log(a), equal_var=False).confidence_interval(0.95)
    found = unpaired_ratio(a, b, 0.95, Spread(0.02, 10_000, 0, "assumed"))
    assert found.ratio == pytest.approx(math.exp(np.log(b).mean() - np.log(a).mean()))
    assert found.low is not None
    assert found.high is not None
    half, within = math.log(found.high / found.ratio), (alone.high - alone.low) / 2
    assert math.hypot(within, 1.96 * 0.02 * math.sqrt(2)) * 0.999 < half < 1.25 * within  # freedom rounded down
    assert found.blocks == (4, 3)
    equal = unpaired_ratio([2.0, 2.0], [3.0, 3.0], 0.95, Spread(0.02, 10_000, 0, "assumed"))
    assert equal[:3] == pytest.approx((1.5, 1.5 * math.exp(-0.05544), 1.5 * math.exp(0.05544)), rel=1e-4)
    assert unpaired_ratio([10.0], b, 0.95, Spread(0.02, 10_000, 0, "assumed"))[1:3] == (None, None)


@pytest.mark.parametrize(
    ("low", "high", "metric", "outcome"),
    [
        (0.99, 1.01, "decode_tok_s", "same"),
        (1.03, 1.05, "decode_tok_s", "faster"),
        (0.90, 0.95, "decode_tok_s", "slower"),
        (0.90, 0.95, "step_ms", "faster"),
        (1.03, 1.05, "step_ms", "slower"),
        (1.03, 1.05, "core_mhz", "higher"),
        (1.01, 1.05, "decode_tok_s", "undecided"),
        (0.90, 1.20, "decode_tok_s", "undecided"),
        (None, None, "decode_tok_s", "undecided"),
    ],
)
def test_an_interval_within_the_margin_is_the_same_one_beyond_it_a_difference(
    low: float | None, high: float | None, metric: str, outcome: str
) -> None:
    assert outcome_of(low, high, metric, 0.02) == outcome


def test_effects_go_from_the_control_outward_one_knob_at_a_time() -> None:
    moved = [(cell["width"], cell["kv"]) for cell, _ in one_knob_away(grid_plan())]
    assert moved == [(4, "f16"), (8, "f16"), (1, "f32")]


def test_a_run_of_several_cells_leaves_a_row_for_each_lever_and_value(lab: Path) -> None:
    folder = make_run(lab, plan=grid_plan(), samples=grid_samples())
    ledger.append(lab, folder)
    text = (lab / "LEVERS.md").read_text()
    assert "## What each knob does" in text
    assert "## What sweeps measured" in text
    rows = [line for line in text.partition("## What sweeps")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 2  # the rule's own pair stands in the first table
    by_width, by_kv = (row.split(" | ") for row in rows)
    assert by_width[:5] == ["| width", "width=1", "width=4", "kv=f16", "decode_tok_s"]
    assert by_width[5].startswith("3.5")  # 70 / 20, block by block: the drift of 10 % is not in it
    assert by_kv[:4] == ["| kv", "kv=f16", "kv=f32", "width=1"]
    assert by_kv[6] == "slower"
    assert "10 pairs of one run" in by_kv[7]
    assert f"data/runs/{folder.name}/" in by_kv[-1]
    assert "radv Mesa 25.0.7 Vulkan 1.4.305" in by_kv
    assert "tokens=24" in by_kv  # of the run's parameters: kv is a lever of this plan, and so no setting
    assert verify(lab).sound


def test_a_negative_control_stands_in_the_table_as_what_it_is(lab: Path) -> None:
    control = Rule(metric="decode_tok_s", cell=WIDTHS[3], against=WIDTHS[0], comparison="same", margin=0.02)
    ledger.append(lab, make_run(lab, plan=grid_plan(negative_control=control), samples=grid_samples(f32=1.0)))
    (row,) = [line for line in (lab / "LEVERS.md").read_text().splitlines() if line.startswith("| kv |")]
    assert "| negative control: same |" in row


def test_a_run_whose_negative_control_moved_leaves_no_rows(lab: Path) -> None:
    control = Rule(metric="decode_tok_s", cell=WIDTHS[3], against=WIDTHS[0], comparison="same", margin=0.02)
    ledger.append(lab, make_run(lab, plan=grid_plan(negative_control=control), samples=grid_samples(f32=0.8)))
    assert "What sweeps measured" not in (lab / "LEVERS.md").read_text()


def test_a_retracted_run_takes_its_rows_along(lab: Path) -> None:
    folder = make_run(lab, plan=grid_plan(), samples=grid_samples())
    ledger.append(lab, folder)
    ledger.correct(lab, folder.name, "The card was in another slot.", retracts=True)
    assert "What sweeps measured" not in (lab / "LEVERS.md").read_text()


def test_a_sample_changed_after_it_was_entered_is_found_by_verify_in_its_row(lab: Path) -> None:
    folder = make_run(lab, plan=grid_plan(), samples=grid_samples())
    ledger.append(lab, folder)
    path = folder / "measurements.csv"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '""kv"":""f32"",""width"":1}' in line)
    cells = lines[at].split(",")
    cells[-2] = "40.0"
    lines[at] = ",".join(cells)
    path.write_text("".join(lines))
    told = [str(fault) for fault in verify(lab).faults if "kv=f16 to kv=f32" in str(fault)]
    assert len(told) == 1
    assert "by its samples and 0.90" in told[0]


def swept(runs: tuple[str, str], **fields: Any) -> LeverEffect:
    """An effect between two runs, f32 against f16."""
    cell = '{"width":8}'
    known: dict[str, Any] = {
        "lever": "kv", "old": "kv=f16", "new": "kv=f32", "metric": "decode_tok_s", "cell": "width=8", "cells": (cell, cell),
        "ratio": 0.9, "low": 0.88, "high": 0.92, "blocks": (10, 10), "outcome": "slower", "margin": 0.02, "runs": runs,
        "device": DEVICE["name"], "witness": "moved", "spread": (0.02, 10_000, 0),
    }  # fmt: skip
    return LeverEffect(**known | fields)


def test_a_finished_sweep_is_entered_once_and_a_later_one_takes_its_row(lab: Path) -> None:
    assert len(ledger.enter_sweep(lab, "sweep-1", "batch-decode", [swept(("a", "b"))])) == 1
    assert ledger.enter_sweep(lab, "sweep-1", "batch-decode", [swept(("a", "b"))]) == []
    assert ledger.enter_sweep(lab, "sweep-0", "batch-decode", []) == []
    ledger.enter_sweep(lab, "sweep-2", "batch-decode", [swept(("c", "d"), ratio=0.95, unlike=("driver",))])
    rows = [line for line in (lab / "LEVERS.md").read_text().splitlines() if line.startswith("| kv |")]
    assert len(rows) == 1
    for words in (
        "0.950×",
        "10 and 10 blocks, one run each; spread of sessions 2 %, assumed; newest of 2; driver differs",
        "| moved |",
        "data/runs/d/",
    ):
        assert words in rows[0]


def test_other_settings_or_another_driver_are_a_row_of_their_own(lab: Path) -> None:
    for number, more in enumerate(
        ({}, {"driver": "Mesa 26"}, {"settings": {"tokens": 8}}, {"settings": {"tokens": 8}})
    ):
        ledger.enter_sweep(lab, f"sweep-{number}", "batch-decode", [swept(("a", "b"), **more)])
    rows = [line for line in (lab / "LEVERS.md").read_text().splitlines() if line.startswith("| kv |")]
    assert len(rows) == 3
    assert [("Mesa 26" in row, "tokens=8" in row) for row in rows] == [(False, True), (True, False), (False, False)]


def test_no_effect_of_a_sweep_counts_whose_negative_control_moved(lab: Path) -> None:
    moved = swept(
        ("a", "c"), lever="seed", old="seed=0", new="seed=1", ratio=1.2, outcome="faster", negative_control=True
    )
    ledger.enter_sweep(lab, "sweep-1", "batch-decode", [swept(("a", "b")), moved])
    rows = [line for line in (lab / "LEVERS.md").read_text().splitlines() if line.startswith(("| kv |", "| seed |"))]
    assert len(rows) == 2
    assert all("void: a negative control moved" in row for row in rows)


def test_an_effect_says_in_a_line_what_speaks_against_it() -> None:
    line = effect_line(swept(("a", "b"), witness="did not move", unlike=("boot",), at="ub=512"))
    assert line == (
        "kv=f16 to kv=f32 at ub=512, width=8: decode_tok_s 0.900× [0.880, 0.920], slower; its witness did not move; "
        "also different: boot; 10 and 10 blocks, one run each; spread of sessions 2 %, assumed"
    )
