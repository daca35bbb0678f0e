"""Starts a run in a process of its own, stays with it to the end, and closes its record if that process is killed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.experiments import Experiment, find_experiment
from labkit.lab.folder import CAME_IN, close_dead_runs, runs_folder
from labkit.lab.kernel import make_scratch, remove_scratch, with_labkit
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.parameters import set_parameters
from labkit.lab.record import IMPORTED, RunRecord, read_record
from labkit.lab.redact import SECRET
from labkit.lab.runner import Assignment


def run_experiment(
    lab: Lab,
    experiment: Experiment,
    overrides: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    cell_timeout_s: float | None = None,
    wait: bool = True,
    quiet: bool = False,
    made: Callable[[RunRecord], None] = lambda record: None,
    plan: Mapping[str, Any] | None = None,
    told: Mapping[str, Any] = MappingProxyType({}),
    started: Callable[[subprocess.Popen[bytes]], None] = lambda child: None,
) -> StoredRun:
    """Runs a notebook with `overrides` (values, not text) and returns the closed record and its folder. `made` is told of
    the record before anything is started, so that its name can be kept. `plan`, as JSON, is stored before the notebook
    begins: for one that states none. `told` are fields of the record that were decided elsewhere, as the id of a run that
    another machine asked for; `started` is given the run's process.

    RunError when the process could not even make the folder."""
    overrides = set_parameters(experiment.parameters, {}, overrides)
    parameters = experiment.defaults() | overrides
    quick = parameters.get("quick")
    record = lab.new_record(
        experiment.name,
        parameters,
        name=name,
        quick=quick if isinstance(quick, bool) else None,
        notebook=notebook_in_lab(lab.root, experiment.path),
        notebook_sha256=experiment.code_sha256(),
    )
    record = record.model_copy(update=dict(told))
    made(record)
    return start(
        lab, experiment, overrides, record, resume=False, wait=wait, quiet=quiet, plan=plan, started=started,
        timeout_s=timeout_s, cell_timeout_s=cell_timeout_s,
    )  # fmt: skip


def resume_run(
    lab: Lab,
    run_id: str,
    *,
    timeout_s: float | None = None,
    cell_timeout_s: float | None = None,
    wait: bool = True,
    quiet: bool = False,
) -> StoredRun:
    """Takes up a run that ended early, in its own folder, with its own parameters and the samples it has.

    RunError when it is complete, still running, from another lab, or its notebook's code has changed since."""
    record, folder = lab.find_run(run_id)
    if (folder / CAME_IN).exists():
        raise RunError(
            f"{record.id} was measured in another lab; its samples would be of two machines: start again with "
            f"`lab rerun {record.id}`"
        )
    if record.state in ("running", "completed"):
        raise RunError(f"{record.id} is {record.state}; only a run that ended early can be resumed")
    experiment = stored_experiment(lab, record)
    if experiment.code_sha256() != record.notebook_sha256:
        raise RunError(
            f"the code of {record.notebook} has changed since {record.id}; "
            f"its samples would not be alike: start again with `lab rerun {record.id}`"
        )
    return start(
        lab, experiment, stored_overrides(experiment, record), record, resume=True, wait=wait, quiet=quiet,
        timeout_s=timeout_s, cell_timeout_s=cell_timeout_s,
    )  # fmt: skip


def stored_experiment(lab: Lab, record: RunRecord) -> Experiment:
    """The notebook a stored run was made with. RunError when the run was made by hand or the notebook is gone."""
    if record.notebook is None:
        made = "imported from another tool's file" if record.experiment == IMPORTED else "made by hand in a notebook"
        raise RunError(f"{record.id} was {made}; there is no notebook to run again")
    path = lab.root / record.notebook
    return find_experiment(lab.root, str(path) if path.is_file() else record.experiment)


def stored_overrides(experiment: Experiment, record: RunRecord, replaced: Collection[str] = ()) -> dict[str, Any]:
    """The stored parameters that differ from the notebook's defaults, typed by them; nan and infinities come back.

    Those in `replaced` are left out, as are values the notebook itself added to its record. ParameterError for one
    that was redacted or no longer fits."""
    found = {}
    for name, value in record.parameters.items():
        parameter = experiment.parameters.get(name)
        if parameter is None or name in replaced:
            continue
        if SECRET in str(value):
            raise ParameterError(f"{record.id} does not hold parameter {name} as it was, but redacted; give it with -p")
        try:
            typed = parameter.from_value(at_home(value))
        except ParameterError as error:
            raise ParameterError(f"{record.id} cannot be repeated as it was: {error}") from None
        if repr(typed) != repr(parameter.default):
            found[name] = typed
    return found


def at_home(value: Any) -> Any:
    """A stored path with its home folder put back."""
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def notebook_in_lab(root: Path, path: Path) -> str:
    """The notebook's path inside the lab, or its bare name when it lies elsewhere."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def start(
    lab: Lab, experiment: Experiment, overrides: Mapping[str, Any], record: RunRecord, *, resume: bool,
    started: Callable[[subprocess.Popen[bytes]], None] = lambda child: None, **options: Any,
) -> StoredRun:  # fmt: skip
    """Starts the runner, passes signals on, waits for it, and closes the record if it was killed."""
    require_jupyter()
    close_dead_runs(lab.root)
    scratch = make_scratch()
    try:
        assignment = Assignment(
            root=lab.root,
            notebook=experiment.path,
            overrides=json.dumps(dict(overrides)),
            record=record,
            resume=resume,
            scratch=scratch,
            **options,
        )
        child = subprocess.Popen(
            [sys.executable, "-m", "labkit.lab.runner"],
            stdin=subprocess.PIPE,
            env=with_labkit(os.environ),
            start_new_session=True,  # a Ctrl-C reaches this process alone, which passes it on once
        )
        with passing_signals_to(child):
            started(child)
            assert child.stdin is not None
            try:
                child.stdin.write(assignment.model_dump_json(by_alias=True).encode())
                child.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once; what it left is looked at below
            child.wait()
        close_dead_runs(lab.root)
    finally:
        remove_scratch(scratch)
    folder = runs_folder(lab.root) / record.id
    if not folder.is_dir():
        raise RunError(f"the run could not start (its process ended with code {child.returncode}); see the lines above")
    return StoredRun(read_record(folder), folder)


def require_jupyter() -> None:
    """RunError when this Python lacks what runs a notebook: labkit alone does not need it."""
    lacking = [name for name in ("papermill", "nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
    if lacking:
        raise RunError(f"running a notebook needs {', '.join(lacking)}; install labkit with its extra: labkit[lab]")


@contextmanager
def passing_signals_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While inside, Ctrl-C and termination reach the runner as SIGTERM, so it closes its record; a third time kills.

    Whoever listened before is told too, so that a sweep knows it is over."""
    count = 0
    before: dict[int, Any] = {}

    def forward(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        if child.poll() is None:
            child.send_signal(signal.SIGTERM if count < 3 else signal.SIGKILL)
        listener = before.get(number)
        if callable(listener) and listener is not signal.default_int_handler:
            listener(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before |= {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
