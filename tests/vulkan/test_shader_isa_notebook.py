"""notebooks/shader_isa.ipynb runs as it stands, and its record says what was compiled."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.lab.record import read_record
from labkit.vulkan import isa_null
from labkit.vulkan.isa_cases import Case, cases_of
from labkit.vulkan.isa_machines import device_like

ROOT = Path(__file__).resolve().parents[2]


def trouble(case: Case) -> str:
    """Why nothing can be compiled for a card that is not here; "" when it can."""
    try:
        (found,) = isa_null.compile_for("gfx1201", [case])
    except LabError as error:
        return str(error)
    return found.error


@pytest.mark.slow
def test_a_quick_run_leaves_a_record_with_checks_and_a_verdict(tmp_path: Path):
    if why := trouble(cases_of("read_stream", device_like("gfx1201"))[0]):
        pytest.skip(f"no code for cards that are not here: {why}")
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").touch()
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    environment = {**os.environ, "LABKIT_LAB": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "run", "shader-isa", "--quick", "--no-page", "-p", "kernel", "read_stream"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "data" / "runs").iterdir()
    record = read_record(folder)
    assert record.state == "completed"
    assert [check.passed for check in record.checks] == [True, True]
    assert record.device is not None
    assert record.device["name"].startswith("gfx1201")
    assert record.verdict["outcome"] in ("confirmed", "refuted", "inconclusive")
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert {row["constants"]["UNROLL"] for row in rows} == {1, 4}
    assert all(row["kernel"] == "read_stream" and not row["error"] for row in rows)
