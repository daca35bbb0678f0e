"""The ledger: runs, notes, waivers and corrections go in as events; the markdown files are rendered from them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError, LedgerError, RunError
from labkit.lab.attempts import attempts_before
from labkit.lab.claims import cell_numbers, checked_claims, known_numbers
from labkit.lab.coverage import coverage_of
from labkit.lab.entries import UNCHECKED, Book, Entry, read_book
from labkit.lab.events import (
    Correction,
    CoverageEvent,
    EntryEvent,
    Events,
    HandEdit,
    ImportedEvent,
    Ledger,
    NoteEvent,
    SweepEvent,
    Waiver,
    read_events,
    utc_exact,
    write_event,
    writing,
)
from labkit.lab.ledger_files import (
    STATE,
    LedgerFile,
    edit_lines,
    ledger_content,
    ledger_text,
    read_ledger,
    write_if_changed,
)
from labkit.lab.lever_effect import LeverEffect
from labkit.lab.measurements import read_rows
from labkit.lab.notes_file import NotesFile, read_notes
from labkit.lab.plan import read_plan, stored_hash
from labkit.lab.record import RunRecord, canonical_cell, read_record
from labkit.lab.render import LEDGERS, Block, render_book
from labkit.lab.run_effects import effects_of_run
from labkit.lab.scope import scope_of
from labkit.lab.starts import read_starts, samples_of
from labkit.lab.verdict import judge, judge_folder

MOST_WORDS = 100_000  # characters of a person's note, reason or correction


@dataclass(frozen=True)
class Rendered:
    """What rendering did: the files it changed, the hand edits it kept, and what it could not read."""

    changed: tuple[Path, ...]
    kept: tuple[HandEdit, ...]
    problems: tuple[str, ...]


def append(root: Path, folder: Path) -> list[Path]:
    """Enters a final run folder in the ledger of the lab at `root`, and renders; the event files written.

    None for a run without a plan (nothing was asked) and for one that is in the ledger already. Once this returns,
    the event is on the disk. LedgerError for a run that was not completed."""
    record = read_record(folder)
    if record.state != "completed":
        raise LedgerError(f"{record.id} ended as {record.state}; only completed runs are entered")
    if not (folder / "plan.json").exists() or find_run(read_events(root), record.id):
        return []
    judged = entry_event(record, folder)
    judged = judged.model_copy(update={"attempts": attempts_before(root, record, judged.plan)})
    beside = sweep_event(record, folder) if judged.verdict.outcome != "invalid" else None
    with writing(root):
        if find_run(read_events(root), record.id):
            return []
        if beside is not None:  # before the entry: of a kill in between, the book counts it once
            write_event(root, beside.model_copy(update={"utc": utc_exact()}))
        path = write_event(root, judged.model_copy(update={"utc": utc_exact()}))
    render(root, only_if_stale=True)
    return [path]


def sweep_event(record: RunRecord, folder: Path) -> SweepEvent | None:
    """What the run measured of its levers beside its rule, recomputed from its files; None where that is nothing."""
    effects = effects_of_run(record, read_plan(folder / "plan.json"), samples_of(folder))
    return (
        SweepEvent(utc="", sweep=record.id, experiment=record.experiment, effects=tuple(effects)) if effects else None
    )


def enter_sweep(root: Path, sweep: str, experiment: str, effects: Iterable[LeverEffect]) -> list[Path]:
    """Enters what a finished sweep of runs measured, once, and renders; the event files written."""
    found = tuple(effects)
    with writing(root):
        known = {event.sweep for event in read_events(root).of(SweepEvent)}
        if not found or sweep in known:
            return []
        path = write_event(root, SweepEvent(utc=utc_exact(), sweep=sweep, experiment=experiment, effects=found))
    render(root, only_if_stale=True)
    return [path]


def entry_event(record: RunRecord, folder: Path, utc: str = "") -> EntryEvent:
    """What the ledger keeps of a run, all of it recomputed from the run's own files."""
    from labkit.lab.capture import sha256_file

    plan, plan_hash = read_plan(folder / "plan.json"), stored_hash(folder / "plan.json")
    rows, verdict = read_rows(folder / "measurements.csv"), judge_folder(folder)
    numbers = cell_numbers(record.id, rows)
    conclusion = {}
    if (folder / "conclusion.json").exists():
        try:
            conclusion = dict(json.loads((folder / "conclusion.json").read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise LedgerError(f"{folder / 'conclusion.json'} is damaged; it must be a JSON object") from None
    known = known_numbers(numbers, verdict, plan, record.parameters)
    planned = [canonical_cell(cell) for cell in plan.cells]
    shown = [number for number in numbers if number.metric == plan.rule.metric and number.cell in planned]
    faults: tuple[str, ...] = ()
    starts = read_starts(folder)
    from labkit.audit.stored import run_audit

    audited = run_audit(folder, store=False)
    if (
        verdict.outcome == "invalid"
        and judge(plan, rows, starts=starts).outcome != "invalid"
        and record.plan_hash == plan_hash
    ):
        if judge(plan, rows, record.checks, starts=starts).outcome == "invalid":
            faults = tuple(check.name for check in record.checks if not check.passed) or (UNCHECKED,)
        faults += audited.failed
    return EntryEvent(
        utc=utc,
        run=record.id,
        ended=record.ended or record.started,
        plan=plan,
        plan_hash=plan_hash,
        scope=scope_of(record, plan),
        verdict=verdict,
        faults=faults,
        checks=record.checks,
        numbers=tuple(sorted(shown, key=lambda number: planned.index(number.cell))),
        claims=checked_claims(map(str, conclusion.get("claims", ())), known),
        should_not_claim=tuple(map(str, conclusion.get("should_not_claim", ()))),
        commit=record.git.commit if record.git else "",
        measurements_sha256=sha256_file(folder / "measurements.csv") if rows else "",
        coverage=coverage_of(record, plan, folder),
        imported_sha256=archive_of(folder),
        audit=tuple(f"{one.root.detector} ({one.outcome}): {one.root.text}" for one in audited.groups()),
    )


def archive_of(folder: Path) -> str:
    """The SHA-256 of the archive that a run from another machine came in; nothing for a run of this lab."""
    path = folder / "import.json"
    if not path.is_file():
        return ""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["archive_sha256"])
    except (ValueError, TypeError, KeyError):
        raise LedgerError(f"{path} is damaged; it says which archive the run came in") from None


def note(root: Path, text: str, ledger: Ledger = "FINDINGS.md") -> Path:
    """Adds a dated note by a person, its first line the heading, and renders. LedgerError when it says nothing."""
    text = said(text, "the note is empty; give it at least a line of text")
    return add(root, NoteEvent(utc=utc_exact(), text=text, ledger=ledger))


def import_notes(root: Path, paths: Iterable[Path]) -> list[tuple[NotesFile, int]]:
    """Takes a person's notes files into the ledger, a piece an event; (file, how many of its pieces were new) of each.

    All files are read and checked before anything is written. What was imported before is not taken again."""
    files = [read_notes(path) for path in paths]
    taken: list[tuple[NotesFile, int]] = []
    with writing(root):
        check_ledgers(root)
        known = {event.identity for event in read_events(root).of(ImportedEvent)}
        for file in files:
            new = 0
            for place, piece in enumerate(file.pieces):
                event = ImportedEvent(
                    utc=utc_exact(),
                    ledger=file.ledger,
                    file=file.name,
                    file_sha256=file.sha256,
                    place=place,
                    **piece._asdict(),
                )
                if event.identity not in known:
                    known.add(event.identity)
                    write_event(root, event)
                    new += 1
            taken.append((file, new))
    render(root, only_if_stale=True)
    return taken


def waive(root: Path, run: str, fault: str, reason: str) -> Path:
    """Lets an invalid run count, for a reason that is printed on its entry. `fault` is the name of a failed check or of
    a detector that failed it, or `unchecked`. Of a run that is in no entry (it has no plan, say) a failed detector is
    set aside, and the reason stands on its page. LedgerError when there is no such run or it has no such fault."""
    known, faults, in_ledger = faults_of(root, run)
    if fault not in faults:
        has = f"it has: {', '.join(faults)}" if faults else "nothing about it can be waived"
        raise LedgerError(f"{known} has no fault {fault!r}; {has}")
    reason = said(reason, f"waiving {fault!r} needs a reason: it is printed with the run")
    return add(root, Waiver(utc=utc_exact(), run=known, fault=fault, reason=reason, entered=in_ledger))


def faults_of(root: Path, run: str) -> tuple[str, tuple[str, ...], bool]:
    """(the run's whole id, what about it can be waived, whether it is in the ledger). LedgerError when there is none."""
    from labkit.audit.stored import run_audit
    from labkit.lab.lab import Lab

    try:
        event = require_run(read_events(root), run)
        return event.run, event.faults, True
    except LedgerError as error:
        try:
            stored = Lab(root).find_run(run)
        except RunError:
            raise error from None
    if stored.record.state != "completed":
        raise LedgerError(f"{stored.record.id} ended as {stored.record.state}; only completed runs count")
    return stored.record.id, run_audit(stored.folder).failed, False


def correct(root: Path, name: str, text: str, retracts: bool = False) -> Path:
    """Adds a person's correction to the entry with this anchor or run, or to the note or imported piece with this
    anchor; with `retracts` it is struck through, moves to the mistakes, and its runs no longer count. LedgerError when
    there is no such entry, or nothing is said."""
    book = read_book(read_events(root))
    text = said(text, "the correction is empty; say what is wrong")
    if name in book.corrected:
        struck, anchor, about = any(old.retracts for old in book.corrected[name]), name, name
    else:
        entry = require_entry(book, name)
        struck, anchor = entry.struck, entry.anchor
        about = name if name in {event.run for event in entry.events} else entry.newest.run
    if retracts and struck:
        raise LedgerError(f"{anchor} is struck through already")
    return add(root, Correction(utc=utc_exact(), run=about, text=text, retracts=retracts))


def said(text: str, empty: str) -> str:
    """A person's words without blanks around them. LedgerError when there are none, too many, or they are no text."""
    text = text.strip()
    if not text:
        raise LedgerError(empty)
    if len(text) > MOST_WORDS:
        raise LedgerError(f"the text has over {MOST_WORDS:,} characters; keep it in a file and say where that is")
    if "\0" in text or text != text.encode(errors="replace").decode():
        raise LedgerError("the text holds bytes that are no UTF-8 text; write it as UTF-8")
    return text


def add(root: Path, event: NoteEvent | Waiver | Correction) -> Path:
    """Writes an event and renders."""
    with writing(root):
        check_ledgers(root)
        path = write_event(root, event.model_copy(update={"utc": utc_exact()}))
    render(root, only_if_stale=True)
    return path


def check_ledgers(root: Path) -> None:
    """LedgerError when one of the files cannot be rendered into, before anything is written."""
    for name in LEDGERS:
        ledger_content(root / name)


def render(root: Path, only_if_stale: bool = False) -> Rendered:
    """Renders the ledgers from the events, each swapped in whole; what a person wrote above the line stays.

    Rendering what is rendered changes no byte. A block that was edited by hand is rendered again, and the edit is kept
    as an event and shown beneath it. `only_if_stale` does nothing when the files show every event already, as they do
    when another process that waited for the same lock has rendered them."""
    with writing(root):
        events = read_events(root)
        if only_if_stale and all(shows(root / name, events) for name in LEDGERS):
            return Rendered((), (), events.damaged)
        files = {name: read_ledger(root / name) for name in LEDGERS}
        edits, problems = find_edits(events, files)
        for event in [*edits, *missing_coverage(root, events)]:
            write_event(root, event)
        events = read_events(root)
        book = read_book(events)
        through = events.stored[-1].name if events.stored else ""
        rendered = render_book(book)
        changed = [
            root / name
            for name in LEDGERS
            if write_if_changed(root / name, ledger_text(files[name].head, rendered[name], events.state, through))
        ]
    return Rendered(tuple(changed), tuple(edits), (*events.damaged, *book.problems, *problems))


def missing_coverage(root: Path, events: Events) -> list[CoverageEvent]:
    """What the runs covered whose entries an earlier version made; those whose files are not here, or are not those
    that were entered, are left as they are."""
    have = {event.run for event in events.of(CoverageEvent)}
    found = []
    for event in events.of(EntryEvent):
        folder = root / "data" / "runs" / event.run
        if event.coverage is not None or event.run in have or not (folder / "run.json").is_file():
            continue
        try:
            covered = coverage_of(read_record(folder), event.plan, folder)
        except LabError:  # `lab ledger verify` names it
            continue
        have.add(event.run)
        found.append(CoverageEvent(utc=utc_exact(), run=event.run, coverage=covered))
    return found


def shows(path: Path, events: Events) -> bool:
    """Whether a ledger was rendered from these very events, and not merged by git since."""
    states = [match["state"] for match in STATE.finditer(ledger_content(path))]
    return states == [events.state]


def find_edits(events: Events, files: dict[Ledger, LedgerFile]) -> tuple[list[HandEdit], list[str]]:
    """What people changed below the line since each ledger was rendered, and a line for each ledger that git merged: the
    blocks of both branches come from the events."""
    edits: list[HandEdit] = []
    problems: list[str] = []
    now: dict[str, list[Block]] = {}
    for name, file in files.items():
        if file.merged:
            problems.append(
                f"{name} was merged by git line by line and is rendered again from the events of both branches; an edit "
                f"by hand that either had below the line stands in git alone (git log -p -m {name})"
            )
        if not file.edited:
            continue
        earlier = events.through(file.through)
        then = render_book(read_book(earlier)) if earlier.state == file.state else {}
        now = now or render_book(read_book(events))
        for block in file.edited:
            rendered = text_of(now, name, block.anchor)
            if rendered == block.text:
                continue
            diff = edit_lines(text_of(then, name, block.anchor) or rendered, block.text)
            if diff:
                edits.append(HandEdit(utc=utc_exact(), ledger=name, anchor=block.anchor, diff=diff))
    return edits, problems


def text_of(rendered: dict[str, list[Block]], name: str, anchor: str) -> str:
    """A block's rendered text, or nothing."""
    return next((block.text.strip() for block in rendered.get(name, []) if block.anchor == anchor), "")


def find_run(events: Events, run: str) -> EntryEvent | None:
    """The entry of a run, or None."""
    return next((event for event in events.of(EntryEvent) if event.run == run), None)


def require_run(events: Events, run: str) -> EntryEvent:
    """The entry of the only run whose id is, starts or ends so. LedgerError otherwise."""
    entries: Iterable[EntryEvent] = events.of(EntryEvent)
    near = {e.run: e for e in entries if e.run == run or e.run.startswith(run) or e.run.endswith(run)}
    if run in near or len(near) == 1:
        return near.get(run) or next(iter(near.values()))
    raise LedgerError(f"{run!r} fits {len(near)} runs of the ledger; `lab ledger list` names them")


def require_entry(book: Book, name: str) -> Entry:
    """The entry with this anchor or run. LedgerError otherwise."""
    entry = book.find(name)
    if entry is None:
        raise LedgerError(f"there is no entry {name!r}; `lab ledger list` names them")
    return entry
