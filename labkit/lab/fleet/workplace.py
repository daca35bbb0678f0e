"""What a worker does with its own lab: says what code it has, runs a point, hands over a run, stops one on request.

The functions at the end are what dask calls by name; they take and give plain values, and raise nothing.
"""

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.errors import LabError, RunError
from labkit.lab.archive import RUN_ID
from labkit.lab.driver import run_experiment
from labkit.lab.experiments import Experiment, find_experiment
from labkit.lab.export import export_run
from labkit.lab.fleet.code import Code, code_of, other_code, other_packages
from labkit.lab.folder import close_dead_runs, runs_folder
from labkit.lab.lab import Lab
from labkit.lab.record import Frozen
from labkit.lab.redact import Redactor
from labkit.lab.series import state_of

LOOK_S = 0.2


class Task(Frozen):
    """One point, as the home lab hands it over: the run's id, the notebook, what is set, and the code it must be."""

    run: str
    experiment: str
    notebook: str  # path inside the lab
    overrides: str  # JSON with Python's nan and infinities
    name: str
    code: Code
    allow_difference: bool = False
    timeout_s: float | None = None
    cell_timeout_s: float | None = None
    wait: bool = True


class Workplace:
    """A worker's lab, and the runs that are under way in it. `device` is what LABKIT_DEVICE says there."""

    def __init__(self, lab: Lab, name: str, device: str | None) -> None:
        self.lab, self.device = lab, device
        self.name = Redactor().text(name)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: set[str] = set()
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def experiment(self, name: str, notebook: str) -> Experiment:
        """The notebook at the same place as at home, else the one of that name."""
        path = self.lab.root / notebook
        inside = path.is_file() and path.resolve().is_relative_to(self.lab.root)
        return find_experiment(self.lab.root, str(path) if inside else name)

    def describe(self, name: str, notebook: str) -> dict[str, Any]:
        """What the home lab asks first: who this is, with which code of the experiment."""
        return {
            "name": self.name,
            "device": self.device,
            "code": code_of(self.experiment(name, notebook)).model_dump(),
        }

    def state(self, run: str) -> str:
        """The state of a run in this lab: `missing` where there is none, `running` also while it is only begun."""
        close_dead_runs(self.lab.root)
        known = state_of(self.lab.root, run)
        return "running" if known == "missing" and run in self._busy else known

    def perform(self, task: Task) -> dict[str, Any]:
        """Runs a point, once: a run of that id that is here is handed over as it is. LabError where it cannot be run."""
        with self._lock:
            self._busy.add(task.run)
        try:
            while (known := state_of(self.lab.root, task.run)) == "running":  # of a home lab that went away meanwhile
                close_dead_runs(self.lab.root)
                time.sleep(LOOK_S)
            if known == "missing":
                self._run(task)
            return self.hand_over(task.run)
        finally:
            with self._lock:
                self._busy.discard(task.run)
                self._children.pop(task.run, None)

    def _run(self, task: Task) -> None:
        experiment = self.experiment(task.experiment, task.notebook)
        code = code_of(experiment)
        differs = other_code(task.code, code)
        if differs and not task.allow_difference:
            raise RunError(f"it has other code: {'; '.join(differs)}")
        if task.run in self._stopped:
            raise RunError("it was stopped before it began")
        notes = [f"worker: {self.name}{f', device {self.device}' if self.device else ''}"]
        notes += [f"code differs from the home lab's: {what}" for what in (*differs, *other_packages(task.code, code))]
        run_experiment(
            self.lab, experiment, json.loads(task.overrides), name=task.name, timeout_s=task.timeout_s,
            cell_timeout_s=task.cell_timeout_s, wait=task.wait, quiet=not sys.stderr.isatty(),
            told={"id": task.run, "notes": tuple(notes)}, started=lambda child: self._started(task.run, child),
        )  # fmt: skip

    def _started(self, run: str, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._children[run] = child
            stopped = run in self._stopped
        if stopped:
            child.send_signal(signal.SIGTERM)

    def hand_over(self, run: str) -> dict[str, Any]:
        """A final run as an archive, with the archive's SHA-256. RunError where it is not final or cannot be packed."""
        if not RUN_ID.fullmatch(run):
            raise RunError(f"{run[:80]!r} is not the id of a run")
        with tempfile.TemporaryDirectory(prefix="lab-") as folder:
            path = export_run(runs_folder(self.lab.root) / run, Path(folder) / "run.zip").path
            archive = path.read_bytes()
        return {"run": run, "worker": self.name, "archive": archive, "sha256": hashlib.sha256(archive).hexdigest()}

    def stop(self, run: str | None = None) -> bool:
        """Asks a run (all of them, without one) to stop and close its record; one that has not begun never does.
        Whether any was."""
        with self._lock:
            wanted = {*self._busy} if run is None else {run}
            self._stopped |= wanted
            begun = bool(wanted & self._busy)
            found = [child for name, child in self._children.items() if name in wanted]
        for child in found:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        return begun

    @property
    def busy(self) -> list[str]:
        """The runs under way, and those being packed."""
        with self._lock:
            return sorted(self._busy)


_here: Workplace | None = None


def take_place(workplace: Workplace) -> None:
    """Makes `workplace` the one of this process: `lab worker` calls it, and dask's calls find it."""
    global _here
    _here = workplace


def answered(do: Callable[[Workplace], Any]) -> dict[str, Any]:
    """`{"answer": ...}`, or `{"error": one line}`: nothing raised travels, so nothing of it need be known elsewhere."""
    try:
        if _here is None:
            raise RunError("it is a plain dask worker; start it with `lab worker`")
        return {"answer": do(_here)}
    except LabError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"the worker failed: {type(error).__name__}: {' '.join(str(error).split())}"}


def perform(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a point: what dask hands to the worker's one thread."""
    return answered(lambda here: here.perform(Task.model_validate(task)))


async def describe(name: str, notebook: str) -> dict[str, Any]:
    """Who the worker is and what code it has."""
    return await asyncio.to_thread(answered, lambda here: here.describe(name, notebook))


async def states(runs: list[str]) -> dict[str, Any]:
    """The state of each of `runs` in the worker's lab."""
    return await asyncio.to_thread(answered, lambda here: {run: here.state(run) for run in runs})


async def hand_over(run: str) -> dict[str, Any]:
    """A run that has ended in the worker's lab, beside whatever it runs now."""
    return await asyncio.to_thread(answered, lambda here: here.hand_over(run))


async def stop(run: str) -> dict[str, Any]:
    """Asks a run to stop; whether it was under way."""
    return answered(lambda here: here.stop(run))
