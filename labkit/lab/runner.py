"""The process of one run, `python -m labkit.lab.runner`: takes an assignment on stdin, leaves a final run folder."""

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from labkit.errors import LabError
from labkit.lab.experiments import load_experiment
from labkit.lab.folder import RunFolder
from labkit.lab.judging import judged_fields
from labkit.lab.kernel import KERNEL_NAME, install_kernel, remove_scratch, with_labkit
from labkit.lab.plan import store_plan
from labkit.lab.record import EXIT_CODES, RunRecord
from labkit.lab.redact import Redactor
from labkit.lab.reporter import Reporter, RunLog


class Assignment(BaseModel):
    """What the driver hands its runner: which notebook, with which parameters, into which run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    root: Path
    notebook: Path
    overrides: str  # JSON with Python's nan and infinities, so that they arrive as what they are
    record: RunRecord
    plan: dict[str, Any] | None = None  # to be stored before the notebook begins
    resume: bool = False
    cell_timeout_s: float | None = None
    timeout_s: float | None = None
    wait: bool = True
    quiet: bool = False
    scratch: Path


def main() -> int:
    """Runs the assignment on stdin; the exit code tells the state (see `EXIT_CODES`)."""
    assignment = Assignment.model_validate_json(sys.stdin.read())
    sys.stdin.close()
    try:
        return EXIT_CODES[perform(assignment)]
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # no room, no permission: there is nowhere to keep a record
        print(f"lab: cannot write the run: {error}", file=sys.stderr)
        return LabError.exit_code
    finally:
        remove_scratch(assignment.scratch)  # the driver does so too, unless it was killed


def perform(assignment: Assignment) -> str:
    """Makes the folder, runs the notebook, judges and closes the record; the final state."""
    experiment = load_experiment(assignment.notebook)
    jupyter = install_kernel(assignment.scratch)
    os.environ.update(jupyter)
    from labkit.lab.execution import Execution, Limits, Outcome

    if assignment.resume:
        folder = RunFolder.reopen(assignment.root, assignment.record.id)
    else:
        folder = RunFolder.create(assignment.root, assignment.record)
        if assignment.plan is not None:
            folder.update(**store_plan(folder.path, assignment.plan))
    redactor = Redactor()
    log = RunLog(folder.path / "log.txt", redactor)
    document = experiment.document
    overrides = json.loads(assignment.overrides)
    reporter = Reporter(quiet=assignment.quiet)
    environment = with_labkit(os.environ) | {
        "LABKIT_LAB": str(assignment.root),
        "LABKIT_RUN": str(folder.path),
        "LABKIT_NO_WAIT": "0" if assignment.wait else "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    execution = Execution(
        folder=folder,
        scratch=assignment.scratch,
        working_folder=assignment.notebook.parent,
        environment=environment,
        limits=Limits(cell_s=assignment.cell_timeout_s, run_s=assignment.timeout_s),
        reporter=reporter,
        log=log,
    )
    reporter.say(f"run {assignment.record.id}")
    try:
        execute(document, overrides, execution)
    except Exception as error:  # a fault of ours must still leave a closed record
        execution.outcome = Outcome("crashed", f"the runner failed: {type(error).__name__}: {error}")
        log.line("run", execution.outcome.reason)
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sent, signal.SIG_IGN)  # the record is closed in a moment, whoever is in a hurry
    return close(folder, execution)


def execute(document: Any, overrides: dict[str, Any], execution: Any) -> None:
    """Hands the notebook to Papermill, which puts the parameters in and calls our engine."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    from labkit.lab.execution import ENGINE, register_engine

    register_engine()
    logging.getLogger("papermill").setLevel(logging.ERROR)
    with contextlib.suppress(PapermillExecutionError):  # a cell failed: the execution has its own account of it
        papermill.execute_notebook(
            document,
            None,  # our engine saves, aside and renamed; Papermill would write in place
            parameters=overrides,
            engine_name=ENGINE,
            kernel_name=KERNEL_NAME,
            language="python",
            progress_bar=False,
            execution=execution,
        )


def close(folder: RunFolder, execution: Any) -> str:
    """Judges a completed run and closes its record; the final state."""
    state, reason = execution.outcome.state, execution.outcome.reason
    fields: dict[str, Any] = {}
    if hasattr(execution, "notebook"):
        fields["cells"] = execution.notebook.count()
    if state == "completed":
        try:
            fields |= judged_fields(folder.path)
        except LabError as error:
            reason = f"not judged: {error}"
        except Exception as error:  # a fault of ours must not cost the record
            reason = f"not judged: the judge failed: {type(error).__name__}: {error}"
    folder.finalise(state, reason, **fields)
    return str(state)


if __name__ == "__main__":
    sys.exit(main())
