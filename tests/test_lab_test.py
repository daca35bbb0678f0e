"""`lab test`: what it starts, which tests it leaves to a second process, and with which exit code it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.commands import test as test_command
from labkit.diagnosis import Listing, listing
from labkit.errors import DeviceError
from labkit.vulkan import mesa26

ROOT = Path(__file__).parents[1]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ((), ["-m", "not gpu"]),
        (("-m", "quick"), ["-m", "not gpu and (quick)"]),
        (("-mslow or quick", "-k", "gguf"), ["-m", "not gpu and (slow or quick)", "-k", "gguf"]),
        (("tests/vulkan", "-x"), ["-m", "not gpu", "tests/vulkan", "-x"]),
    ],
    ids=["none", "marker", "joined", "paths"],
)
def test_without_a_gpu_its_tests_are_left_out_and_the_arguments_kept(given: tuple[str, ...], passed: list[str]):
    assert test_command.without_gpu(given) == passed


@pytest.mark.quick
@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
def test_with_cooperative_matrices_one_pytest_is_started_from_the_repository(monkeypatch, gpu: bool):
    started: list[list[str]] = []
    kind = "discrete" if gpu else "cpu"
    monkeypatch.setattr(listing, "list_apart", lambda: Listing([{"usable": True, "type": kind}]))
    monkeypatch.setattr(test_command, "has_coopmat", lambda devices: True)
    monkeypatch.setattr(os, "execv", lambda path, words: started.append(words))
    monkeypatch.setattr(os, "chdir", lambda folder: started.append([str(folder)]))
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(test_command, "_in_two", lambda words: 0)
    CliRunner().invoke(test_command.command, ["-m", "quick"], catch_exceptions=False)
    where, words = started
    assert where == [str(ROOT)]
    expression = "quick" if gpu else "not gpu and (quick)"
    assert words == [sys.executable, "-m", "pytest", "-m", expression]
    assert os.environ == ({} if gpu else {"LABKIT_DEVICE": "cpu"})


PLAIN = "def test_plain():\n    assert {plain}\n"
MATRIX = "def test_of_a_matrix(coopmat_device):\n    assert {matrix}\n"
# stands for the fixture: what the device has is told by the process that is started
FIXTURE = """

@pytest.fixture
def coopmat_device():
    if os.environ.get("STAND_IN") != "26":
        pytest.skip(f"none here: {os.environ.get(WHY_NOT)}")
"""


class StandIn:
    """Mesa 26, played by this Python with a variable set."""

    version = "26.1"

    def __init__(self, trouble: str | None = None) -> None:
        self._trouble = trouble

    def trouble(self) -> str | None:
        return self._trouble

    def start(self, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, *arguments], {**os.environ, "STAND_IN": "26"}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a small suite whose tests end as told, with the hooks of ours, and runs it in two: (exit code, output)."""
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv(test_command.APART, raising=False)
    monkeypatch.delenv(test_command.WHY_NOT, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q --strict-markers\nmarkers = coopmat: x\n gpu: x\n")
    (tmp_path / "conftest.py").write_text(conftest.replace("def coopmat_device(", "def replaced(") + FIXTURE)

    def run(capfd, words: list[str], plain: bool = True, matrix: bool = True, only: str = "") -> tuple[int, str]:
        if only != "matrix":
            (tmp_path / "test_plain.py").write_text(PLAIN.format(plain=plain))
        if only != "plain":
            (tmp_path / "test_matrix.py").write_text(MATRIX.format(matrix=matrix))
        code = test_command._in_two(words)
        seen = capfd.readouterr()
        return code, seen.out + seen.err

    return run


@pytest.fixture
def mesa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesa26, "fetch", lambda say: StandIn())


