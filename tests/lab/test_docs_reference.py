"""The reference says what the code says: it is up to date, lists all there is, and its schemas fit every stored file."""

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from labkit.audit.registry import detectors
from labkit.cli import lab
from labkit.errors import ParameterError
from labkit.lab.levers import LEVERS
from labkit.lab.reference import FOLDER, reference_files, stale_files
from labkit.lab.request_row import RequestRow
from labkit.measure.metrics import METRICS
from labkit.measure.serving.requests import ABOUT, answer_row, request_row
from labkit.runtimes.registry import kinds
from labkit.runtimes.runtime import Answer, Ask

ROOT = Path(__file__).resolve().parents[2]
RUNS = sorted((ROOT / "data" / "runs").iterdir())


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return reference_files()


def test_what_is_committed_is_what_the_code_says(files):
    assert stale_files(ROOT, files) == ([], []), "write it with `./lab docs`"


def test_it_is_the_same_each_time(files):
    assert reference_files() == files


def test_every_metric_lever_detector_runtime_and_module_is_in_it(files):
    assert re.findall(r"^\| `(\w+)` \|", files["metrics.md"], re.MULTILINE) == sorted(METRICS)
    levers = files["levers.md"].partition("## What is made anew")[0]
    assert re.findall(r"^\| `(\w+)` \|", levers, re.MULTILINE) == sorted({one.name for one in LEVERS.values()})
    assert re.findall(r"^## ([\w-]+)$", files["audit.md"], re.MULTILINE) == list(detectors())
    assert re.findall(r"^\| `([\w-]+)` \|", files["runtimes.md"].partition("## open_runtime")[0], re.MULTILINE) == list(
        kinds()
    )
    shown = set(re.findall(r"\]\(\.\./\.\./(labkit/[\w/]+\.py)\)", files["modules.md"]))
    there = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "labkit").rglob("*.py") if path.name != "__init__.py"
    }
    assert shown == there


def test_every_verb_has_its_options_and_its_help(files):
    sections = dict(re.findall(r"^## lab ([\w -]+)\n(.*?)(?=^## |\Z)", files["cli.md"], re.MULTILINE | re.DOTALL))
    assert {name.split()[0] for name in sections} == set(lab.list_commands(click.Context(lab)))
    assert {"bench ops", "bench figure", "ledger waive", "models pull"} <= set(sections)
    assert "--reason TEXT" in sections["ledger waive"]
    assert "[default: 8000; 0<=x<=65535]" in sections["serve"].replace("&lt;", "<")
    for name, text in sections.items():
        assert len(text.partition("```\n\n")[2].strip()) > 20, f"lab {name} says nothing"


def test_a_detector_is_said_to_give_what_it_gives_and_no_more(files):
    rows = re.findall(r"^\| [\d.]+ \| \[`([\w-]+)`\]\S* \| [^|]* \| ([^|]*) \|", files["audit.md"], re.MULTILINE)
    outcomes = {name: set(said.split(", ")) for name, said in rows}
    assert outcomes["single-shape"] == {"ok", "not assessable"}  # never withholds, by its definition
    assert "fail" in outcomes["above-roofline"]
    assert "warn" not in outcomes["feature-consulted"]
    assert "fail" not in outcomes["throttled"]


def no_fault(schema: str, found: Any, name: str, files: dict[str, str]) -> None:
    errors = Draft202012Validator(json.loads(files[f"schemas/{schema}.schema.json"])).iter_errors(found)
    assert [f"{name}: {list(one.path)}: {one.message[:200]}" for one in errors] == []


def rows_of(path: Path, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The first and the last rows of a CSV as its schema has them: numbers where it wants numbers, null for empty cells."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        {name: cell_of(cell, schema["properties"][name]) for name, cell in row.items()}
        for row in (*rows[:2], *rows[-2:])
    ]


def cell_of(text: str, column: dict[str, Any]) -> Any:
    wanted = json.dumps(column)
    if text == "":
        return None if "null" in wanted else ""
    return float(text) if '"number"' in wanted else int(text) if '"integer"' in wanted else text


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_every_file_of_a_stored_run_fits_its_schema(run, files):
    no_fault("run", json.loads((run / "run.json").read_text()), "run.json", files)
    for name in ("plan", "audit"):
        if (path := run / f"{name}.json").is_file():
            no_fault(name, json.loads(path.read_text()), path.name, files)
    for name in ("measurements", "starts", "telemetry"):
        if (path := run / f"{name}.csv").is_file():
            schema = json.loads(files[f"schemas/{name}.schema.json"])
            for row in rows_of(path, schema):
                no_fault(name, row, path.name, files)
    if (path := run / "requests.jsonl").is_file():
        lines = path.read_text().splitlines()
        for line in (*lines[:3], *lines[-3:]):
            no_fault("requests", json.loads(line), path.name, files)


