"""The ledgers as markdown: the book's entries, notes and tables as blocks. The same book gives the same bytes."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from labkit.lab.conditions import driver_words
from labkit.lab.entries import Book, Entry, anchor_of, entry_of
from labkit.lab.entry_text import ENDINGS, entry_text, invalid_words, lines, md, mistake_text, run_link, subject
from labkit.lab.events import Correction, HandEdit, ImportedEvent, Ledger, NoteEvent, Stored
from labkit.lab.notes_file import left_open
from labkit.lab.plan import cell_words
from labkit.lab.sweep_text import sweeps_text
from labkit.lab.verdict import count

LEDGERS: tuple[Ledger, ...] = ("FINDINGS.md", "MISTAKES.md", "OPEN-PROBLEMS.md", "LEVERS.md")


BLANK = "\r\n\ufeff"  # what may go from the ends of an imported piece


class Block(NamedTuple):
    """A piece of a ledger that has a permanent anchor; `text` is markdown without its anchor line."""

    anchor: str
    text: str


def render_book(book: Book) -> dict[str, list[Block]]:
    """File name → its blocks, newest first."""
    dated: dict[str, list[tuple[tuple[str, str], Block]]] = {name: [] for name in LEDGERS}
    for entry in book.entries:
        if entry.look:
            continue
        key = (entry.changed, entry.stored[0].name)
        dated[entry.ledger].append((key, Block(entry.anchor, entry_text(entry, book))))
        if entry.mistake:
            anchor = f"mistake-{entry.anchor}"
            dated["MISTAKES.md"].append((key, Block(anchor, mistake_text(entry))))
    for scope in by_scope(book.invalid):
        dated["OPEN-PROBLEMS.md"].append(
            ((scope[0].name, scope[0].name), Block(anchor_of(scope[-1]), invalid_text(scope)))
        )
    for item in book.notes:
        note = item.event
        assert isinstance(note, NoteEvent)
        corrections = book.corrected.get(anchor_of(item), [])
        dated[note.ledger].append(((item.name, item.name), Block(anchor_of(item), note_text(note, corrections))))
    for ledger, key, block in imported_blocks(book.imported):
        corrections = book.corrected.get(block.anchor, [])
        text = "\n\n".join([block.text, *corrections_text(corrections)])
        dated[ledger].append((key, Block(block.anchor, retracted_text(corrections) + text)))
    for key, block in retracted_words(book):
        dated["MISTAKES.md"].append((key, block))
    blocks = {
        name: [block for _, block in sorted(found, key=lambda pair: pair[0], reverse=True)]
        for name, found in dated.items()
    }
    if looks := book.looks():
        blocks["FINDINGS.md"].append(Block("looks", looks_text(looks)))
    if rows := [entry for entry in book.live if entry.verdict.ratio]:
        blocks["LEVERS.md"].insert(0, Block("levers", levers_text(rows)))
    if book.sweeps:
        blocks["LEVERS.md"].insert(1 if rows else 0, Block("sweeps", sweeps_text(book.sweeps)))
    return {name: with_edits(name, found, book) for name, found in blocks.items()}


def with_edits(name: str, blocks: list[Block], book: Book) -> list[Block]:
    """The blocks with the hand edits kept beneath them; edits whose block is gone stand in a block at the end."""
    edits: dict[str, list[str]] = defaultdict(list)
    known = {block.anchor for block in blocks}
    for _, edit in book.edits:
        if edit.ledger == name:
            edits[edit.anchor if edit.anchor in known else ""].append(edit_text(edit))
    found = [Block(anchor, "\n\n".join([text, *edits.get(anchor, [])])) for anchor, text in blocks]
    if edits.get(""):
        found.append(Block("kept-edits", "\n\n".join(["## Kept from edits by hand", *edits[""]])))
    return found


def invalid_text(scope: Sequence[Stored]) -> str:
    """Runs of a scope none of which counts, newest first."""
    newest = entry_of(scope[0])
    title = f"{newest.day} · {ENDINGS['invalid']}: {md(newest.plan.belief)}"
    where = lines(
        ("Device", md(newest.scope.device)),
        ("Driver and build", md(f"{driver_words(newest.scope.driver)}; {newest.scope.build}")),
        ("Model", md(newest.scope.model)),
        ("Rule", md(newest.plan.rule.words())),
    )
    runs = "\n".join(f"- {invalid_words(item)}" for item in scope)
    said = "Neither confirmed nor refuted: no run of this scope counts."
    return "\n\n".join([f"## {title}", said, where, "**Runs**", runs])


def note_text(note: NoteEvent, corrections: Sequence[Correction]) -> str:
    """A person's note: its first line is the heading."""
    first, _, rest = note.text.strip().partition("\n")
    body = "\n".join(md(line) for line in rest.strip().splitlines())
    retracted = retracted_text(corrections).strip()
    title = f"{note.day} · {md(first)}"
    parts = [f"## ~~{title}~~" if retracted else f"## {title}", retracted, body, *corrections_text(corrections)]
    return "\n\n".join(part for part in [*parts, "*Written by hand: a person's word, not a measurement.*"] if part)


def retracted_text(corrections: Sequence[Correction]) -> str:
    """What a person's words begin with once they were retracted; nothing before."""
    return "".join(f"**Retracted** {one.day}: {md(one.text)}\n\n" for one in corrections if one.retracts)


def corrections_text(corrections: Sequence[Correction]) -> list[str]:
    """The corrections of a person's words that leave them standing."""
    return [f"**Correction** {one.day}: {md(one.text)}" for one in corrections if not one.retracts]


