"""An error planted in a copy of an honest run record is the first notice that the audit of the copy shows."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from honest_records import draw_truth, write_honest_run

from labkit.audit.stored import run_audit

Row = dict[str, Any]


def honest(root: Path, fits: Callable[[Any], bool]) -> Path:
    """An honest run whose truth fits, with at least four rungs of streams."""
    import numpy as np

    for seed in range(1000):
        if not fits(draw_truth(np.random.default_rng(seed))):
            continue
        folder = write_honest_run(root, seed)
        if '""streams"":8' in (folder / "measurements.csv").read_text():
            return folder
        shutil.rmtree(folder)
    raise AssertionError("no seed fits")


def planted(
    folder: Path, row: Callable[[Row], None] | None = None, request: Callable[[Row], None] | None = None
) -> Path:
    """A copy of a run in which `row` and `request` have changed what they wanted."""
    copy = folder.with_name(f"{folder.name}-planted")
    shutil.copytree(folder, copy)
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(record | {"id": copy.name}))
    if row is not None:
        path = copy / "measurements.csv"
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for one in rows:
            one["knobs"] = json.loads(one["cell"])
            row(one)
        with path.open("w", newline="") as file:
            names = ["block", "order", "cell", "metric", "value", "utc"]
            writer = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    if request is not None:
        path = copy / "requests.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for one in lines:
            request(one)
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return copy


def scale(factor: float, streams: int, *metrics: str, by: str = "") -> Callable[[Row], None]:
    """Multiplies metrics of the cells that decode so many streams; `by` divides one instead."""

    def change(row: Row) -> None:
        if row["knobs"].get("streams") == streams and row["knobs"]["phase"] == "decode":
            if row["metric"] in metrics:
                row["value"] = repr(float(row["value"]) * factor)
            if row["metric"] == by:
                row["value"] = repr(float(row["value"]) / factor)

    return change


def first_notice(folder: Path) -> str:
    """The detector whose notice is shown first."""
    found = run_audit(folder)
    groups = found.groups()
    assert groups, found.text()
    return groups[0].root.detector


def on_the_h200(truth: Any) -> bool:
    """A card whose limits are known, with a model far over its cache."""
    return truth.card[0] == "NVIDIA H200" and truth.weights * truth.bytes_per_weight > 2e9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = honest(tmp_path, on_the_h200)
    assert run_audit(folder).groups() == []
    return folder


def test_a_rate_beyond_the_memory(run: Path):
    times = ("step_ms", "tpot_s", "gpu_ms_step")

    def change(row: Row) -> None:
        if row["knobs"].get("streams") == 8:
            if row["metric"] in ("decode_tok_s", "achieved_gb_s"):
                row["value"] = repr(float(row["value"]) * 40)
            if row["metric"] in times:
                row["value"] = repr(float(row["value"]) / 40)

    copy = planted(run, change)
    assert first_notice(copy) == "above-roofline"
    follows = run_audit(copy).groups()[0].consequences
    assert "faster-than-solo" in {notice.detector for notice in follows}


def test_a_rate_multiplied_by_its_batch_once_too_often(run: Path):
    assert first_notice(planted(run, scale(1.3, 8, "decode_tok_s"))) == "littles-law"


def test_a_stream_faster_in_company_than_alone(run: Path):
    def change(row: Row) -> None:  # the solo cell ran at an idle card's clock
        if row["knobs"] == {"phase": "decode", "streams": 1}:
            slower = row["metric"] in ("step_ms", "tpot_s", "gpu_ms_step", "ttft_s")
            if slower or row["metric"] in ("decode_tok_s", "achieved_gb_s"):
                row["value"] = repr(float(row["value"]) * (3 if slower else 1 / 3))

    assert first_notice(planted(run, change)) == "faster-than-solo"


def test_requests_that_waited_for_a_slot(run: Path):
    def change(row: Row) -> None:
        if row["cell"].get("streams") == 8 and row["slot"] >= 4:
            lasted = row["last_token_s"] - row["start_s"]
            row |= {name: row[name] + lasted for name in ("start_s", "first_token_s", "last_token_s")}

    assert first_notice(planted(run, request=change)) == "admission-waves"


def test_a_client_faster_than_its_server(run: Path):
    def change(row: Row) -> None:
        if row["metric"] == "server_prefill_tok_s":
            row["value"] = repr(float(row["value"]) * 0.8)

    assert first_notice(planted(run, change)) == "client-faster-than-server"


def test_one_cells_times_under_anothers_name(run: Path):
    rows = list(csv.DictReader((run / "measurements.csv").open()))
    taken = {
        (row["block"], row["metric"]): row["value"] for row in rows if json.loads(row["cell"]) == {"phase": "decode", "streams": 2}
    }  # fmt: skip

    def change(row: Row) -> None:  # four streams get the time and half the rate that two had: a replay of its file
        if row["knobs"] == {"phase": "decode", "streams": 4} and row["metric"] in ("gpu_ms_step",):
            row["value"] = taken[row["block"], row["metric"]]

    assert first_notice(planted(run, change)) == "identical-timings"


def test_arithmetic_in_a_claim_that_does_not_come_out(run: Path):
    copy = planted(run)
    conclusion = {"claims": ["17 → 60 tok/s (+153 %)"], "should_not_claim": [], "utc": "2026-12-01T00:00:00Z"}
    (copy / "conclusion.json").write_text(json.dumps(conclusion))
    assert first_notice(copy) == "text-arithmetic"
