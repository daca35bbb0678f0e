"""The notebooks on other people's numbers run as they stand, on a tiny model, and say what is theirs and what is ours."""

import ast
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit.audit.stored import read_kept
from labkit.lab.lever_checks import cannot_act
from labkit.lab.measurements import read_rows
from labkit.lab.plan import read_plan
from labkit.lab.record import RunRecord, read_record
from labkit.lab.starts import read_starts

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "data" / "claims" / "r9700.csv"
TINY = ROOT / "tests" / "data" / "tiny" / "llama-q4_1.gguf"


def cell_of(notebook: str, name: str) -> str:
    """The source of one cell."""
    document = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4)
    (source,) = (cell.source for cell in document.cells if cell.id == name)
    return source


def literal(source: str, name: str):
    """The value that a cell gives to `name`, which must be a literal."""
    (value,) = (
        node.value for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    )  # fmt: skip
    return ast.literal_eval(value)


def run(tmp_path: Path, *arguments: str) -> tuple[RunRecord, Path]:
    """`lab run` of a notebook in a lab of its own; its record and its folder."""
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    (tmp_path / "data" / "claims").mkdir(parents=True)
    shutil.copy(CLAIMS, tmp_path / "data" / "claims")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    environment = {**os.environ, "LABKIT_LAB": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "run", *arguments, "--quick", "--no-page"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (path for path in (tmp_path / "data" / "runs").iterdir() if not path.name.startswith("."))
    record = read_record(folder)
    assert record.state == "completed"
    assert (folder / "figure.json").is_file()
    return record, folder


@pytest.mark.quick
def test_the_rungs_that_admission_waves_fits_are_the_published_ones():
    source = cell_of("admission_waves", "published")
    pools, own = literal(source, "POOLS"), literal(source, "ladders")
    assert {name: pool for name, (pool, _) in pools.items()} == {
        "27B, no drafter, 250 W": 89_630, "27B, no drafter, 330 W": 115_651, "27B, DFlash2, 250 W": 58_709,
        "9B, no drafter": 273_881, "9B, MTP": 110_649,
    }  # fmt: skip
    assert own == {"27B, DFlash2, 250 W": {1: 62.8, 4: 211.1, 8: 220.3, 16: 267.0, 24: 292.8, 64: 286.7}}
    ladders: dict[str, dict[int, float]] = {name: {} for name in pools}
    groups = literal(source, "groups")
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = groups.get((row["group"], row["power_cap_w"]))
            if name and row["metric"] == "decode_tok_s":
                ladders[name][int(row["streams"])] = float(row["value"])
    assert ladders["27B, no drafter, 250 W"] == {1: 20.8, 4: 79.6, 8: 147.7, 16: 270.5, 24: 211.6, 64: 331.4}
    assert ladders["27B, no drafter, 330 W"] == {1: 22.3, 4: 84.8, 8: 157.1, 16: 287.1, 24: 385.8, 64: 353.7}
    assert ladders["9B, MTP"] == {1: 104.3, 8: 628.3, 16: 651.8, 30: 755.4, 60: 862.1, 64: 888.6, 90: 900.2}
    assert ladders["9B, no drafter"] == {1: 77.9, 8: 510.7, 16: 884.2, 30: 1378.3, 60: 1915.5, 64: 1988.7, 90: 1517.4}


@pytest.mark.quick
def test_the_published_gains_of_ub_are_at_the_length_where_it_acts():
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        rates = {row["id"]: float(row["value"]) for row in csv.DictReader(file)}
    assert rates["DIS-hip-pp2048"] / rates["DIS-hip-pp2048-ub512"] == pytest.approx(1.367, abs=5e-4)
    assert rates["DIS-vulkan-pp2048"] / rates["DIS-vulkan-pp2048-ub512"] == pytest.approx(1.217, abs=5e-4)
    assert "one step of 512 rows" in cannot_act("ub", [512, 2048], {"prompt": 512})
    assert cannot_act("ub", [512, 2048], {"prompt": 2048}) == ""


@pytest.mark.quick
def test_the_headlines_are_rows_of_the_published_record():
    parameters = ast.parse(cell_of("claims_audit", "parameters"))
    (headlines,) = (
        ast.literal_eval(node.value) for node in parameters.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "headlines"
    )  # fmt: skip
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        sources = {row["id"]: row["source"].partition("-")[0] for row in csv.DictReader(file)}
    assert set(headlines) <= set(sources)
    assert {sources[name] for name in headlines} == {"AMA", "DIS", "BLU", "NIK"}


@pytest.mark.slow
def test_the_audit_of_claims_measures_nothing_and_enters_nothing(tmp_path: Path):
    record, folder = run(tmp_path, "claims-audit")
    assert record.exploratory
    assert record.plan_hash is None
    assert record.verdict is None
    assert any("nothing was measured" in note for note in record.notes)
    assert not (folder / "measurements.csv").exists()
    assert not list((tmp_path / "data" / "ledger").glob("*.json"))


@pytest.mark.slow
def test_the_yardstick_has_one_step_over_the_short_prompt_and_fewer_over_the_long_one(tmp_path: Path):
    record, folder = run(tmp_path, "yardstick", "-p", "model", str(TINY), "--no-ledger")
    assert {check.name: check.passed for check in record.checks} == {
        "micro-batches agree": True,
        "log-probabilities equal NumPy's": True,
        "the knob cannot act on the short prompt": True,
        "the knob acts on the long prompt": True,
    }
    assert "the plan is refused: ub cannot act at 16, 64" in (folder / "log.txt").read_text()
    assert record.verdict["outcome"] in ("confirmed", "refuted", "inconclusive", "invalid")


@pytest.mark.slow
def test_the_audit_sees_the_waves_of_the_capped_engine_and_no_others(tmp_path: Path):
    record, folder = run(tmp_path, "admission-waves", "-p", "model", str(TINY), "--no-ledger")
    assert all(check.passed for check in record.checks), record.checks
    assert "the audit sees the waves" in {check.name for check in record.checks}
    kept = read_kept(folder)
    assert kept is not None
    warned = {
        notice.subject for notice in kept.audit.notices
        if (notice.detector, notice.outcome) == ("admission-waves", "warn") and len(notice.about) == 1
    }  # fmt: skip
    assert warned == {"slots=2, streams=3", "slots=2, streams=4", "slots=2, streams=6"}


@pytest.mark.quick
def test_the_ladders_that_concurrency_fits_are_published_rungs_that_were_resident():
    ladders = literal(cell_of("concurrency", "published"), "PUBLISHED")
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["metric"] == "decode_tok_s" and "moe_config" not in row["settings"]
        ]
    found = {
        name: sorted(
            int(row["streams"]) for row in rows
            if row["group"] == group and row["power_cap_w"] in (cap, "") and int(row["streams"]) <= most
        )
        for name, (group, cap, most) in ladders.items()
    }  # fmt: skip
    assert found == {
        "27B dense, 250 W": [1, 4, 8, 16], "27B dense, 330 W": [1, 4, 8, 16, 24], "9B dense": [1, 8, 16, 30, 60],
        "30B experts, vLLM": [1, 2, 4, 8, 16], "30B experts, SGLang": [1, 4, 8],
    }  # fmt: skip


