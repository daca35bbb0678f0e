"""The lab: the repository an experiment is run in, with its data, its ledgers and its runs."""

import atexit
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.capture import capture_git, capture_host, capture_packages, capture_shaders
from labkit.lab.folder import PARTIAL, close_dead_runs, new_run_id, runs_folder
from labkit.lab.lock import device_lock
from labkit.lab.record import RunRecord, plain_value, read_record, utc_now
from labkit.lab.redact import Redactor
from labkit.lab.run import Run, attach

if TYPE_CHECKING:
    from labkit.lab.entries import Book

MARKER = "lab.toml"
EXPERIMENT_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_open_runs: dict[tuple[Path, str], Run] = {}  # this process's runs, by lab and experiment


class StoredRun(NamedTuple):
    """A run on the disk: its record and the folder it is in."""

    record: RunRecord
    folder: Path

    def __repr__(self) -> str:
        verdict = f", {self.record.verdict.get('outcome', '')}" if self.record.verdict else ""
        return f"<StoredRun {self.record.id}: {self.record.state}{verdict}>"

    def _repr_html_(self) -> str:
        from labkit.lab.run_html import run_html

        return run_html(self.record)


class Lab:
    """A lab repository. `Lab()` finds it: the environment's LABKIT_LAB, else the nearest folder upward from the
    working folder that holds `FINDINGS.md` beside `labkit/` or `lab.toml` (which `lab init` writes). LabError when there
    is none; nothing is created."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = find_root(root)

    def run(self, experiment: str, parameters: Mapping[str, Any] | None = None, *, name: str | None = None) -> Run:
        """The run this notebook is: the one `lab run` started it for, else a new one by hand, exploratory until it
        is given a plan. Calling it again under `lab run` gives the same run; by hand it closes the one before."""
        experiment = experiment_name(experiment)
        key = (self.root, experiment)
        wait = os.environ.get("LABKIT_NO_WAIT") != "1"
        partial = os.environ.get("LABKIT_RUN")
        known = _open_runs.get(key)
        if partial:
            if known is None:
                known = _open_runs[key] = attach(self, Path(partial), experiment, parameters, wait)
            return known
        if known is not None:
            known.close()
        record = self.new_record(experiment, dict(parameters or {}), name=name, interactive=True)
        run = _open_runs[key] = Run(self, record, None, wait)
        atexit.register(run.close)
        return run

    def new_record(
        self, experiment: str, parameters: Mapping[str, Any], *, name: str | None = None, **fields: Any
    ) -> RunRecord:
        """The first record of a run that starts now, with what the system tells: host, code, packages, shaders."""
        from labkit.vulkan.compile import shader_root

        redactor = Redactor()
        return RunRecord(
            id=new_run_id(experiment),
            experiment=experiment,
            name=redactor.text(name) if name else None,
            state="running",
            started=utc_now(),
            parameters=redactor.value(plain_value(parameters)),
            host=capture_host(),
            git=capture_git(self.root),
            packages=capture_packages(),
            shaders=capture_shaders(shader_root()),
            **fields,
        )

    def runs(self, experiment: str | None = None, state: str | None = None) -> "RunList":
        """The lab's runs, newest first, those still running included. Runs whose process died are closed first."""
        close_dead_runs(self.root)
        wanted = experiment_name(experiment) if experiment else None
        found: dict[str, StoredRun] = {}
        damaged = []
        for path in sorted(runs_folder(self.root).glob("*/run.json")):
            folder = path.parent
            if folder.name.startswith(".") and not folder.name.startswith(PARTIAL):
                continue
            try:
                run = read_listed(folder)
            except RunError as error:
                damaged.append(str(error))
                continue
            if run and wanted in (None, run.record.experiment) and state in (None, run.record.state):
                found[run.record.id] = run
        return RunList([found[name] for name in sorted(found, reverse=True)], damaged)

    def find_run(self, run_id: str) -> StoredRun:
        """The run called `run_id`, or the only one whose id starts or ends so. RunError when none or several match."""
        runs = self.runs()
        exact = [run for run in runs if run.record.id == run_id]
        near = exact or [run for run in runs if run.record.id.startswith(run_id) or run.record.id.endswith(run_id)]
        if len(near) == 1:
            return near[0]
        if near:
            names = ", ".join(run.record.id for run in near[:5])
            raise RunError(f"{run_id!r} fits {len(near)} runs ({names}); give more of the id")
        if (runs_folder(self.root) / run_id / "run.json").is_file():
            read_record(runs_folder(self.root) / run_id)  # raises, and says what is damaged
        raise RunError(f"there is no run {run_id!r} in {runs_folder(self.root)}; `lab runs` lists them")

    def ledger(self) -> "Book":
        """What the ledgers hold: the entries by scope, looks and what no longer holds too; it shows itself as a table."""
        from labkit.lab.entries import read_book
        from labkit.lab.events import read_events

        return read_book(read_events(self.root))

    def device_lock(self, device_uuid: str, label: str, wait: bool = True) -> AbstractContextManager[None]:
        """Holds a device for a timed run, `with lab.device_lock(uuid, "by hand"): ...`; one at a time on a machine.

        Waits for the holder, or with `wait=False` raises RunError that names it."""
        return device_lock(device_uuid, label, wait=wait, waiting=print)

    def __repr__(self) -> str:
        return f"Lab({str(self.root)!r})"

    def _repr_html_(self) -> str:
        from labkit.show.pieces import facts_table

        runs = self.runs()
        last = f"{runs[0].record.id} ({runs[0].record.state})" if runs else "none yet"
        held = self.ledger()
        return facts_table({"runs": len(runs), "last": last, "entries that hold": len(held.live)}, self.root.name)