def retracted_words(book: Book) -> Iterable[tuple[tuple[str, str], Block]]:
    """(what it is sorted by, block) for each finding of a person's own words that was retracted: a mistake to keep."""
    for item in (*book.notes, *book.imported):
        words, anchor = item.event, anchor_of(item)
        assert isinstance(words, NoteEvent | ImportedEvent)
        retracted = next((one for one in book.corrected.get(anchor, []) if one.retracts), None)
        if retracted is None or words.ledger != "FINDINGS.md":
            continue
        first = words.text.strip().partition("\n")[0].lstrip("# ").strip()
        told = lines(
            ("Believed", md(first)),
            ("Why", "a person had written it down; there are no samples of it here"),
            ("Corrected by", md(retracted.text)),
            ("See", f"[{md(words.ledger)}]({words.ledger}#{anchor})"),
        )
        text = f"## {retracted.day} · {md(first)}\n\n{told}"
        yield (retracted.utc.replace("-", "").replace(":", ""), anchor), Block(f"mistake-{anchor}", text)


def imported_blocks(items: Sequence[Stored]) -> Iterable[tuple[Ledger, tuple[str, str], Block]]:
    """(ledger, what it is sorted by, block) of each imported piece; the rows under one table's head are one block.

    A piece stands by its own date, beneath what this lab found that day; an undated one stands below all dated."""
    tables: dict[tuple[Ledger, str], list[Stored]] = defaultdict(list)
    for item in items:
        piece = item.event
        assert isinstance(piece, ImportedEvent)
        if piece.table:
            tables[piece.ledger, piece.table].append(item)
            continue
        key = (piece.dated.replace("-", ""), file_order(piece))
        text = f"{piece.text.strip(BLANK)}{left_open(piece.text)}\n\n{source(piece)}"
        yield piece.ledger, key, Block(anchor_of(item), text)
    for (ledger, table), rows in tables.items():
        head = table if table.startswith("#") else f"## From {imported(rows[0]).file}\n\n{table}"
        heading, _, columns = head.partition("\n")
        text = "\n".join([columns.strip(BLANK), *(imported(row).text.strip(BLANK) for row in rows)])
        block = Block(anchor_of(rows[0]), f"{heading.strip(BLANK)}\n\n{text}\n\n{source(imported(rows[-1]))}")
        yield ledger, ("", file_order(imported(rows[0]))), block


def imported(item: Stored) -> ImportedEvent:
    """The event as the imported piece it is."""
    assert isinstance(item.event, ImportedEvent), item.name
    return item.event


def file_order(piece: ImportedEvent) -> str:
    """Sorts pieces of one date as they stood in their file, those of a later import above."""
    return f"{piece.utc[:10]}-{99_999 - piece.place:05}"


def source(piece: ImportedEvent) -> str:
    """Where an imported piece is from, and what it is worth."""
    return (
        f"*Unverified: imported on {piece.day} from {md(piece.file)} (SHA-256 {piece.file_sha256[:12]}). "
        "Its numbers have no samples in this lab.*"
    )


def edit_text(edit: HandEdit) -> str:
    """An edit by hand as it was found, in a code block."""
    body = "\n".join(edit.diff)
    fence = "`" * max(4, 1 + max((len(run) for line in edit.diff for run in backticks(line)), default=0))
    said = f"**Edited by hand**, found {edit.day}; the ledger shows its data again. The edit was:"
    return f"{said}\n\n{fence}diff\n{body}\n{fence}"


def backticks(line: str) -> list[str]:
    """The runs of backticks in a line."""
    return [run for run in "".join(c if c == "`" else " " for c in line).split(" ") if run]


def looks_text(looks: Iterable[Entry]) -> str:
    """One line an experiment: fewer than ten pairs say where to look, not what is."""
    rows = [
        f"- {entry.day} · {md(entry.scope.experiment)}: {entry.verdict.outcome}, "
        f"{subject(entry)} {entry.verdict.number()}, "
        f"{count(entry.verdict.pairs, 'pair' if entry.verdict.ratio else 'repetition')} in "
        f"{count(entry.verdict.runs, 'run')} ({run_link(entry.newest)}, {md(entry.scope.device)})"
        for entry in looks
    ]
    return "\n".join(["## Looks", "", "Fewer than ten pairs: nothing to claim, replaced by the next look.", "", *rows])


def levers_text(rows: Iterable[Entry]) -> str:
    """What each knob was measured to do, the newest first."""
    head = [
        "## What each knob does",
        "",
        "| knob | from | to | metric | effect | verdict | evidence | device | model | date |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(lever_row(entry) for entry in rows)])


def lever_row(entry: Entry) -> str:
    """One knob's effect as a table row."""
    rule, verdict = entry.plan.rule, entry.verdict
    assert rule.against is not None
    place = f"[{entry.day}]({entry.ledger}#{'looks' if entry.look else entry.anchor})"
    cells = (
        ", ".join(entry.plan.knobs),
        cell_words(rule.against),
        cell_words(rule.cell),
        rule.metric,
        verdict.number(),
        verdict.outcome,
        f"{verdict.strength}, {count(verdict.pairs, 'pair')}" + (", retrospective" if verdict.retrospective else ""),
        entry.scope.device,
        entry.scope.model,
    )
    return "| " + " | ".join([*(md(cell) for cell in cells), place]) + " |"


def by_scope(items: Iterable[Stored]) -> list[list[Stored]]:
    """Runs grouped by their scope, in the order they come."""
    groups: dict[str, list[Stored]] = defaultdict(list)
    for item in items:
        groups[entry_of(item).scope.id].append(item)
    return list(groups.values())