def test_every_event_and_every_file_of_claims_fits_its_schema(files):
    for path in (ROOT / "data" / "ledger").glob("*.json"):
        no_fault("event", json.loads(path.read_text()), path.name, files)
    schema = json.loads(files["schemas/claims.schema.json"])
    for path in (ROOT / "data" / "claims").glob("*.csv"):
        header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert set(header) == set(schema["properties"])
        for row in rows_of(path, schema):
            no_fault("claims", row, path.name, files)


def test_whoever_writes_a_request_writes_known_columns(files):
    about = {"content": "prose", "nominal_prompt_tokens": 3, "context_tokens": 1, "sized": "ids", "images": 1,
             "image_pixels": 64, "cache": "warm"}  # fmt: skip
    assert set(about) == set(ABOUT)
    answer = Answer(
        Ask((1, 2, 3), 4, about=about), submit_s=1.0, times=(2.0, 2.0, 3.0), end_s=3.5, due_s=0.5, text="a", reasoning="b",
        token_ids=(4, 5, 6), prompt_tokens=3, completion_tokens=3, cached_tokens=0, drafted=2, accepted=1,
        timings={"prompt_ms": 1.0}, finish="length", notes=("odd",),
    )  # fmt: skip
    failed = Answer(Ask("a", 1), submit_s=1.0, failed="closed", error="it went away")
    told = [
        answer_row(answer), answer_row(failed),
        request_row(1, prompt=3, completion=2, submit_s=0.0, ttft_s=0.1, e2e_s=0.3, gaps_s=[0.2], cached=0, error="x"),
    ]  # fmt: skip
    for row in told:
        assert set(row) - set(RequestRow.model_fields) == set()
        no_fault("requests", {"block": 0, "cell": {"streams": 1}, **row}, "row", files)
    known = set(RequestRow.model_fields) - {"block", "cell"}
    assert known - {name for row in told for name in row} == {"slot", "start_s", "settings"}


def test_a_schema_refuses_what_is_no_such_file(files):
    run = json.loads((RUNS[0] / "run.json").read_text())
    with pytest.raises(AssertionError, match="lost"):
        no_fault("run", run | {"state": "lost"}, "run.json", files)
    with pytest.raises(AssertionError, match="prompt_tokens"):
        no_fault("requests", {"block": 0, "cell": {}, "prompt_tokens": "many"}, "requests.jsonl", files)
    no_fault("requests", {"block": 0, "cell": {}, "of_my_own": 1}, "requests.jsonl", files)


def test_the_verb_tells_what_differs_writes_it_and_takes_nothing_away(tmp_path, monkeypatch, files):
    for name in ("FINDINGS.md", "METHODOLOGY.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "lab.toml").write_text("")
    os.symlink(ROOT / "tests", tmp_path / "tests")
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    monkeypatch.setattr("labkit.lab.reference.reference_files", lambda: files)  # made once for all tests
    refused = CliRunner().invoke(lab, ["docs", "--check"])
    assert isinstance(refused.exception, ParameterError)
    assert f"and {len(files) - 3} more do not say what the code says" in str(refused.exception)
    assert not (tmp_path / FOLDER).exists(), "a check writes nothing"
    assert CliRunner().invoke(lab, ["docs"]).exit_code == 0
    assert stale_files(tmp_path, files) == ([], [])
    (tmp_path / FOLDER / "metrics.md").write_text("# Metrics\n")
    refused = CliRunner().invoke(lab, ["docs", "--check"])
    assert str(refused.exception) == "docs/reference/metrics.md does not say what the code says; `lab docs` writes it"
    (tmp_path / FOLDER / "mine.md").write_text("# Mine\n")
    refused = CliRunner().invoke(lab, ["docs"])
    assert "docs/reference/mine.md is not one that `lab docs` writes" in str(refused.exception)
    assert (tmp_path / FOLDER / "mine.md").is_file()