class RunList(list[StoredRun]):
    """Runs as a list that shows itself as a table; `damaged` says of each record that cannot be read why."""

    def __init__(self, runs: Iterable[StoredRun] = (), damaged: Iterable[str] = ()) -> None:
        super().__init__(runs)
        self.damaged = tuple(damaged)

    COLUMNS = ("id", "experiment", "state", "verdict", "device")

    def rows(self) -> list[tuple[str, ...]]:
        """One row a run: id, experiment, state, verdict, device."""
        return [
            (
                record.id,
                record.experiment,
                record.state,
                str((record.verdict or {}).get("outcome", "")),
                str((record.device or {}).get("name", "")),
            )
            for record, _ in self
        ]

    def __repr__(self) -> str:
        if not self:
            return "no runs yet; start one with `lab run`"
        rows = [self.COLUMNS, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.COLUMNS))]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        from labkit.show.pieces import mark, table

        rows = (
            (id, experiment, mark(state), verdict and mark(verdict), device)
            for id, experiment, state, verdict, device in self.rows()
        )
        return table(self.COLUMNS, rows)


def read_listed(folder: Path) -> StoredRun | None:
    """A run that was listed a moment ago; it may have been closed, and so renamed, or discarded since (None)."""
    for place in (folder, folder.with_name(folder.name.removeprefix(PARTIAL))):
        try:
            return StoredRun(read_record(place), place)
        except RunError:
            if place.is_dir():
                raise
    return None


def find_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The lab's folder. LabError that says where was looked when there is none."""
    named = root if root is not None else os.environ.get("LABKIT_LAB")
    if named:
        path = Path(named).expanduser().resolve()
        if is_lab(path):
            return path
        raise LabError(
            f"{path} is not a lab: it has no FINDINGS.md beside labkit/ or {MARKER}; check LABKIT_LAB or the path given"
        )
    here = Path.cwd()
    for path in (here, *here.parents):
        if is_lab(path):
            return path
    raise LabError(
        f"no lab at {here} or above it (a folder with FINDINGS.md beside labkit/ or {MARKER}); go into one, set "
        "LABKIT_LAB, or make one: `lab init DIR`"
    )


def is_lab(path: Path) -> bool:
    """Whether `path` holds a lab: labkit's own repository, or one that `lab init` made."""
    return (path / "FINDINGS.md").is_file() and ((path / "labkit").is_dir() or (path / MARKER).is_file())


def experiment_name(text: str) -> str:
    """An experiment's name in its one spelling: `batch_decode` is `batch-decode`. ParameterError for other signs."""
    name = text.strip().lower().replace("_", "-")
    if not EXPERIMENT_NAME.fullmatch(name):
        raise ParameterError(f"{text!r} is not an experiment's name; use letters, digits and hyphens, as batch-decode")
    return name
