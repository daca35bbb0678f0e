"""A throwaway lab for tests: fixture notebooks in a folder, `lab` as a real process, and a way to watch and kill it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
NOTEBOOKS = SOURCE / "tests" / "data" / "notebooks"
KEEP_IT_SHORT = ("--no-ledger", "--no-page")


class ThrowawayLab:
    """A lab in `root` with the fixture notebooks, used through its command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "labkit").mkdir(parents=True)
        (root / "notebooks").mkdir()
        (root / "FINDINGS.md").write_text("# Findings\n")
        for notebook in NOTEBOOKS.glob("*.ipynb"):
            shutil.copy(notebook, root / "notebooks")
        (root / "runtime").mkdir()
        self.environment = dict(os.environ) | {
            "LABKIT_LAB": str(root),
            "PYTHONPATH": os.pathsep.join([str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "XDG_RUNTIME_DIR": str(root / "runtime"),
        }

    @property
    def runs(self) -> Path:
        return self.root / "data" / "runs"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "labkit.cli", *arguments]

    def lab(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """`lab ...` to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`lab run ...` to its end, without ledger and page."""
        return self.lab("run", *arguments, *KEEP_IT_SHORT)

    def start(self, *arguments: str) -> "Started":
        """`lab run ...` as a process to watch and to kill."""
        process = subprocess.Popen(
            self.command("run", *arguments, *KEEP_IT_SHORT),
            env=self.environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return Started(self, process)

    def folders(self) -> list[Path]:
        """The final run folders, oldest first."""
        return sorted(path for path in self.runs.glob("*") if not path.name.startswith("."))

    def partials(self) -> list[Path]:
        return sorted(self.runs.glob(".*"))

    def only_run(self) -> tuple[dict[str, Any], Path]:
        """The record and the folder of the one run there is; nothing may lie beside it."""
        assert self.partials() == []
        (folder,) = self.folders()
        return read(folder / "run.json"), folder


class Started:
    """A running `lab run`, with the processes it started."""

    def __init__(self, lab: ThrowawayLab, process: "subprocess.Popen[str]") -> None:
        self.lab = lab
        self.process = process
        self.heartbeat: dict[str, Any] = {}

    def wait_for(self, text: str, saved: bool = False) -> "Started":
        """Waits until a cell of the partial run has printed `text` (and, if `saved`, the autosaved notebook has it);
        its heartbeat is kept."""

        def shows() -> bool:
            for folder in self.lab.runs.glob(".partial-*"):
                shown = printed(folder / "notebook.ipynb") if saved else (folder / "log.txt").read_text()
                if text in shown:
                    self.heartbeat = read(folder / "heartbeat.json")
                    return True
            assert self.process.poll() is None, self.process.communicate()
            return False

        eventually(shows, 30)
        return self

    def kill(self, who: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to "lab" (the command), "runner" or "kernel"."""
        os.kill(self.process.pid if who == "lab" else self.heartbeat[f"{who}_pid"], number)

    def end(self, within_s: float = 15) -> tuple[int, str]:
        """The exit code and stderr, once it has ended."""
        _, errors = self.process.communicate(timeout=within_s)
        return self.process.returncode, errors

    def assert_nothing_survives(self) -> None:
        for who in ("runner", "kernel"):
            pid = self.heartbeat[f"{who}_pid"]
            eventually(lambda pid=pid: not alive(pid), 5)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def printed(notebook: Path) -> str:
    """Everything the cells of a saved notebook printed, errors included; empty while there is none."""
    if not notebook.exists():
        return ""
    outputs = [output for cell in read(notebook)["cells"] for output in cell.get("outputs", [])]
    return "".join(
        "".join(output["text"])
        if output["output_type"] == "stream"
        else f"{output.get('ename')}: {output.get('evalue')}\n"
        for output in outputs
    )


def cell_states(folder: Path) -> list[str]:
    """The state of each code cell in the executed notebook."""
    cells = read(folder / "notebook.ipynb")["cells"]
    return [cell["metadata"]["lab"]["state"] for cell in cells if cell["cell_type"] == "code"]
