"""Makes final run folders in the record's format, with samples whose ratios are known, for the ledger's tests."""

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.lab.measurements import COLUMNS
from labkit.lab.plan import Plan, Rule
from labkit.lab.record import RunRecord, canonical_cell, write_atomic

ONE, EIGHT = {"width": 1}, {"width": 8}
BELIEF = "Eight streams give at least four times the tokens of one"
CHECK = {"name": "ids equal the reference", "passed": True, "detail": "48 of 48"}
DEVICE = {
    "name": "A card",
    "type": "discrete",
    "vendor_id": 4098,
    "uuid": "00" * 16,
    "driver_name": "radv",
    "driver_info": "Mesa 25.0.7",
    "api_version": "1.4.305",
}


def make_plan(repetitions: int = 10, rule: Mapping[str, Any] | None = None, **fields: Any) -> Plan:
    """The plan most tests use: eight streams against one, at least four times; `fields` and `rule` replace parts."""
    rules = {
        "metric": "decode_tok_s",
        "cell": EIGHT,
        "against": ONE,
        "comparison": ">=",
        "threshold": 4.0,
        "margin": 0.02,
    }
    known: dict[str, Any] = {
        "experiment": "batch-decode",
        "question": "How much faster are eight streams than one?",
        "belief": BELIEF,
        "believed_because": "a step reads the weights once, however many rows it has",
        "refuted_if": "the whole interval lies under 4",
        "knob": "width",
        "cells": [ONE, EIGHT],
        "control": ONE,
        "repetitions": repetitions,
        "kind": "confirmatory",
    }
    return Plan(**known | fields, rule=Rule(**rules | dict(rule or {})))


def ratios_about(ratio: float, pairs: int, noise: float = 0.01) -> list[float]:
    """Ratios whose geometric mean is exactly `ratio`, spread evenly by `noise` on either side, in a shuffled order."""
    spread = np.linspace(-noise, noise, pairs) if pairs > 1 else np.zeros(pairs)
    return list(ratio * np.exp(np.random.default_rng(pairs).permutation(spread)))


def make_run(
    root: Path,
    ratio: float | Sequence[float] = 5.0,
    *,
    pairs: int = 10,
    plan: Plan | None = None,
    number: int = 0,
    claims: Sequence[str] = (),
    should_not_claim: Sequence[str] = (),
    samples: Sequence[tuple[int, Mapping[str, Any], float]] | None = None,
    again: bool = False,
    **record: Any,
) -> Path:
    """Writes a completed run folder and returns it. Block b of width 1 is 20 + b tok/s, of width 8 its ratio more.

    `number` tells runs apart; `samples` (block, cell, value) replace the rows; `record` replaces fields of run.json.
    `again` writes over what a process that was killed left of the folder."""
    plan = plan or make_plan(repetitions=pairs)
    run_id = f"20261201T{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}Z-{plan.experiment}-{number:08x}"
    folder = root / "data" / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=again)
    if samples is None:
        ratios = ratios_about(ratio, pairs) if isinstance(ratio, float | int) else list(ratio)
        samples = [
            (block, cell, (20.0 + block) * (each if cell == EIGHT else 1.0))
            for block, each in enumerate(ratios)
            for cell in (ONE, EIGHT)
        ]
    with (folder / "measurements.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for order, (block, cell, value) in enumerate(samples):
            text = canonical_cell(cell)
            writer.writerow((block, order, text, plan.rule.metric, repr(float(value)), "2026-12-01T00:17:00Z"))
    (folder / "plan.json").write_text(json.dumps(plan.model_dump(mode="json")))
    (folder / "conclusion.json").write_text(
        json.dumps({"claims": list(claims), "should_not_claim": list(should_not_claim), "utc": "2026-12-01T00:18:00Z"})
    )
    known: dict[str, Any] = {
        "id": run_id,
        "experiment": plan.experiment,
        "state": "completed",
        "started": "2026-12-01T00:16:26Z",
        "ended": "2026-12-01T00:18:00Z",
        "parameters": {"kv": "f16", "tokens": 24, "repetitions": pairs, "threshold": 4.0},
        "plan_hash": plan.hash,
        "exploratory": False,
        "device": DEVICE,
        "host": {"cpu": "a processor", "cores": 2, "ram_bytes": 8 << 30, "os": "Debian 12"},
        "model": {"name": "SmolLM2-135M-Instruct", "sha256": "ab" * 32, "architecture": "llama"},
        "shaders": {"linear.comp": "cd" * 32},
        "packages": {"labkit": "0.1.0"},
        "git": {"commit": "0a67793" + "0" * 33, "dirty": False},
        "checks": [CHECK],
        "artefacts": {"measurements.csv": hashlib.sha256((folder / "measurements.csv").read_bytes()).hexdigest()},
    }
    write_atomic(folder / "run.json", RunRecord.model_validate(known | record).to_json())
    return folder


def make_lab(root: Path) -> Path:
    """An empty lab at `root`."""
    (root / "labkit").mkdir(parents=True)
    (root / "FINDINGS.md").write_text("# Findings\n\nWhat we found.\n")
    return root
