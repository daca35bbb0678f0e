"""A suite: questions to ask again, from a file, from runs or from the ledger's findings, each beside what it said before."""

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.driver import at_home, notebook_in_lab, run_experiment, stored_experiment, stored_overrides
from labkit.lab.experiments import Experiment, find_experiment
from labkit.lab.folder import runs_folder
from labkit.lab.lab import EXPERIMENT_NAME, Lab, StoredRun
from labkit.lab.parameters import set_parameters
from labkit.lab.plan import cell_words
from labkit.lab.record import Frozen, RunRecord, plain_value, read_record, utc_now
from labkit.lab.redact import Redactor
from labkit.lab.series import Series, state_of
from labkit.lab.what_changed import Changed, changed

EXAMPLE = '[[experiment]]\\nname = "batch-decode"\\nparameters = { repetitions = 10 }'


class Question(Frozen):
    """One experiment to run again: `overrides` are typed values, `before` the run it is compared with, `run` its repeat.
    `trouble` says why it cannot be repeated."""

    experiment: str
    notebook: str = ""
    overrides: dict[str, Any] = Field(default_factory=dict)
    before: str | None = None
    run: str | None = None
    settled: bool = False
    trouble: str = ""
    label: str = ""


class SuiteFile(Frozen):
    """What is kept of a suite, in `data/reruns/<id>.json`. The questions are its points."""

    schema_version: Literal[1] = 1
    id: str
    name: str
    definition: str
    begun: str
    points: tuple[Question, ...]
    ended: str | None = None


def reruns_folder(root: Path) -> Path:
    """Where the lab keeps its suites and the pages of what changed."""
    return root / "data" / "reruns"


def new_suite(name: str, questions: Sequence[Question], definition: str) -> SuiteFile:
    """A suite none of whose questions has been asked. ParameterError for one without any."""
    if not questions:
        raise ParameterError(f"{name} has nothing to run again")
    begun = utc_now()
    stamp = begun.replace("-", "").replace(":", "")
    return SuiteFile(
        id=f"{stamp}-{name}-{definition}", name=name, definition=definition, begun=begun, points=tuple(questions)
    )


def digest_of(document: Any) -> str:
    """Sixteen digits that stand for a request."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()[:16]


def unfinished_suite(root: Path, definition: str) -> SuiteFile | None:
    """The newest suite of this request, if its questions were not all answered. RunError when it cannot be read."""
    found = sorted(reruns_folder(root).glob(f"*-{definition}.json"))
    suite = read_suite(found[-1]) if found else None
    return suite if suite is not None and suite.ended is None else None


def read_suite(path: Path) -> SuiteFile:
    """A suite's file. RunError when it is damaged."""
    try:
        return SuiteFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise RunError(f"{path} is not a suite that can be read: {str(error).splitlines()[0]}") from None


# Where questions come from


