"""`lab ledger`: lists, shows, verifies and renders the entries; waives faults and corrects entries with a reason."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.lab.entries import Entry

as_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


@click.group()
def command() -> None:
    """The ledgers: what was found, what was wrong, what is open. Their truth is data/ledger, one file an event."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also the entries that are struck through.")
@as_json_option
def list_entries(everything: bool, as_json: bool) -> None:
    """List the entries, newest first: date, outcome, strength, effect, anchor."""
    from labkit.lab.entries import read_book
    from labkit.lab.events import read_events
    from labkit.lab.lab import Lab

    events = read_events(Lab().root)
    warn(events.damaged)
    book = read_book(events)
    entries = book.newest_first() if everything else book.live
    if as_json:
        write_json([entry_row(entry) for entry in entries])
        return
    if not entries:
        click.echo("no entries yet; a planned run makes one (`lab run batch-decode`)")
    for entry in entries:
        verdict = entry.verdict
        state = "struck, " if entry.struck else ""
        click.echo(f"{entry.day}  {state}{verdict.outcome} ({verdict.strength})  {verdict.number()}  {entry.anchor}")
    if book.notes or book.imported:
        click.echo(f"and without data: {len(book.notes)} notes by hand, {len(book.imported)} imported pieces")


@command.command()
@click.argument("name")
@as_json_option
def show(name: str, as_json: bool) -> None:
    """Show the entry with this anchor, or the one that holds this run."""
    from labkit.lab.entries import read_book
    from labkit.lab.entry_text import entry_text
    from labkit.lab.events import read_events
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import require_entry

    events = read_events(Lab().root)
    warn(events.damaged)
    book = read_book(events)
    entry = require_entry(book, name)
    if as_json:
        events_of = [event.model_dump(mode="json") for event in entry.events]
        write_json(entry_row(entry) | {"plan": entry.plan.model_dump(mode="json"), "events": events_of})
    else:
        click.echo(entry_text(entry, book))


@command.command()
@as_json_option
def verify(as_json: bool) -> None:
    """Recompute every entry from its run's samples; ends with 2 when something does not agree.

    Also reports entries edited by hand, damaged events, and events the files do not show. Changes nothing.
    """
    from labkit.errors import LedgerError
    from labkit.lab.lab import Lab
    from labkit.lab.recheck import verify as verify_ledger

    found = verify_ledger(Lab().root)
    if as_json:
        faults = [fault._asdict() for fault in found.faults]
        counts = {"entries": found.entries, "missing": found.missing, "by_hand": found.by_hand}
        write_json(counts | {"imported": found.imported, "sound": found.sound, "faults": faults})
    else:
        for fault in found.faults:
            click.echo(f"{fault.kind:8}{fault}")
    wrong = [fault for fault in found.faults if fault.kind != "missing"]
    if wrong:
        raise LedgerError(f"{len(wrong)} of the ledger's statements do not agree with its data; first: {wrong[0]}")
    if not as_json:
        click.echo(f"{found.entries - found.missing} of {found.entries} entries recomputed from their data; all agree")
        if found.by_hand or found.imported:
            click.echo(f"without data to check: {found.by_hand} notes by hand, {found.imported} imported pieces")


@command.command()
@as_json_option
def render(as_json: bool) -> None:
    """Render FINDINGS.md, MISTAKES.md, OPEN-PROBLEMS.md and LEVERS.md from the events.

    What stands above the line in each file stays. An entry edited by hand is rendered again; the edit is kept in
    data/ledger and shown beneath it.
    """
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import render as render_ledgers

    done = render_ledgers(Lab().root)
    changed = [path.name for path in done.changed]
    if as_json:
        kept = [{"ledger": edit.ledger, "anchor": edit.anchor, "diff": list(edit.diff)} for edit in done.kept]
        write_json({"changed": changed, "kept": kept, "problems": list(done.problems)})
        return
    warn(done.problems)
    for edit in done.kept:
        click.echo(f"kept an edit by hand of {edit.ledger}, {edit.anchor or 'above the first entry'}", err=True)
    click.echo(f"rendered {', '.join(changed)}" if changed else "nothing to change")


