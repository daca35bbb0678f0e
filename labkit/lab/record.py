"""The record of a run (`run.json`): its schema, and reading and changing it so no reader ever sees half of it."""

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labkit.errors import RunError
from labkit.measure.neighbours import Neighbours

State = Literal["running", "completed", "failed", "crashed", "killed", "timed-out", "stopped-early"]
SCHEMA = 1
IMPORTED = "imported"  # the experiment of a run that was made of another tool's file
MOST_RECORD_BYTES = 64 << 20
STATES: tuple[str, ...] = get_args(State)
FINAL_STATES = tuple(state for state in STATES if state != "running")

# What `lab run` ends with for each state; a stopped run is not a success.
EXIT_CODES: dict[str, int] = {
    "completed": 0,
    "failed": 1,
    "stopped-early": 1,
    "killed": 1,
    "crashed": 4,
    "timed-out": 5,
}
WITHHELD = 3  # a completed run whose finding the audit withholds


def was_refused(record: "RunRecord", folder: Path) -> bool:
    """Whether the notebook turned down what it was given, by an error of labkit's own, before anything was measured."""
    import labkit.errors

    named = re.match(r"cell \d+ failed: (\w+): ", record.reason or "")
    kind = getattr(labkit.errors, named.group(1), None) if named and record.state == "failed" else None
    if not (isinstance(kind, type) and issubclass(kind, labkit.errors.LabError)):
        return False
    samples = folder / "measurements.csv"
    return not samples.exists() or len(samples.read_text(encoding="utf-8").splitlines()) <= 1


def exit_code(record: "RunRecord", folder: Path) -> int:
    """The exit code of a run: that of its state, 2 where what it was given was refused, 3 where the audit fails it."""
    if was_refused(record, folder):
        return 2
    return WITHHELD if record.state == "completed" and audit_fails(folder) else EXIT_CODES[record.state]


def audit_fails(folder: Path) -> bool:
    """Whether the audit kept in a run's folder fails it."""
    from labkit.audit.stored import read_kept

    kept = read_kept(folder)
    return kept is not None and bool(kept.audit.failed)


def utc_now() -> str:
    """The present in UTC, ISO 8601 to the second: `2026-12-01T00:16:26Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Frozen(BaseModel):
    """A record that is not changed in place and refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, ser_json_inf_nan="strings")


class Check(Frozen):
    """A correctness gate the notebook passed or failed before it measured."""

    name: str
    passed: bool
    detail: str = ""


class Host(Frozen):
    """The machine, without its name: processor, logical cores, memory in bytes, system, and which boot it was. Of a run
    from elsewhere that does not tell, texts are `unknown` and numbers 0."""

    cpu: str
    cores: int
    ram_bytes: int
    os: str
    boot_id: str | None = None

    @property
    def known(self) -> dict[str, Any]:
        """The fields that are told."""
        return {name: value for name, value in self.model_dump().items() if value not in ("unknown", 0, None)}


class Git(Frozen):
    """The commit of the code; `diff_sha256` covers changed and untracked code, not the lab's own data. `dirty` is None
    where the code lies outside a repository and LABKIT_COMMIT says what it is."""

    commit: str
    dirty: bool | None
    diff_sha256: str | None = None


class Cells(Frozen):
    """How many code cells the notebook has and what became of them, counted from the kernel's own answers."""

    total: int
    executed: int
    failed: int
    not_run: int


class Resumption(Frozen):
    """One time a run that had ended early was taken up again, with the state it was left in."""

    utc: str
    state: State
    reason: str


class Change(Frozen):
    """A field of a plan that an edit changed, `rule.threshold`, with both values as JSON."""

    field: str
    before: str
    after: str


class Deviation(Frozen):
    """An edit of a plan that was stored already: what differs from the plan as first stored, which the run is still
    judged by; when it came, and after how many samples. `plan_hash` is the edited plan's."""

    utc: str
    samples: int
    plan_hash: str
    changes: tuple[Change, ...]


