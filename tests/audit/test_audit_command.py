"""`lab audit` and `lab claims` as a person calls them: tables, JSON, exit codes, one line for what cannot be read."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from honest_records import write_honest_run
from make_evidence import MISTRAL_7B, write_claims

from labkit.cli import lab as command_line
from labkit.errors import LabError

PLAUSIBLE: dict[str, Any] = MISTRAL_7B | {"id": "A17", "value": 17, "streams": 1, "tokens_per_pass_max": 1}
IMPOSSIBLE: dict[str, Any] = MISTRAL_7B | {"id": "A1724", "value": 1724, "streams": 32, "tokens_per_pass_max": 1}
OPEN: dict[str, Any] = {"id": "A90", "group": "another", "value": 90, "model": "a model"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "lab"
    (root / "labkit").mkdir(parents=True)
    (root / "data" / "claims").mkdir(parents=True)
    (root / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    monkeypatch.chdir(root)
    return root


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, list(arguments))


def test_claims_are_audited_with_the_arithmetic_and_end_with_3(lab: Path):
    write_claims(lab / "data" / "claims" / "a.csv", [PLAUSIBLE, IMPOSSIBLE, OPEN])
    for done in (
        call("claims", "audit"),
        call("audit", "data/claims/a.csv"),
        call("claims", "audit", "data/claims/a.csv"),
    ):
        assert done.exit_code == 3, done.output
        assert "FAIL  above-roofline: A1724 is impossible as stated: it needs 766.9 GB/s" in done.output
        assert "1,724 tok/s / 32 streams = 53.88 passes/s" in done.output
        assert done.output.endswith("1 fail, 1 ok, 1 not assessable, of 3 rows\n")
    document = json.loads(call("claims", "audit", "--json").output)
    assert {name: one["outcome"] for name, one in document[0]["subjects"].items()} == {
        "A17": "ok", "A1724": "fail", "A90": "not assessable",
    }  # fmt: skip
    assert document[0]["groups"][0]["root"]["detector"] == "above-roofline"
    row = call("claims", "audit", "--row", "A90")
    assert "A90: not assessable" in row.output


def test_claims_that_stand_end_with_0(lab: Path):
    write_claims(lab / "data" / "claims" / "a.csv", [PLAUSIBLE, OPEN])
    assert call("claims", "audit").exit_code == 0


def test_claims_are_listed_with_what_is_known_of_them(lab: Path):
    write_claims(lab / "data" / "claims" / "a.csv", [PLAUSIBLE, IMPOSSIBLE | {"source": "AMA"}])
    done = call("claims", "list", "--source", "AMA")
    assert done.exit_code == 0
    (line,) = done.output.splitlines()
    assert line.startswith("A1724  1724 tok/s  decode_tok_s  R9700, Mistral-7B, FP16")
    assert "streams 32" in line
    rows = json.loads(call("claims", "list", "--json").output)
    assert [row["value"] for row in rows] == [17, 1724]
    assert rows[0]["power_cap_w"] is None


def test_every_run_of_the_lab_is_audited_and_a_damaged_one_is_named(lab: Path):
    good = write_honest_run(lab, 3)
    bad = write_honest_run(lab, 4)
    (bad / "requests.jsonl").write_text("{not json\n")
    done = call("audit")
    assert done.exit_code == 0, done.output
    assert good.name in done.output
    assert f"{bad.name}\nnot assessable: " in done.output
    assert (good / "audit.json").is_file()
    assert json.loads(call("audit", good.name, "--json").output)[0]["outcome"] == "ok"
    assert call("audit", str(good)).exit_code == 0


def test_a_sites_runs_are_audited_by_the_data_it_publishes(lab: Path, tmp_path: Path):
    site = tmp_path / "site"
    for seed in (3, 5):
        run = write_honest_run(lab, seed)
        shutil.copytree(run, site / "runs" / run.name)
        (site / "runs" / run.name / "index.html").write_text("<p>a page</p>")
    (site / "index.html").write_text("<p>the index</p>")
    (site / "runs" / run.name / "run.json").unlink()
    before = sorted(path.name for path in site.rglob("*"))
    done = call("audit", str(site))
    assert done.exit_code == 0, done.output
    assert "the page comes without its run's record" in done.output
    assert "ok: above-roofline" in done.output or "not assessable: above-roofline" in done.output
    assert sorted(path.name for path in site.rglob("*")) == before


def test_the_detectors_are_listed_with_their_versions(lab: Path):
    listed = json.loads(call("audit", "--detectors", "--json").output)
    assert {"above-roofline", "littles-law"} <= {one["id"] for one in listed}
    assert all(one["about"] and one["version"] for one in listed)
    assert "above-roofline" in call("audit", "--detectors").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "no-such-run"), "there is no run 'no-such-run'"),
        (("audit", "data"), "neither a run"),
        (("audit", "FINDINGS.md"), "no .csv of claims"),
        (("audit", "nothing.csv"), "cannot be read"),
        (("claims", "audit"), "holds no .csv"),
        (("claims", "audit", "nothing.csv"), "is not a file of claims"),
        (("claims", "audit", "--row", "X", "data/claims/b.csv"), "no row is called 'X'"),
    ],
)
def test_what_is_not_there_is_one_line(lab: Path, arguments: tuple[str, ...], said: str):
    if "b.csv" in arguments[-1]:
        write_claims(lab / "data" / "claims" / "b.csv", [PLAUSIBLE])
    done = call(*arguments)
    assert isinstance(done.exception, LabError)
    assert done.exception.exit_code == 2
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_record_of_a_newer_schema_gets_one_line(lab: Path):
    folder = write_honest_run(lab, 3)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"schema": 99}))
    done = call("audit", str(folder))
    assert isinstance(done.exception, LabError)
    assert "schema 99" in str(done.exception)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("measurements.csv", b"\xff\xfe", "is damaged"),
        ("measurements.csv", b"a,b\n1,2\n", "has the columns a,b"),
        (
            "measurements.csv",
            b'block,order,cell,metric,value,utc\n0,0,"{""streams"":1}",step_ms,nan,2026\n',
            "is finite",
        ),
        ("measurements.csv", b"block,order,cell,metric,value,utc\n0,0,not json,step_ms,1,2026\n", "not a JSON object"),
        ("requests.jsonl", b"[1, 2]\n", "line 1, is not a JSON object"),
        ("conclusion.json", b"[1, 2]", "is damaged"),
        ("plan.json", b"{", "is not a plan"),
        ("run.json", b"{}", "is not a run record"),
    ],
)
def test_a_damaged_file_of_a_run_gets_one_line(lab: Path, file: str, content: bytes, said: str):
    folder = write_honest_run(lab, 3)
    (folder / file).write_bytes(content)
    done = call("audit", str(folder))
    assert isinstance(done.exception, LabError), done.output
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (folder / "audit.json").exists()


def test_a_record_with_odd_values_is_audited_all_the_same(lab: Path):
    folder = write_honest_run(lab, 3)
    document = json.loads((folder / "run.json").read_text())
    document["model"]["bytes_by_type"] = {"Q4_1": "many"}
    document["notes"] = ["ceilings: reads 1.2.3 GB/s, multiplies ... TFLOP/s float16"]
    document["device"] |= {"vendor_id": "x", "name": None}
    document["parameters"] |= {"slots": "many", "tokens": [1, 2]}
    (folder / "run.json").write_text(json.dumps(document))
    row = '99,99,"{""streams"":-4,""phase"":""decode""}",decode_tok_s,5.0,2026-12-01T00:00:00Z\n'
    with (folder / "measurements.csv").open("a") as file:
        file.write(row + row.replace("-4", "[1]") + row.replace("-4", "0") + row.replace("-4", "1e400"))
    with (folder / "requests.jsonl").open("a") as file:
        file.write('{"block": 0, "cell": {"streams": 1}, "submit_s": "x", "last_token_s": 1e999, "start_s": null}\n')
    done = call("audit", str(folder))
    assert done.exception is None, done.exception
    assert "broke on" not in done.output
