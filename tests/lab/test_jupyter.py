"""`lab notebook`: JupyterLab on this lab with this Python as its kernel, labkit's magics loaded, and nobody asked for news."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from labkit.cli import lab as lab_command
from labkit.errors import LabError
from labkit.lab import jupyter
from labkit.lab.init import make_lab
from labkit.lab.new import make_experiment


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "my lab")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    monkeypatch.setattr(jupyter, "jupyter_home", lambda: tmp_path / "home")
    return root


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What would have been started, in place of starting it."""
    seen: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _, words, environment: seen.append((words, environment)))
    return seen


def test_it_opens_this_labs_notebooks_with_this_python(mine: Path, started: list[Any]) -> None:
    assert call("notebook", "--no-browser", "--port", "8899", "--debug").exit_code == 0
    ((words, environment),) = started
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {f"--ServerApp.root_dir={mine}", "--no-browser", "--port=8899", "--debug"} <= set(words)
    assert "--LabApp.default_url=/lab/tree/notebooks" in words
    assert environment["LABKIT_LAB"] == str(mine)
    home = Path(environment["JUPYTER_PATH"].split(os.pathsep)[0])
    spec = json.loads((home / "kernels" / "python3" / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert "--ext=labkit" in spec["argv"]
    overrides = json.loads((home / "settings" / "overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_it_opens_at_the_notebook_of_an_experiment(mine: Path, started: list[Any]) -> None:
    make_experiment(mine, "my-question")
    assert call("notebook", "my_question", "--no-browser").exit_code == 0
    assert call("notebook", str(mine / "notebooks" / "template.ipynb")).exit_code == 0
    urls = [word for words, _ in started for word in words if "default_url" in word]
    assert urls == [f"--LabApp.default_url=/lab/tree/notebooks/{name}.ipynb" for name in ("my_question", "template")]


def test_what_it_cannot_open_is_one_line(mine: Path, tmp_path: Path, started: list[Any]) -> None:
    (tmp_path / "elsewhere.ipynb").touch()
    for name, said in (("nothing", "there is no experiment 'nothing'"), (str(tmp_path / "elsewhere.ipynb"), "outside")):
        done = call("notebook", name)
        assert isinstance(done.exception, LabError)
        assert said in str(done.exception)
        assert "\n" not in str(done.exception)
    assert started == []


def test_jupyterlab_starts_with_this_kernel_and_fetches_no_news(mine: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
    }
    environment |= {"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "HOME": str(tmp_path)}
    log = tmp_path / "log"
    command = [sys.executable, "-m", "labkit", "notebook", "--no-browser", "--port", str(port)]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--IdentityProvider.token=key"], env=environment, stdout=file, stderr=file, cwd=mine,
            start_new_session=True,
        )  # fmt: skip

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?token=key", timeout=20) as answer:
            return json.load(answer)

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                known = get("/api/kernelspecs")
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        spec = known["kernelspecs"][known["default"]]["spec"]
        assert (spec["display_name"], spec["argv"][0]) == ("Python 3 (labkit)", sys.executable)
        settings = get("/lab/api/settings/@jupyterlab/apputils-extension:notification")
        assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"
        assert "template.ipynb" in {one["name"] for one in get("/api/contents/notebooks")["content"]}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
