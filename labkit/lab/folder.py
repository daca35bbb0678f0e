"""The life of a run's folder: made aside, renamed when final, taken up again, or closed for a process that died."""

import contextlib
import errno
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.lab.capture import sha256_file
from labkit.lab.lock import ProcessLock
from labkit.lab.record import (
    Cells,
    Resumption,
    RunRecord,
    State,
    exclusive,
    read_record,
    update_record,
    utc_now,
    write_atomic,
)

PARTIAL = ".partial-"
NEW = ".new-"
ALIVE = ".alive"  # locked by the process that runs the run
HEARTBEAT = "heartbeat.json"
PROGRESS = "progress.json"
NOTEBOOK = "notebook.ipynb"
ABANDONED_S = 600  # a folder is made in a moment; one that never got its name belongs to a process that died
LIVE_FILES = (ALIVE, ".write", HEARTBEAT, PROGRESS)
CAME_IN = "import.json"  # how a run from elsewhere came here
JUDGED_AGAIN = "audit.json"  # what the detectors of the day say, so no part of what the run left


def runs_folder(root: Path) -> Path:
    """Where the lab at `root` keeps its runs."""
    return root / "data" / "runs"


def new_run_id(experiment: str) -> str:
    """`<utc yyyymmddThhmmssZ>-<experiment>-<8 hex>`, not used before."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{experiment}-{secrets.token_hex(4)}"


class RunFolder:
    """A run's folder while this process owns it: `path` is the partial folder until `finalise` renames it."""

    def __init__(self, root: Path, run_id: str, path: Path, lock: ProcessLock) -> None:
        self.root = root
        self.run_id = run_id
        self.path = path
        self.lock = lock

    @classmethod
    def create(cls, root: Path, record: RunRecord) -> "RunFolder":
        """Makes `.partial-<id>`, locked by this process before anyone can see it, with its first `run.json`."""
        runs = runs_folder(root)
        runs.mkdir(parents=True, exist_ok=True)
        taken = RunError(f"there is a run called {record.id} already; start it again")
        if (runs / record.id).exists():
            raise taken
        aside = runs / f"{NEW}{record.id}"
        try:
            aside.mkdir()
        except FileExistsError:
            raise RunError(f"a run called {record.id} is being made already; start it again") from None
        lock = ProcessLock(aside / ALIVE)
        if not lock.acquire():
            raise RunError(f"{aside} is locked by another process; start the run again")
        write_atomic(aside / "run.json", record.to_json())
        (aside / "log.txt").touch()
        path = runs / f"{PARTIAL}{record.id}"
        try:
            aside.rename(path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            lock.release()
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise taken from None
            raise
        return cls(root, record.id, path, lock)

    @classmethod
    def reopen(cls, root: Path, run_id: str) -> "RunFolder":
        """Takes up a run that ended early: its folder becomes partial again, its data stay.

        RunError when there is no such run, it is still alive, or it was completed."""
        final = runs_folder(root) / run_id
        record = read_record(final)
        if record.state == "completed":
            raise RunError(f"{run_id} is complete; nothing is left to resume (`lab rerun {run_id}` repeats it)")
        lock = ProcessLock(final / ALIVE)
        if not lock.acquire():
            raise RunError(f"{run_id} is being resumed by another process")
        path = final.with_name(f"{PARTIAL}{run_id}")
        final.rename(path)
        update_record(
            path,
            lambda old: {
                "state": "running",
                "reason": "",
                "ended": None,
                "artefacts": {},
                "cells": None,
                "resumed": (*old.resumed, Resumption(utc=utc_now(), state=old.state, reason=old.reason)),
            },
        )
        return cls(root, run_id, path, lock)

    def update(self, **fields: Any) -> RunRecord:
        """Replaces fields of the record, safely against the notebook's own writes."""
        return update_record(self.path, lambda _: fields)

    def finalise(self, state: State, reason: str, **fields: Any) -> Path:
        """Closes the record with its final state and the hashes of its files, then renames the folder to the final
        path, which is returned.

        `measurements.csv` loses a torn last line, should the kernel have died while writing it."""
        with exclusive(self.path):  # whatever the kernel was writing is finished or gone
            drop_torn_line(self.path / "measurements.csv")
            drop_torn_line(self.path / "starts.csv")
            drop_torn_line(self.path / "requests.jsonl")
            for aside in self.path.glob(".*.*"):
                if aside.name not in LIVE_FILES:
                    aside.unlink()
        self.update(state=state, reason=reason, ended=utc_now(), artefacts=hash_artefacts(self.path), **fields)
        (self.path / HEARTBEAT).unlink(missing_ok=True)
        if state == "completed":  # of a run that ended early it is worth knowing how far it came
            (self.path / PROGRESS).unlink(missing_ok=True)
        final = runs_folder(self.root) / self.run_id
        self.path.rename(final)
        for name in (ALIVE, ".write"):  # only now: a partial folder without its lock would look dead to others
            (final / name).unlink(missing_ok=True)
        self.path = final
        self.lock.release()
        return final

    def discard(self) -> None:
        """Removes the folder: for a run that measured nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.lock.release()


def hash_artefacts(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of the run, by its path in the folder; `run.json`, live files and the audit left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    left_out = ("run.json", JUDGED_AGAIN, *LIVE_FILES)
    return {name: sha256_file(path) for name, path in names.items() if name not in left_out}


def drop_torn_line(path: Path) -> None:
    """Cuts a last line without its newline: the writer died in the middle of it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            file.truncate(whole)


def close_dead_runs(root: Path) -> list[Path]:
    """Closes as `killed` each partial run whose process is gone (its lock is free); the final folders.

    A kernel such a process left behind is stopped first."""
    closed = []
    runs = runs_folder(root)
    for path in sorted(runs.glob(f"{NEW}*")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
    for path in sorted(runs.glob(f"{PARTIAL}*")):
        lock = ProcessLock(path / ALIVE)
        try:
            if not lock.acquire():
                continue
        except FileNotFoundError:  # it was closed a moment ago
            continue
        heartbeat = read_json(path / HEARTBEAT)
        try:
            read_record(path)
        except RunError:  # nothing is known to close it by: it stays, and `Lab.runs` reports it
            lock.release()
            continue
        stop_leftovers(heartbeat)
        seen = f", last seen {heartbeat['utc']}" if "utc" in heartbeat else ""
        place = f" in cell {heartbeat['cell']} of {heartbeat['cells']}" if heartbeat.get("cell") else ""
        cells = count_cells(path / NOTEBOOK)
        folder = RunFolder(root, path.name.removeprefix(PARTIAL), path, lock)
        closed.append(folder.finalise("killed", f"the run's process was killed{place}{seen}", cells=cells))
    return closed


def stop_leftovers(heartbeat: Mapping[str, Any]) -> None:
    """Kills the kernel named in a dead run's heartbeat (checked by its start time) and removes its scratch folder."""
    pid, started = heartbeat.get("kernel_pid"), heartbeat.get("kernel_started")
    if isinstance(pid, int) and started is not None and process_start(pid) == started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the kernel leads its own process group
    scratch = heartbeat.get("scratch")
    if scratch and Path(scratch).name.startswith("lab-"):
        shutil.rmtree(scratch, ignore_errors=True)


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, or None when there is none: tells a reused pid apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def count_cells(notebook: Path) -> Cells | None:
    """What became of the code cells, from the states our engine left in the saved notebook."""
    document = read_json(notebook)
    if not document:
        return None
    states = [
        cell.get("metadata", {}).get("lab", {}).get("state", "not-run")
        for cell in document.get("cells", [])
        if cell.get("cell_type") == "code" and "".join(cell.get("source", "")).strip()
    ]
    executed, failed = states.count("executed"), states.count("failed")
    return Cells(total=len(states), executed=executed, failed=failed, not_run=len(states) - executed - failed)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an empty one when there is none yet."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