class RunRecord(Frozen):
    """Everything that is known of a run but its samples. Times are UTC; the host has no name in it."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # the schema in the docs has them

    schema_version: Literal[1] = Field(1, alias="schema")
    id: str
    """Its time, its experiment and eight random digits; the name of its folder."""
    experiment: str
    name: str | None = None
    """A label of the person who ran it."""
    state: State
    reason: str = ""
    """Why it ended as it did."""
    started: str
    ended: str | None = None
    parameters: dict[str, Any]
    """All of the notebook's, those at their defaults too."""
    plan_hash: str | None = None
    """Of the plan as first stored, in `plan.json`; null where there is none."""
    exploratory: bool = True
    """Whether it has no plan."""
    retrospective: bool = False
    """Whether the plan came after the first measurement."""
    deviations: tuple[Deviation, ...] = ()
    interactive: bool = False
    """Whether it was run by hand in a notebook, not by `lab run`."""
    quick: bool | None = None
    """Its `quick` parameter; null where it has none."""
    device: dict[str, Any] | None = None
    """As the driver reports it: name, UUID, driver, limits, clocks, caps."""
    host: Host
    model: dict[str, Any] | None = None
    """Its header as read from the file, its SHA-256, and bytes by type of weight."""
    shaders: dict[str, str] = {}
    """SHA-256 of each shader's binary."""
    program_fingerprints: dict[str, str] = {}
    """Hash of each recorded program: kernels, constants, grids, ranges."""
    git: Git | None = None
    packages: dict[str, str] = {}
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    neighbours: Neighbours | None = None
    """Who shared the device; null where nobody looked."""
    cells: Cells | None = None
    notebook: str | None = None
    """Its path inside the lab."""
    notebook_sha256: str | None = None
    """Of the code cells alone."""
    resumed: tuple[Resumption, ...] = ()
    verdict: dict[str, Any] | None = None
    """What the plan's rule says of this run alone."""
    artefacts: dict[str, str] = {}
    """SHA-256 of each other file of the run, by name."""

    def to_json(self) -> str:
        """The text of `run.json`; nan and infinities become the strings `NaN`, `Infinity`, `-Infinity`."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes aside and renames over `path`, so a reader sees the old file or the new one, never a part."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def read_record(folder: Path) -> RunRecord:
    """The record in `folder`. RunError when it is missing, damaged, too large to be one, or of a newer schema."""
    path = folder / "run.json"
    try:
        size = path.stat().st_size
        if size > MOST_RECORD_BYTES:
            raise RunError(f"{path} is not a run record: it has {size:,} bytes")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} is not a run: it has no run.json") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    refuse_newer(content, path)
    try:
        return RunRecord.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise RunError(f"{path} is not a run record: {place}: {first['msg']}") from None


def refuse_newer(content: bytes, path: Path) -> None:
    """RunError when a JSON object says that it is of a later schema than this version reads."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return  # whoever reads it says what is wrong
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise RunError(f"{path} is of schema {schema}, and this labkit reads schema {SCHEMA}: update labkit to read it")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the folder's write lock; a process that dies while holding it frees it."""
    handle = os.open(folder / ".write", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def update_record(folder: Path, change: Callable[[RunRecord], Mapping[str, Any]]) -> RunRecord:
    """Applies `change` (the record → the fields to replace) under the folder's lock; the notebook's kernel and the
    runner both write `run.json`, so neither may lose what the other wrote. Returns the new record."""
    with exclusive(folder):
        record = read_record(folder)
        fields = {name: getattr(record, name) for name in RunRecord.model_fields} | dict(change(record))
        new = RunRecord(**fields)
        write_atomic(folder / "run.json", new.to_json())
    return new


def canonical_cell(cell: Mapping[str, Any]) -> str:
    """A cell's knob values as canonical JSON (sorted keys, no spaces), as in `measurements.csv`: `{"width":8}`.

    NumPy scalars become Python numbers; ValueError for values JSON cannot hold."""
    plain = {str(key): plain_value(value) for key, value in cell.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain_value(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy scalars and arrays, tuples and paths become plain Python."""
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
