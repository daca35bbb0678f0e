"""A run that the audit fails: exit code 3, no finding, a waiver that is printed; and an honest one, which is audited too."""

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_runs import make_lab, make_run
from run_harness import ThrowawayLab, read

from labkit.audit.report import Audit
from labkit.audit.stored import AUDIT, run_audit
from labkit.lab.recheck import verify
from labkit.lab.record import exit_code, read_record

# Rates of 1 and 8 streams with the time of their steps; `factor` is what the rate is multiplied by once too often.
CODE = """
from labkit.lab.lab import Lab
from labkit.lab.plan import Plan, Rule

run = Lab().run("ladder", {"factor": factor})
one, eight = {"width": 1}, {"width": 8}
rule = Rule(metric="decode_tok_s", cell=eight, against=one, comparison=">=", threshold=2.0)
plan = Plan(experiment="ladder", belief="Eight streams give twice the tokens", knob="width", cells=[one, eight],
            rule=rule, repetitions=10)
run.plan(plan)
run.check("ids equal the reference", True)
for block, cell in plan.schedule():
    step_ms = (20.0 if cell == one else 30.0) * (1 + 0.001 * block)
    rate = 1e3 * cell["width"] / step_ms * (factor if cell == eight else 1)
    run.measure(cell, block, decode_tok_s=rate, step_ms=step_ms)
run.conclude(claims=["more streams give more tokens"])
"""


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    made = ThrowawayLab(tmp_path / "lab")
    cells = [
        {"cell_type": "markdown", "id": "title", "source": "# Do eight streams give twice the tokens?", "metadata": {}},
        code("factor = 1.0", "parameters"),
        code(CODE),
    ]
    document = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (made.root / "notebooks" / "ladder.ipynb").write_text(json.dumps(document))
    return made


def code(source: str, *tags: str) -> dict[str, Any]:
    """A code cell."""
    return {
        "cell_type": "code", "id": f"code{len(source)}", "source": source, "metadata": {"tags": list(tags)},
        "outputs": [], "execution_count": None,
    }  # fmt: skip


def kept(folder: Path) -> Audit:
    """The audit in a run's folder."""
    return Audit.model_validate(read(folder / AUDIT)["audit"])


def test_an_honest_run_is_audited_and_stands(lab: ThrowawayLab) -> None:
    done = lab.lab("run", "ladder", "--no-page")
    assert done.returncode == 0, done.stderr
    record, folder = lab.only_run()
    assert record["verdict"]["outcome"] == "confirmed"
    assert kept(folder).failed == ()
    assert kept(folder).stamps["littles-law"].startswith("5-")
    assert AUDIT not in record["artefacts"]
    assert verify(lab.root).sound


def test_what_the_audit_warns_of_stands_on_the_entry(lab: ThrowawayLab) -> None:
    """A tenth more than the times of the steps allow: too little to be sure of, with means over other windows."""
    text = (lab.root / "notebooks" / "ladder.ipynb").read_text()
    (lab.root / "notebooks" / "ladder.ipynb").write_text(text.replace("step_ms=step_ms", "tpot_s=step_ms / 1e3"))
    done = lab.lab("run", "ladder", "-p", "factor", "1.1", "--no-page")
    assert done.returncode == 0, done.stderr
    (notice,) = kept(lab.only_run()[1]).groups()
    assert (notice.outcome, notice.root.detector) == ("warn", "littles-law")
    entry = (lab.root / "FINDINGS.md").read_text()
    assert f"- **Audit**: littles-law (warn): {notice.root.text}" in entry
    assert verify(lab.root).sound


def test_an_impossible_run_ends_with_3_and_is_no_finding_until_somebody_says_why_it_counts(lab: ThrowawayLab) -> None:
    done = lab.lab("run", "ladder", "-p", "factor", "1.5", "--no-page")
    assert done.returncode == 3, done.stderr
    assert "audit: fail, littles-law: width=8 breaks Little's law" in done.stderr
    assert "lab ledger waive" in done.stderr
    record, folder = lab.only_run()
    assert record["state"] == "completed"
    assert record["verdict"]["outcome"] == "invalid"
    assert "the audit withholds it (littles-law)" in record["verdict"]["reason"]
    findings = (lab.root / "FINDINGS.md").read_text()
    assert "Confirmed" not in findings
    assert verify(lab.root).sound

    shown = lab.lab("audit", folder.name)
    assert shown.returncode == 3
    assert shown.stdout.splitlines()[1].startswith("FAIL  littles-law: width=8 breaks Little's law")
    assert "of 8 that there were" in shown.stdout

    refused = lab.lab("ledger", "waive", folder.name, "above-roofline", "--reason", "no")
    assert refused.returncode == 2
    assert "it has: littles-law" in refused.stderr
    reason = "the step time is of another window: the harness was changed since"
    assert lab.lab("ledger", "waive", folder.name, "littles-law", "--reason", reason).returncode == 0
    findings = (lab.root / "FINDINGS.md").read_text()
    assert reason in findings
    assert "confirmed" in findings.lower()
    again = lab.lab("audit", folder.name)
    assert again.returncode == 0
    assert f"waived: littles-law: {reason}" in again.stdout


def test_the_audit_is_made_again_when_a_detector_or_the_run_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(make_lab(tmp_path), 5.0)
    found = run_audit(folder)
    written = (folder / AUDIT).stat().st_mtime_ns
    assert run_audit(folder) == found
    assert (folder / AUDIT).stat().st_mtime_ns == written
    newer = found.stamps | {"littles-law": "5-0123456789"}
    for module in ("stored", "report"):
        monkeypatch.setattr(f"labkit.audit.{module}.stamps", lambda: newer)
    assert run_audit(folder).stamps == newer
    assert kept(folder).stamps == newer
    with (folder / "measurements.csv").open("a") as file:
        file.write('9,99,"{""width"":8}",step_ms,1000.0,2026-12-01T00:17:00Z\n')
    assert run_audit(folder).failed == ("littles-law",)
    assert exit_code(read_record(folder), folder) == 3


def test_a_damaged_audit_is_made_again_and_looking_writes_nothing(tmp_path: Path) -> None:
    folder = make_run(make_lab(tmp_path), 5.0)
    assert run_audit(folder, store=False).failed == ()
    assert not (folder / AUDIT).exists()
    (folder / AUDIT).write_text('{"schema_version": 1, "audit": ')
    assert exit_code(read_record(folder), folder) == 0
    run_audit(folder)
    assert kept(folder).kind == "run"
