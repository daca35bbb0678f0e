"""The ledger's truth: immutable event files, named by time and content, written whole or not at all."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from labkit.errors import LabError, LedgerError
from labkit.lab.attempts import Attempts
from labkit.lab.coverage import Coverage
from labkit.lab.lever_effect import LeverEffect
from labkit.lab.plan import Plan, Rule
from labkit.lab.record import Check, Frozen
from labkit.lab.verdict import Verdict

RESTORE = (
    "restore it from git or a backup; without either remove it and enter its run again (`lab export RUN`, then "
    "`lab import` of that zip)"
)
EVENT_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}\.json")
NEWER = re.compile(rb'^ "schema_version": ([2-9]|[1-9]\d+),?$', re.M)  # as `write_event` lays it out
LOCK_WAIT_S = 120
MOST_EVENT_BYTES = 32 << 20  # the largest that is read; a run of a thousand blocks has 0.1 MB
Ledger = Literal["FINDINGS.md", "MISTAKES.md", "OPEN-PROBLEMS.md", "LEVERS.md"]


class Number(Frozen):
    """A reference to a record: over the `n` blocks of `run` in which `metric` was measured at `cell` (canonical JSON),
    its mean is `value` (geometric where all are positive)."""

    run: str
    metric: str
    cell: str
    n: int
    value: float


class Claim(Frozen):
    """A sentence the notebook claims. `withheld` says which of its numbers the run's data do not bear out; it is then
    not a claim of the ledger's."""

    text: str
    withheld: str = ""

    def __repr__(self) -> str:
        return f"<Claim {self.text}{f' (withheld: {self.withheld})' if self.withheld else ''}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from labkit.show.pieces import mark, paragraph

        return paragraph(self.text, mark("withheld"), self.withheld) if self.withheld else paragraph(self.text)


class Scope(Frozen):
    """What a verdict holds for: the rule of an experiment, and the device, driver, build, model and shape measured.

    Runs of equal scope are sessions of one verdict. Data older than their rule are a scope of their own, so a rule
    written to fit never stands beside one that was risked."""

    experiment: str
    rule: str
    device: str
    uuid: str
    driver: str
    build: str
    model: str
    shape: str
    retrospective: bool = False

    @field_validator("rule")
    @classmethod
    def _essence(cls, value: str) -> str:
        return Rule(**json.loads(value)).essence()  # equal rules are equal scopes, whichever version wrote them

    @cached_property
    def id(self) -> str:
        """Sixteen hexadecimal digits that stand for the whole scope."""
        return digest(self.model_dump_json())

    @cached_property
    def question(self) -> str:
        """What stays the same when the same rule is tried elsewhere: experiment and rule."""
        return digest(self.experiment + self.rule)


class Event(Frozen):
    """One thing that happened to the ledger; `utc` is when it was added, to the microsecond."""

    schema_version: Literal[1] = 1
    utc: str

    @property
    def day(self) -> str:
        """The date of `utc`."""
        return self.utc[:10]


class EntryEvent(Event):
    """A run judged by its plan. `faults` are what a person may waive to make an invalid run count (see `Waiver`)."""

    kind: Literal["entry"] = "entry"
    run: str
    ended: str
    plan: Plan
    plan_hash: str
    scope: Scope
    verdict: Verdict
    faults: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    numbers: tuple[Number, ...] = ()
    claims: tuple[Claim, ...] = ()
    should_not_claim: tuple[str, ...] = ()
    commit: str = ""
    measurements_sha256: str
    coverage: Coverage | None = None  # None in events of versions that did not keep it; see `CoverageEvent`
    attempts: Attempts | None = None  # before this one at its question; None in events of versions that did not count
    imported_sha256: str = ""  # of the archive it came in, for a run measured elsewhere
    audit: tuple[str, ...] = ()  # the troubles that the audit saw when it was entered, root causes alone


class CoverageEvent(Event):
    """What a run covered, where its entry is of a version that did not keep it."""

    kind: Literal["coverage"] = "coverage"
    run: str
    coverage: Coverage


class NoteEvent(Event):
    """A dated note by a person; `ledger` is the file it stands in."""

    kind: Literal["note"] = "note"
    text: str
    ledger: Ledger = "FINDINGS.md"


class ImportedEvent(Event):
    """A piece of a person's notes from elsewhere, its `text` byte for byte as it stood in `file`. Its numbers have no
    samples here, so it is unverified. `dated` is its own date (or ""); `table` is the head of the table it is a row of;
    `copy_number` tells equal pieces of one file apart."""

    kind: Literal["imported"] = "imported"
    ledger: Ledger
    file: str
    file_sha256: str
    place: int
    dated: str = ""
    table: str = ""
    copy_number: int = 0
    text: str

    @property
    def identity(self) -> str:
        """What is the same when the piece is imported again, whatever stands around it by then."""
        return digest(json.dumps([self.ledger, self.table, self.text, self.copy_number]))


class SweepEvent(Event):
    """What a finished sweep measured of its levers: `sweep` names it, or the run whose cells it is of. `void` when a
    negative control of it moved, so that no effect of it counts."""

    kind: Literal["sweep"] = "sweep"
    sweep: str
    experiment: str
    effects: tuple[LeverEffect, ...]

    @property
    def void(self) -> bool:
        """Whether one of its negative controls moved."""
        return any(effect.control_moved for effect in self.effects)


class Waiver(Event):
    """A person's reason to let a run count although `fault` spoke against it; it is printed on the entry, or, of a run
    that was not `entered` in the ledger, on the run's page alone."""

    kind: Literal["waiver"] = "waiver"
    run: str
    fault: str
    reason: str
    entered: bool = True