def questions_of_file(lab: Lab, path: Path) -> tuple[str, list[Question]]:
    """The name and the questions of a SUITE.toml, every one checked. ParameterError or RunError with the place.

    It holds `[[experiment]]` tables of `name`, `parameters` and, to say what to compare with, `against`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"the suite {path} cannot be read: {error}") from None
    name = document.get("name", path.stem)
    tables = document.get("experiment")
    if more := sorted(set(document) - {"name", "experiment"}):
        raise ParameterError(f"the suite {path} has {more[0]!r}, which is not a part of one ({EXAMPLE})")
    if not isinstance(name, str) or not EXPERIMENT_NAME.fullmatch(name.lower().replace("_", "-")):
        raise ParameterError(f"the suite {path}: name is {name!r}; use letters, digits and hyphens")
    if not isinstance(tables, list) or not tables:
        raise ParameterError(f"the suite {path} lists no experiment: {EXAMPLE}")
    questions = []
    for number, table in enumerate(tables, 1):
        try:
            questions.append(question_of_table(lab, table))
        except LabError as error:
            raise ParameterError(f"the suite {path}, experiment {number}: {error}") from None
    return name.lower().replace("_", "-"), questions


def question_of_table(lab: Lab, table: Any) -> Question:
    """One `[[experiment]]` of a suite. ParameterError or RunError for what does not fit."""
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise ParameterError('it needs a name, such as name = "batch-decode"')
    if more := sorted(set(table) - {"name", "parameters", "against"}):
        raise ParameterError(f"it has {more[0]!r}; name, parameters and against are what it may hold")
    experiment = find_experiment(lab.root, table["name"])
    given = table.get("parameters", {})
    if not isinstance(given, dict):
        raise ParameterError(f"parameters is {given!r}, not a table of names and values")
    overrides = set_parameters(experiment.parameters, {}, given)
    against = table.get("against")
    before = lab.find_run(str(against)).record if against is not None else newest_like(lab, experiment, overrides)
    return question(lab, experiment, overrides, before)


def newest_like(lab: Lab, experiment: Experiment, overrides: Mapping[str, Any]) -> RunRecord | None:
    """The newest completed run of an experiment with these parameters, None where there is none."""
    wanted = Redactor().value(plain_value(experiment.defaults() | dict(overrides)))
    for run in lab.runs(experiment=experiment.name, state="completed"):
        stored = {name: value for name, value in run.record.parameters.items() if name in wanted}
        if repr(stored) == repr({name: wanted[name] for name in stored}):
            return run.record
    return None


def question_of_run(lab: Lab, record: RunRecord, replaced: Mapping[str, str] | None = None) -> Question:
    """A stored run as a question, with parameters replaced as typed on the command line."""
    experiment = stored_experiment(lab, record)
    new = set_parameters(experiment.parameters, dict(replaced or {}))
    return question(lab, experiment, stored_overrides(experiment, record, replaced=new) | new, record)


def question(lab: Lab, experiment: Experiment, overrides: Mapping[str, Any], before: RunRecord | None) -> Question:
    """A question whose notebook is there."""
    shown = cell_words(overrides) if overrides else ""
    return Question(
        experiment=experiment.name, notebook=notebook_in_lab(lab.root, experiment.path),
        overrides=Redactor().value(plain_value(overrides)),
        before=before.id if before else None, label=f"{experiment.name} {shown}".strip(),
    )  # fmt: skip


def questions_of_findings(lab: Lab) -> list[Question]:
    """Every finding of the ledger that holds, by its newest run. What cannot be repeated is there with the reason."""
    from labkit.lab.entries import read_book
    from labkit.lab.events import read_events

    questions = []
    for entry in read_book(read_events(lab.root)).live:
        if entry.look:
            continue
        run = entry.newest.run
        try:
            questions.append(question_of_run(lab, lab.find_run(run).record))
        except LabError as error:
            name = entry.scope.experiment
            questions.append(Question(experiment=name, before=run, label=entry.plan.belief, trouble=str(error)))
    return questions


# The course


class Suite(Series[SuiteFile]):
    """A suite in progress."""

    what = "suite"

    def __init__(self, lab: Lab, file: SuiteFile) -> None:
        super().__init__(lab, file, reruns_folder(lab.root))

    def read(self) -> SuiteFile:
        return read_suite(self.path)

    def changed(self, number: int, fields: Mapping[str, Any]) -> SuiteFile:
        points = list(self.file.points)
        points[number] = points[number].model_copy(update=dict(fields))
        return self.file.model_copy(update={"points": tuple(points)})

    def missing(self) -> list[int]:
        """The questions that can be asked and were not answered."""
        return [number for number in super().missing() if not self.file.points[number].trouble]

    def start(self, number: int, made: Callable[[RunRecord], None], limits: Mapping[str, Any]) -> StoredRun:
        asked = self.file.points[number]
        experiment = find_experiment(self.lab.root, str(self.lab.root / asked.notebook))
        at = {name: at_home(value) for name, value in asked.overrides.items()}
        overrides = set_parameters(experiment.parameters, {}, at)
        return run_experiment(self.lab, experiment, overrides, name=f"again: {self.file.name}", made=made, **limits)

    def words(self, number: int) -> str:
        return self.file.points[number].label

    def finish(self) -> None:
        """Keeps when it was complete."""
        if not self.missing() and self.file.ended is None:
            self.file = self.file.model_copy(update={"ended": utc_now()})
            self.write()


def what_changed(lab: Lab, file: SuiteFile) -> list[Changed]:
    """Every question of a suite, then and now."""
    found = []
    for asked in file.points:
        if asked.trouble:
            found.append(Changed(asked.label, asked.experiment, then=asked.before or "", trouble=asked.trouble))
        elif asked.run is None or state_of(lab.root, asked.run) in ("missing", "running", "damaged"):
            found.append(
                Changed(asked.label, asked.experiment, then=asked.before or "", trouble="it was not run again yet")
            )
        else:
            found.append(changed(lab.root, stored(lab, asked.before), StoredRun(*loaded(lab, asked.run))))
    return found


def loaded(lab: Lab, run: str) -> tuple[RunRecord, Path]:
    """A run's record and folder."""
    folder = runs_folder(lab.root) / run
    return read_record(folder), folder


def stored(lab: Lab, run: str | None) -> StoredRun | None:
    """The run to compare with, None where there is none here any more."""
    if run is None:
        return None
    try:
        return StoredRun(*loaded(lab, run))
    except RunError:
        return None
