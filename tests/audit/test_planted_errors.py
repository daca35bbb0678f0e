"""An error planted in a copy of an honest run record is the first notice that the audit of the copy shows."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from honest_records import draw_truth, write_honest_run

from labkit.audit.registry import detectors
from labkit.audit.stored import run_audit
from labkit.lab.record import canonical_cell

Row = dict[str, Any]


def honest(root: Path, fits: Callable[[Any], bool], drafts: bool = False, blocks: int = 3) -> Path:
    """An honest run whose truth fits, with at least four rungs of streams and so many blocks; `drafts`: and cells that
    draft."""
    import numpy as np

    for seed in range(1000):
        if not fits(draw_truth(np.random.default_rng(seed))) or (drafts and seed % 2 == 0):
            continue
        folder = write_honest_run(root, seed)
        enough = json.loads((folder / "plan.json").read_text())["repetitions"] >= blocks
        if enough and '""streams"":8' in (folder / "measurements.csv").read_text():
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


# Errors of setting, of the workload and of the machine


def change_record(folder: Path, **fields: Any) -> Path:
    """A copy of a run whose record has other fields; a mapping is laid over the one there."""
    copy = planted(folder)
    record = json.loads((copy / "run.json").read_text())
    for name, value in fields.items():
        record[name] = record[name] | value if isinstance(value, dict) and isinstance(record.get(name), dict) else value
    (copy / "run.json").write_text(json.dumps(record))
    return copy


def change_readings(folder: Path, change: Callable[[Row], None]) -> Path:
    """A copy of a run in which `change` has changed the readings of the card."""
    copy = planted(folder)
    with (copy / "telemetry.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows, names = list(reader), list(reader.fieldnames or ())
    for row in rows:
        change(row)
    with (copy / "telemetry.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return copy


def rename_cells(folder: Path, rename: Callable[[Row], Row]) -> Path:
    """A copy of a run whose cells are called otherwise, in its samples, its requests and its plan."""

    def row(one: Row) -> None:
        one["cell"] = canonical_cell(rename(one["knobs"]))

    def request(one: Row) -> None:
        one["cell"] = rename(one["cell"])

    copy = planted(folder, row, request)
    plan = json.loads((copy / "plan.json").read_text())
    plan["cells"] = [rename(cell) for cell in plan["cells"]]
    plan["rule"] |= {end: rename(plan["rule"][end]) for end in ("cell", "against")}
    (copy / "plan.json").write_text(json.dumps(plan))
    return copy


def speculating(row: Row) -> bool:
    """Whether a request is of a cell that drafts."""
    return "draft" in row["cell"]


def test_streams_that_all_went_to_one_slot_after_each_other(run: Path):
    most = json.loads((run / "plan.json").read_text())["rule"]["cell"]["streams"]

    def change(row: Row) -> None:  # as many slots at the end of the ladder as at its beginning
        if row["cell"].get("streams") == most and "draft" not in row["cell"]:
            row["slot"] = 0

    copy = planted(run, request=change)
    assert first_notice(copy) == "lever-witness"
    assert run_audit(copy).outcome == "fail"


@pytest.fixture
def drafting(tmp_path: Path) -> Path:
    folder = honest(tmp_path, on_the_h200, drafts=True)
    assert run_audit(folder).groups() == []
    return folder


def test_a_drafter_that_was_never_consulted(drafting: Path):
    def change(row: Row) -> None:
        if speculating(row):
            row |= {"drafted_tokens": 0, "accepted_tokens": 0}

    assert first_notice(planted(drafting, request=change)) == "feature-consulted"


def test_a_prompt_that_was_found_in_a_cache(run: Path):
    def cached(row: Row) -> None:
        if row["cell"].get("prompt") == 4096:
            row["cached_tokens"] = 3072

    def faster(row: Row) -> None:  # what is cached takes no time
        if row["knobs"].get("prompt") == 4096 and row["metric"] in ("prefill_tok_s", "server_prefill_tok_s"):
            row["value"] = repr(float(row["value"]) * 40)
        if row["knobs"].get("prompt") == 4096 and row["metric"] == "ttft_s":
            row["value"] = repr(float(row["value"]) / 40)

    copy = planted(run, faster, cached)
    assert first_notice(copy) == "shared-prefix"
    assert "above-roofline" in {notice.detector for notice in run_audit(copy).groups()[0].consequences}


def test_a_prompt_of_another_length_than_its_label(run: Path):
    def change(row: Row) -> None:
        if row["cell"].get("prompt") == 2048:
            row["prompt_tokens"] = 3430

    assert first_notice(planted(run, request=change)) == "nominal-lengths"


def test_power_of_another_card(run: Path):
    def change(row: Row) -> None:
        row |= {"power_w": "23.1", "utilisation": "0"}

    assert first_notice(change_readings(run, change)) == "power-against-bandwidth"


def test_power_too_little_for_the_bandwidth(tmp_path: Path):
    folder = honest(tmp_path, lambda truth: on_the_h200(truth) and truth.memory_share > 0.8)
    assert run_audit(folder).groups() == []

    def change(row: Row) -> None:
        if row["metric"] == "power_w":
            row["value"] = "82.0"

    assert first_notice(planted(folder, change)) == "power-against-bandwidth"


def test_a_second_change_that_nobody_declared(run: Path):
    def rename(cell: Row) -> Row:
        return cell | {"kv": "f16" if cell["streams"] == 1 else "q8_0"} if cell["phase"] == "decode" else cell

    assert first_notice(rename_cells(run, rename)) == "undeclared-changes"


def test_ratios_that_drift_across_the_threshold(tmp_path: Path):
    folder = honest(tmp_path, lambda truth: on_the_h200(truth) and truth.noise < 0.01, blocks=10)
    assert run_audit(folder).groups() == []
    rule = json.loads((folder / "plan.json").read_text())["rule"]
    rows = list(csv.DictReader((folder / "measurements.csv").open()))
    rates = {name: [float(row["value"]) for row in rows if row["metric"] == "decode_tok_s" and json.loads(row["cell"]) == cell]
             for name, cell in ((end, rule[end]) for end in ("cell", "against"))}  # fmt: skip
    middle = sum(rates["cell"]) / sum(rates["against"]) / len(rates["cell"]) * len(rates["against"])

    def change(row: Row) -> None:  # the batch falls behind through the session, from over the threshold to below it
        if row["knobs"] == rule["cell"]:
            factor = rule["threshold"] / middle * (1.06 - 0.012 * int(row["block"]))
            if row["metric"] == "decode_tok_s":
                row["value"] = repr(float(row["value"]) * factor)
            if row["metric"] in ("step_ms", "tpot_s"):
                row["value"] = repr(float(row["value"]) / factor)

    copy = planted(folder, change)
    assert first_notice(copy) == "repetitions"
    assert run_audit(copy).failed == ("repetitions",)


def test_a_cold_first_repetition(run: Path):
    most = json.loads((run / "plan.json").read_text())["rule"]["cell"]["streams"]

    def change(row: Row) -> None:
        cell = row["knobs"] == {"phase": "decode", "streams": most}
        if cell and row["block"] == "0" and row["metric"] == "decode_tok_s":
            row["value"] = repr(float(row["value"]) * 0.72)

    assert first_notice(planted(run, change)) == "repetitions"


def test_a_loop_behind_an_acceptance(drafting: Path):
    def change(row: Row) -> None:
        if speculating(row):
            row["text"] = "the light was on the water and " * 30

    assert first_notice(planted(drafting, request=change)) == "degenerate-output"


def test_another_process_on_the_device(run: Path):
    busy = {"pid": 4711, "name": "python", "when": ["during"], "busy": 0.6}
    assert first_notice(change_record(run, neighbours={"processes": [busy]})) == "another-process"


def test_heat(run: Path):
    def change(row: Row) -> None:
        row["limited"] = "heat"

    assert first_notice(change_readings(run, change)) == "throttled"


def test_memory_that_was_spilled_to_the_host(run: Path):
    assert first_notice(change_record(run, neighbours={"spilled_bytes": 2_400_000_000})) == "spilled-memory"


def test_every_detector_that_can_warn_has_an_error_planted():
    text = Path(__file__).read_text()
    without = [id for id in detectors() if f'== "{id}"' not in text]
    assert without == ["single-shape"]  # it never does
