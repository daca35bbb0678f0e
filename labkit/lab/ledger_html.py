"""The ledger's HTML: a row an entry that holds, newest first."""

from labkit.lab.entries import Book, Entry
from labkit.show.pieces import Html, facts_table, mark, paragraph, table

MOST_ENTRIES = 60


def book_html(book: Book) -> Html:
    """The newest entries that hold, then how much else the ledgers have."""
    live = book.live
    if not live:
        return Html(
            paragraph("No entry holds yet; a planned run makes one.") + paragraph(f"Beside it: {book.beside()}.")
        )
    rows = [
        (
            entry.day,
            mark(entry.verdict.outcome),
            entry.verdict.strength,
            entry.verdict.number(),
            entry.plan.belief,
            entry.anchor,
        )
        for entry in live[:MOST_ENTRIES]
    ]
    more = f"{len(live) - MOST_ENTRIES} older entries that hold, " if len(live) > MOST_ENTRIES else ""
    head = ("date", "verdict", "strength", "effect", "belief", "entry")
    return Html(table(head, rows) + paragraph(f"Beside it: {more}{book.beside()}."))


def entry_html(entry: Entry) -> Html:
    """One entry: what was believed, what the data answered, and where that holds."""
    struck = (
        "retracted" if entry.retracted else f"no longer: see {entry.struck_by.anchor}" if entry.struck_by else "yes"
    )
    facts = {
        "belief": entry.plan.belief,
        "verdict": mark(entry.verdict.outcome),
        **{name: text for name, text in entry.verdict.facts().items() if name != "verdict"},
        "device": entry.scope.device,
        "model": entry.scope.model,
        "holds": struck,
        "changed": entry.day,
    }
    return facts_table(facts, entry.anchor)