@pytest.mark.slow
def test_the_ladder_has_its_law_and_the_audit_sees_the_rung_above_the_slots_alone(tmp_path: Path):
    record, folder = run(tmp_path, "concurrency", "-p", "model", str(TINY), "-p", "rates", "[50]", "--no-ledger")
    assert {check.name: check.passed for check in record.checks} == {
        "log-probabilities equal NumPy's": True,
        "labkit: greedy tokens are the model's, by NumPy": True,
        "Little's law": True,
    }
    kept = read_kept(folder)
    assert kept is not None
    assert not kept.audit.failed
    waited = {
        notice.subject for notice in kept.audit.notices if (notice.detector, notice.outcome) == ("admission-waves", "warn")
    }  # fmt: skip
    assert waited == {"runtime=labkit, streams=6"}
    assert not [
        notice.text for notice in kept.audit.notices
        if (notice.detector, notice.outcome) == ("undeclared-changes", "warn")
    ]  # fmt: skip
    starts = (folder / "starts.csv").read_text().splitlines()[1:]
    assert len({line.split(",", 1)[1] for line in starts}) == 7  # two openings a block, one for the open load
    assert "open load" in (folder / "notebook.ipynb").read_text()


@pytest.mark.slow
def test_the_routing_rule_is_judged_on_requests_held_out_and_answers_nothing_beyond(tmp_path: Path):
    record, folder = run(tmp_path, "routing-rule", "-p", "model", str(TINY), "--no-ledger")
    assert all(check.passed for check in record.checks), record.checks
    kept = read_kept(folder)
    assert kept is not None
    assert not kept.audit.failed
    assert record.verdict["outcome"] in ("confirmed", "refuted", "inconclusive")
    text = (folder / "notebook.ipynb").read_text()
    assert "400 in, 24 out, 1 at once: not measured" in text
    assert "of 256 requests the published numbers answer 0%" in text
    assert "best of the three: vLLM for 7% of the requests, Vulkan for 91% of the requests, HIP for 2%" in text


@pytest.mark.slow
def test_each_backend_is_started_anew_for_each_ub_and_one_that_cannot_load_is_a_line(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LABKIT_LLAMA_SERVER", str(tmp_path / "none"))
    named = "labkit,labkit-serve,llama-server"
    record, folder = run(tmp_path, "backend-sweep", "-p", "model", str(TINY), "-p", "runtimes", named, "--no-ledger")
    assert len(record.checks) == 3
    assert all(check.passed for check in record.checks), record.checks
    assert any("left out: llama-server cannot load: " in note for note in record.notes)
    plan = read_plan(folder / "plan.json")
    assert plan.negative_control is not None
    assert {plan.negative_control.cell["ub"], plan.negative_control.against["ub"]} == {16, 64}
    assert plan.negative_control.cell["prompt"] == 16
    starts = read_starts(folder)
    begun = {(starts[row.order], row.block) for row in read_rows(folder / "measurements.csv")}
    assert len(begun) == len({start for start, _ in begun}) == 2 * 2 * 3  # runtimes, micro-batches, blocks
    kept = read_kept(folder)
    assert kept is not None
    assert not [notice for notice in kept.audit.notices if notice.outcome == "fail"]


@pytest.mark.slow
def test_an_upgrade_is_read_from_both_sides_and_the_same_engine_twice_is_no_upgrade(tmp_path: Path):
    record, folder = run(tmp_path, "engine-upgrade", "-p", "model", str(TINY), "--no-ledger")
    assert len(record.checks) == 4
    assert all(check.passed for check in record.checks), record.checks
    told = {side: record.program_fingerprints[f"runtime {side}"] for side in ("before", "after")}
    assert told["before"] == f"{told['after']} --arithmetic exact"
    assert any("outputs: outputs equal" in note for note in record.notes)
    kept = read_kept(folder)
    assert kept is not None
    assert ("lever-witness", "ok") in {(notice.detector, notice.outcome) for notice in kept.audit.notices}
    assert not [notice for notice in kept.audit.notices if notice.outcome == "fail"]
