"""Small run folders for the audit's tests: cells with their repetitions and requests, written and read as evidence."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from honest_records import utc, write_csv

from labkit.audit.evidence import Evidence
from labkit.audit.run_evidence import read_run
from labkit.lab.measurements import COLUMNS
from labkit.lab.plan import Plan, Rule
from labkit.lab.record import RunRecord, canonical_cell
from labkit.measure.telemetry import COLUMNS as TELEMETRY

Cell = Mapping[str, Any]
R9700 = {"name": "AMD Radeon AI PRO R9700 (RADV GFX1201)", "type": "discrete", "vendor_id": 0x1002, "device_id": 0x7551}


def run_of(
    root: Path,
    cells: Sequence[tuple[Cell, Mapping[str, Sequence[float]], Sequence[Mapping[str, Any]]]],
    *,
    plan: Plan | None = None,
    telemetry: Sequence[Mapping[str, Any]] = (),
    **record: Any,
) -> Evidence:
    """The evidence of a run of `cells`: (knobs, metric → a value a block, requests; a request is in block 0 unless it
    says otherwise). `record` are further fields of run.json."""
    folder = root / "data" / "runs" / "20261201T000000Z-small-00000001"
    folder.mkdir(parents=True)
    rows = []
    for place, (knobs, metrics, _) in enumerate(cells):
        for metric, values in metrics.items():
            rows += [
                (block, block * len(cells) + place, canonical_cell(knobs), metric, repr(float(value)), utc(block))
                for block, value in enumerate(values)
            ]
    write_csv(folder / "measurements.csv", COLUMNS, sorted(rows, key=lambda row: row[1]))
    asked = [{"block": 0, "cell": dict(knobs), **request} for knobs, _, requests in cells for request in requests]
    (folder / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")
    if telemetry:
        write_csv(folder / "telemetry.csv", TELEMETRY, [[one.get(name, "") for name in TELEMETRY] for one in telemetry])
    if plan is not None:
        (folder / "plan.json").write_text(json.dumps(plan.model_dump(mode="json")), encoding="utf-8")
    known: dict[str, Any] = {
        "id": folder.name, "experiment": "small", "state": "completed", "started": utc(0), "ended": utc(60), "parameters": {},
        "plan_hash": plan.hash if plan else None, "device": R9700,
        "host": {"cpu": "a processor", "cores": 16, "ram_bytes": 64 << 30, "os": "Linux"},
    }  # fmt: skip
    (folder / "run.json").write_text(RunRecord.model_validate(known | record).to_json(), encoding="utf-8")
    return read_run(folder, root)


def plan_of(
    knob: str | tuple[str, ...], cell: Cell, against: Cell, metric: str = "decode_tok_s", **fields: Any
) -> Plan:
    """A plan that compares two cells."""
    rule = Rule(metric=metric, cell=dict(cell), against=dict(against), comparison=">=", threshold=1.02)
    known: dict[str, Any] = {"cells": (dict(against), dict(cell)), "repetitions": 3}
    return Plan(experiment="small", belief="One is faster than the other", knob=knob, rule=rule, **known | fields)