@command.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@as_json_option
def import_files(files: tuple[Path, ...], as_json: bool) -> None:
    """Take notes you have already: FINDINGS.md, MISTAKES.md, OPEN-PROBLEMS.md, LEVERS.md of your own.

    Each section (`## 2026-12-01 · what was found`) and each row of LEVERS.md becomes an entry, its text byte for byte,
    sorted in by its date and marked unverified. Importing a file again takes only what is new in it.
    """
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import import_notes
    from labkit.lab.redact import Scrubber

    taken = import_notes(Lab().root, files)
    if as_json:
        write_json(
            [
                {"file": file.name, "sha256": file.sha256, "ledger": file.ledger, "found": len(file.pieces), "new": new}
                | {"undated": list(file.undated)}
                for file, new in taken
            ]
        )
        return
    scrubber = Scrubber()
    for path in files:
        scrubber.read(str(path), path.read_text(encoding="utf-8"))
    for hit in scrubber.found():
        if hit.kind == "secret":
            click.echo(f"lab: careful: {hit.file} holds what looks like a secret; it is kept as it stood", err=True)
    for file, new in taken:
        warn(tuple(f"{file.name}, {line}" for line in file.undated))
        dated = sum(bool(piece.dated) for piece in file.pieces)
        here = f", {len(file.pieces) - new} here already" if new < len(file.pieces) else ""
        click.echo(f"{file.ledger}: {new} imported ({dated} of {len(file.pieces)} dated{here}), marked unverified")


@command.command()
@click.argument("run")
@click.argument("fault")
@click.option("--reason", required=True, help="Why the run counts all the same; printed on its entry.")
def waive(run: str, fault: str, reason: str) -> None:
    """Let an invalid RUN count although FAULT speaks against it: a failed check, a detector of the audit, or `unchecked`.

    Of a run that is in no ledger (one without a plan) a detector's fail is set aside; the reason stands on its page.
    """
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import waive as waive_fault

    lab = Lab()
    click.echo(f"waived: {waive_fault(lab.root, run, fault, reason).relative_to(lab.root)}")


@command.command()
@click.argument("name")
@click.argument("text")
@click.option("--retract", is_flag=True, help="Strike the entry through; its runs no longer count.")
def correct(name: str, text: str, retract: bool) -> None:
    """Add a dated correction TEXT to the entry with this anchor or run."""
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import correct as correct_entry

    lab = Lab()
    click.echo(f"corrected: {correct_entry(lab.root, name, text, retract).relative_to(lab.root)}")


def entry_row(entry: "Entry") -> dict[str, Any]:
    """An entry as JSON shows it."""
    verdict = entry.verdict
    return {
        "anchor": entry.anchor,
        "date": entry.day,
        "ledger": entry.ledger,
        "struck": entry.struck,
        "experiment": entry.scope.experiment,
        "belief": entry.plan.belief,
        "rule": verdict.rule,
        "outcome": verdict.outcome,
        "strength": verdict.strength,
        "effect": verdict.effect,
        "low": verdict.low,
        "high": verdict.high,
        "pairs": verdict.pairs,
        "sessions": verdict.runs,
        "retrospective": verdict.retrospective,
        "scope": entry.scope.model_dump(mode="json"),
        "runs": [event.run for event in entry.events],
        "overturns": entry.overturns.anchor if entry.overturns else None,
        "struck_by": entry.struck_by.anchor if entry.struck_by else None,
    }


def warn(problems: "tuple[str, ...]") -> None:
    """Says on stderr what could not be read."""
    for problem in problems:
        click.echo(f"lab: {problem}", err=True)


def write_json(thing: Any) -> None:
    """Writes JSON on stdout."""
    import json

    click.echo(json.dumps(thing, indent=2, ensure_ascii=False))
