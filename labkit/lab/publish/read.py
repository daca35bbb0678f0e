"""A run folder as a page needs it: every file read once, redacted, and what is missing or damaged said in words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from labkit.errors import LabError, RunError
from labkit.lab.folder import PARTIAL, runs_folder
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import Plan
from labkit.lab.publish.strips import Telemetry, telemetry_of
from labkit.lab.record import RunRecord, read_record
from labkit.lab.redact import Scrubber
from labkit.lab.verdict import Verdict

if TYPE_CHECKING:
    from labkit.audit.report import Audit

Model = TypeVar("Model", bound=BaseModel)

# What a reader may take away; the log stays at home, only its last lines are shown for a run that failed.
PUBLISHED = (
    "run.json",
    "plan.json",
    "measurements.csv",
    "starts.csv",
    "requests.jsonl",
    "telemetry.csv",
    "steps.jsonl",
    "ops.jsonl",
    "conclusion.json",
    "figure.json",
    "notebook.ipynb",
)
LOG_LINES = 40


@dataclass
class RunView:
    """A run, read. `files` are the published files by name, redacted; `faults` say what could not be read."""

    id: str
    folder: Path
    record: RunRecord
    plan: Plan | None
    conclusion: dict[str, Any]
    verdict: Verdict | None
    rows: list[Measurement]
    figure: Any = None
    notebook: Any = None
    audit: "Audit | None" = None  # of a run that came to its end
    telemetry: Telemetry | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    log_tail: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()
    faults: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end by itself."""
        return self.record.state == "completed"

    @property
    def question(self) -> str:
        """What the run asks: its plan's question, else its belief, else the experiment's name."""
        plan = self.plan
        return (plan.question or plan.belief if plan else "") or self.record.experiment.replace("-", " ")

    @property
    def strips(self) -> tuple[str, ...]:
        """The drawings of its telemetry."""
        return tuple(strip.svg for strip in self.telemetry.strips) if self.telemetry else ()

    @property
    def device(self) -> str:
        return str((self.record.device or {}).get("name") or "")

    @property
    def model(self) -> str:
        return str((self.record.model or {}).get("name") or "")


def run_folders(root: Path) -> list[Path]:
    """The lab's run folders, newest first; a run that is both partial and final (it is being renamed) once."""
    found = {}
    for path in sorted(runs_folder(root).glob("*/run.json")):
        name = path.parent.name
        if name.startswith(".") and not name.startswith(PARTIAL):
            continue
        found[name.removeprefix(PARTIAL)] = path.parent
    return [found[name] for name in sorted(found, reverse=True)]


def read_run(folder: Path, scrubber: Scrubber, whole: bool = True) -> RunView:
    """Reads a run folder; not `whole`, only what the index shows, its other files by name alone.

    RunError only when its `run.json` cannot be read; any other damage is listed in `faults`."""
    record = read_record(folder)
    record = RunRecord.model_validate(scrubber.read(f"{record.id}/run.json", record.model_dump(by_alias=True)))
    view = RunView(record.id, folder, record, None, {}, None, [])
    documents: dict[str, Any] = {}
    masked = set()
    for name in PUBLISHED:
        path = folder / name
        if not path.is_file():
            continue
        if not whole and name != "plan.json":
            view.files[name] = b""
            continue
        try:
            content = path.read_bytes()
            text = content.decode("utf-8")
            clean, documents[name] = redacted(f"{record.id}/{name}", name, text, scrubber)
        except (OSError, ValueError) as error:
            view.faults.append(f"{name} could not be read: {str(error).splitlines()[0]}")
            continue
        if clean is not None:
            masked.add(name)
        view.files[name] = content if clean is None else clean.encode()
    view.masked = frozenset(masked)
    if documents.get("plan.json") is not None:
        view.plan = declared(Plan, documents["plan.json"], "plan.json", view.faults)
    if record.verdict is not None:
        view.verdict = declared(Verdict, record.verdict, "the verdict in run.json", view.faults)
    view.conclusion = mapping(documents.get("conclusion.json"))
    if not whole:
        return view
    view.figure, view.notebook = documents.get("figure.json"), documents.get("notebook.ipynb")
    try:
        view.rows = read_rows(folder / "measurements.csv")
    except (RunError, OSError, UnicodeDecodeError) as error:
        view.faults.append(f"measurements.csv could not be read: {Path(str(error)).name or error}")
    view.telemetry = read_strips(folder, view.faults)
    view.progress = read_progress(folder)
    view.audit = read_audit(folder, scrubber, view) if view.finished else None
    if not view.finished:
        view.log_tail = scrubber.read(f"{record.id}/log.txt", read_tail(folder / "log.txt"))
    return view


def read_strips(folder: Path, faults: list[str]) -> Telemetry | None:
    """The strips of a run's telemetry; None, and a line among the faults, where its files are damaged."""
    from labkit.audit.run_files import read_lines, read_telemetry

    try:
        readings = list(read_telemetry(folder / "telemetry.csv"))
        return telemetry_of(readings, read_lines(folder / "requests.jsonl")) if readings else None
    except (LabError, OSError) as error:
        faults.append(f"the telemetry could not be drawn: {Path(str(error)).name or error}")
        return None


def read_audit(folder: Path, scrubber: Scrubber, view: RunView) -> "Audit | None":
    """What the audit says of a run, redacted; None, and a line among the faults, where it cannot be judged."""
    from labkit.audit.report import Audit
    from labkit.audit.stored import run_audit

    try:
        found = run_audit(folder, store=False)
    except LabError as error:
        view.faults.append(f"the run could not be audited: {Path(str(error)).name or error}")
        return None
    return Audit.model_validate(scrubber.read(f"{view.id}/audit", found.model_dump(mode="json")))


def declared(kind: type[Model], document: Any, name: str, faults: list[str]) -> Model | None:
    """`document` as a plan or a verdict; None, and a line among `faults`, when it is not one."""
    try:
        return kind.model_validate(document)
    except (ValidationError, LabError) as error:
        words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        faults.append(f"{name} could not be read: {words}")
        return None


def redacted(file: str, name: str, text: str, scrubber: Scrubber) -> tuple[str | None, Any]:
    """(the text with what must not be published masked, or None when there was nothing; its JSON, if it is JSON)."""
    if name.endswith((".json", ".ipynb")):
        document = json.loads(text)
        clean = scrubber.read(file, document)
        return (None if clean == document else json.dumps(clean, indent=1, ensure_ascii=False) + "\n"), clean
    clean = scrubber.read(file, text)
    return (None if clean == text else clean), None


def read_progress(folder: Path) -> dict[str, Any]:
    """How far an unfinished run had come, where it said so."""
    try:
        return mapping(json.loads((folder / "progress.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def read_tail(path: Path) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