class Correction(Event):
    """A person's correction of the entry that holds `run`, or of the note or imported piece with that anchor. With
    `retracts` the entry is struck through, and the runs it had no longer count."""

    kind: Literal["correction"] = "correction"
    run: str
    text: str
    retracts: bool = False


class HandEdit(Event):
    """A change someone made below the line of a rendered ledger: kept here, since the entry is rendered again."""

    kind: Literal["edit"] = "edit"
    ledger: Ledger
    anchor: str
    diff: tuple[str, ...]


OneEvent = EntryEvent | CoverageEvent | NoteEvent | ImportedEvent | SweepEvent | Waiver | Correction | HandEdit
AnyEvent = Annotated[OneEvent, Field(discriminator="kind")]
_reader: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@dataclass(frozen=True)
class Stored:
    """An event with the name of its file, which orders events: by time, then by content."""

    name: str
    event: OneEvent

    @property
    def mark(self) -> str:
        """Eight digits of the content's hash, for anchors."""
        return self.name.rpartition("-")[2][:8]


@dataclass(frozen=True)
class Events:
    """All readable events in order, and a line for each file that is not one."""

    stored: tuple[Stored, ...]
    damaged: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """A hash of the names: equal sets of events have equal state, whatever order they came in."""
        return digest("\n".join(item.name for item in self.stored))

    @property
    def whole_state(self) -> str:
        """The state there would be if no event were damaged."""
        damaged = [line.partition(" ")[0].rpartition("/")[2] for line in self.damaged]
        return digest("\n".join(sorted([*(item.name for item in self.stored), *damaged])))

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind, in order."""
        return [item.event for item in self.stored if isinstance(item.event, kind)]

    def through(self, name: str) -> "Events":
        """The events up to and with `name`."""
        return Events(tuple(item for item in self.stored if item.name <= name))


def digest(text: str) -> str:
    """The first sixteen hexadecimal digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def events_folder(root: Path) -> Path:
    """Where the lab at `root` keeps its events."""
    return root / "data" / "ledger"


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Holds the ledger's lock, without which nothing is written. It falls free when its holder dies. LedgerError when it
    cannot be had in two minutes."""
    from filelock import FileLock, Timeout

    folder = events_folder(root)
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_WAIT_S, poll_interval=0.005)
    except Timeout:
        raise LedgerError(f"another process has held the ledger for {LOCK_WAIT_S} s; see {folder / '.lock'}") from None
    except OSError as error:
        raise LedgerError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        for left in folder.glob(".*Z-*.json.*"):  # by a process that died before its event had its name
            left.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def utc_exact() -> str:
    """The present in UTC to the microsecond: `2026-12-01T00:16:26.004211Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write_event(root: Path, event: Event) -> Path:
    """Writes an event's file and returns its path once it is on the disk. Nothing is ever overwritten: the file is
    written aside and linked into place, so a reader sees all of it or none, and a process that dies leaves none.
    LedgerError when it cannot be written."""
    folder = events_folder(root)
    content = json.dumps(event.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    content += "\n"
    stamp = event.utc.replace("-", "").replace(":", "")
    path = folder / f"{stamp}-{digest(content)}.json"
    try:
        put_event(path, content)
    except OSError as error:
        raise LedgerError(f"{folder} cannot be written: {error.strerror}; nothing was added") from None
    return path


def put_event(path: Path, content: str) -> None:
    """Puts an event's file where it belongs, and waits until the disk has it."""
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # the same event to the last byte: it is there already
        except OSError:  # a file system without hard links
            os.rename(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_known: dict[str, Stored] = {}  # events do not change: each is read and checked once a process


def read_events(root: Path, fresh: bool = False) -> Events:
    """Every event, in order, each checked against the hash in its name; `fresh` reads again what is known already.

    A file that is torn, changed or of another make is not an error here: `damaged` has a line that names it."""
    folder = events_folder(root)
    stored, damaged = [], []
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        path = f"{folder}/{name}"
        if fresh or path not in _known:
            try:
                _known[path] = read_event(folder / name)
            except LabError as error:
                _known.pop(path, None)
                damaged.append(str(error))
                continue
        stored.append(_known[path])
    return Events(tuple(stored), tuple(damaged))


def read_event(path: Path) -> Stored:
    """One event. LedgerError says what is wrong with the file."""
    where = f"data/ledger/{path.name}"
    if not EVENT_NAME.fullmatch(path.name):
        raise LedgerError(f"{where} is not named as an event; restore its name or remove it")
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= MOST_EVENT_BYTES else b""
    except OSError as error:
        raise LedgerError(f"{where} cannot be read: {error.strerror}") from None
    if size > MOST_EVENT_BYTES:
        raise LedgerError(f"{where} has {size:,} bytes, which no event has; {RESTORE}")
    if hashlib.sha256(content).hexdigest()[:16] != path.stem.rpartition("-")[2]:
        raise LedgerError(f"{where} is damaged or was changed: its name's hash is not its content's; {RESTORE}")
    if newer := NEWER.search(content):
        raise LedgerError(f"{where} is of schema {newer[1].decode()}, and this labkit reads schema 1: update labkit")
    try:
        return Stored(path.name, _reader.validate_json(content))
    except (ValidationError, LabError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error), "loc": ()}
        place = ".".join(str(part) for part in first["loc"])
        raise LedgerError(f"{where} is not an event this version reads: {place} {first['msg']}".rstrip()) from None


def shape_words(shape: Mapping[str, Any]) -> str:
    """What was kept fixed, as a reader writes it: `kv=f16, tokens=24`."""
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in sorted(shape.items())
    )