@pytest.mark.parametrize(("plain", "matrix", "code"), [(True, True, 0), (False, True, 1), (True, False, 1)])
def test_the_tests_of_matrices_run_apart_and_either_half_can_fail_the_whole(suite, mesa, capfd, plain, matrix, code):
    got, text = suite(capfd, [], plain, matrix)
    assert got == code, text
    assert "1 test of cooperative matrices, on the software driver of Mesa 26.1" in text
    assert text.count("1 deselected") == 1
    assert text.count("1 passed") == plain + matrix
    assert text.count("1 failed") == 2 - plain - matrix


def test_arguments_hold_for_both_halves_but_paths_for_the_choice_only(suite, mesa, capfd, tmp_path):
    code, text = suite(capfd, ["-k", "matrix", f"--junitxml={tmp_path / 'j.xml'}", str(tmp_path / "test_matrix.py")])
    assert code == 0, text  # nothing is left for the first process, and the second passes
    assert "1 passed" in text
    assert 'tests="1"' in (tmp_path / "j-coopmat.xml").read_text()


def test_without_tests_of_matrices_nothing_is_fetched(suite, capfd, monkeypatch):
    monkeypatch.setattr(mesa26, "fetch", lambda say: pytest.fail("fetched for nothing"))
    assert suite(capfd, ["-m", "not coopmat"])[0] == 0
    assert suite(capfd, ["-x"], plain=False)[0] == 1  # -x: a failure ends the whole
    assert suite(capfd, ["-k", "nothing_of_this_name"])[0] == test_command.NOTHING_RAN


@pytest.mark.parametrize("lack", ["network", "driver"])
def test_without_mesa_26_they_skip_and_say_why(suite, capfd, monkeypatch, lack):
    def fetch(say) -> StandIn:
        if lack == "network":
            raise DeviceError("Mesa 26 could not be fetched: no network")
        return StandIn("it does not start")

    monkeypatch.setattr(mesa26, "fetch", fetch)
    code, text = suite(capfd, [])
    assert code == 0, text
    assert "1 skipped" in text
    assert {"network": "none here: Mesa 26 could not be fetched", "driver": "none here: it does not start"}[
        lack
    ] in text


@pytest.mark.parametrize("red", [None, 0, 9])
def test_many_tests_of_matrices_run_in_several_processes_and_each_is_heard(
    suite, mesa, capfd, tmp_path, monkeypatch, red
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (tmp_path / "test_many.py").write_text(
        "import os, pytest\n@pytest.mark.parametrize('i', range(20))\ndef test_many(coopmat_device, i):\n"
        f"    assert os.environ['LP_NUM_THREADS'] == '1'\n    assert i != {red}\n"
    )
    code, text = suite(capfd, [f"--junitxml={tmp_path / 'j.xml'}"], only="plain")
    assert code == (0 if red is None else 1), text
    assert "20 tests of cooperative matrices, on the software driver of Mesa 26.1, 2 processes" in text
    assert text.count("10 passed") == (2 if red is None else 1)
    assert text.count("1 failed, 9 passed") == (0 if red is None else 1)
    assert all((tmp_path / f"j{part}.xml").is_file() for part in ("", "-coopmat-1", "-coopmat-2"))


@pytest.mark.quick
def test_the_exit_code_of_a_killed_half_is_a_shells(monkeypatch):
    program = "import os, signal; os.kill(os.getpid(), signal.{})"
    started = [subprocess.Popen([sys.executable, "-c", program.format(name)]) for name in ("SIGKILL", "SIGCHLD")]
    told: list[int] = []
    assert test_command._wait(started, told.append) == 128 + 9
    assert told == [0, 1]


@pytest.mark.quick
def test_sigterm_is_handed_on():
    program = (
        "import subprocess, sys; from labkit.commands.test import _wait;"
        "program = 'print(1, flush=True); import time; time.sleep(60)';"
        "sys.exit(_wait([subprocess.Popen([sys.executable, '-c', program])]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=30) == 128 + 15
    assert process.stdout.read() == b""  # the half holds the pipe until it has ended
    process.stdout.close()
