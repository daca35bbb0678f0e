"""`lab doctor` and `lab notebook`: what they report, what they start, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit import diagnosis
from labkit.commands import doctor, notebook
from labkit.diagnosis import Finding, listing
from labkit.errors import LabError
from labkit.lab import jupyter


def report(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """Make the doctor find these."""
    monkeypatch.setattr(diagnosis, "examine", lambda: {"Vulkan": list(findings)})


@pytest.mark.quick
def test_something_missing_ends_in_exit_code_2_with_the_remedy_below_it(monkeypatch):
    report(monkeypatch, Finding("loader", "ok", "libvulkan.so.1"), Finding("drivers", "missing", "none", "install one"))
    done = CliRunner().invoke(doctor.command, [])
    assert done.exit_code == 2
    assert "✗ drivers: none\n      → install one" in done.output
    assert "1 thing missing" in done.output


@pytest.mark.quick
def test_notes_alone_do_not_stop_a_run_and_json_says_the_same(monkeypatch):
    report(monkeypatch, Finding("Chrome", "note", "none found", "only for PNG files", {"a": 1}))
    assert CliRunner().invoke(doctor.command, []).exit_code == 0
    done = CliRunner().invoke(doctor.command, ["--json"])
    assert done.exit_code == 0
    answer = json.loads(done.output)
    assert answer["can_run"] is True
    assert answer["checks"]["Vulkan"][0] == {
        "name": "Chrome",
        "state": "note",
        "found": "none found",
        "remedy": "only for PNG files",
        "facts": {"a": 1},
    }


def test_this_machine_passes_and_every_kind_of_thing_is_looked_at():
    done = subprocess.run(
        [sys.executable, "-m", "labkit.cli", "doctor", "--json"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert {
        "Vulkan",
        "Devices",
        "Access",
        "Features",
        "Shaders",
        "Python",
        "Jupyter",
        "Pictures",
        "Models",
        "Lab",
    } == set(checks)
    first = checks["Devices"][0]["facts"]
    assert first["usable"] is True
    assert {"type", "driver_name", "api_version"} <= set(first)


@pytest.mark.quick
def test_a_check_that_breaks_becomes_a_finding(monkeypatch):
    def broken(machine: diagnosis.Machine) -> list[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(diagnosis, "_checks", {"Broken": broken})
    (found,) = diagnosis.examine()["Broken"]
    assert (found.state, found.found) == ("missing", "the check itself failed: RuntimeError: boom")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.abort()", "crashed with SIGABRT"),
        ("import time; time.sleep(60)", "did not end within"),
        ("raise ValueError('odd')", "failed: ValueError: odd"),
        ('print(\'{"trouble": "no loader"}\')', "no loader"),
    ],
    ids=["crash", "hang", "error", "no-loader"],
)
def test_a_driver_that_breaks_the_listing_is_a_finding(monkeypatch, program: str, said: str):
    monkeypatch.setattr(listing, "_PROGRAM", program)
    monkeypatch.setattr(listing, "TIMEOUT_S", 2)
    found = listing.list_apart()
    assert found.devices == []
    assert said in found.trouble


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab whose Jupyter folder is thrown away."""
    (tmp_path / "labkit").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "FINDINGS.md").touch()
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.quick
def test_the_lab_opens_at_its_notebooks_with_this_python_and_without_the_news(opened: Path, monkeypatch):
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, environ: calls.append((words, environ)))
    done = CliRunner().invoke(notebook.command, ["--no-browser", "--port", "8899", "--ServerApp.ip=::1"])
    assert done.exit_code == 0, done.output
    ((words, environ),) = calls
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {f"--ServerApp.root_dir={opened}", "--no-browser", "--port=8899", "--ServerApp.ip=::1"} <= set(words)
    assert "--LabApp.default_url=/lab/tree/notebooks" in words
    assert environ["LABKIT_LAB"] == str(opened)
    home = Path(environ["JUPYTER_PATH"].split(os.pathsep)[0])
    spec = json.loads((home / "kernels/python3/kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    (settings,) = [word.partition("=")[2] for word in words if word.startswith("--LabApp.app_settings_dir")]
    overrides = json.loads((Path(settings) / "overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


@pytest.mark.quick
def test_without_jupyterlab_it_says_how_to_get_it(opened: Path, monkeypatch):
    monkeypatch.setattr(jupyter.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LabError, match=r"JupyterLab is not installed.*\./lab notebook"):
        jupyter.open_lab(opened, browser=False, port=None, extra=())


def test_jupyterlab_itself_finds_the_kernel_and_the_settings(opened: Path):
    home = jupyter.register_kernel(jupyter.jupyter_home())
    program = (
        "from jupyter_client.kernelspec import KernelSpecManager as K; print(K().get_kernel_spec('python3').argv[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=jupyter.environment(opened, home), capture_output=True, text=True
    )
    assert done.stdout.strip() == sys.executable, done.stderr
