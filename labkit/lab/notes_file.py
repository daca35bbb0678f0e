"""A person's own notes taken apart: `## YYYY-MM-DD · title` sections and table rows, every byte of each as it stood."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from labkit.errors import LedgerError
from labkit.lab.events import Ledger

MOST_BYTES = 16 << 20
MOST_PIECES = 5000
BY_ROWS = ("LEVERS.md", "OPEN-PROBLEMS.md")  # where each row of a table is an entry
NAMES: dict[str, Ledger] = {
    "findings.md": "FINDINGS.md",
    "mistakes.md": "MISTAKES.md",
    "open-problems.md": "OPEN-PROBLEMS.md",
    "levers.md": "LEVERS.md",
}
HEADING = re.compile(r"^ {0,3}(#{1,3})[ \t]+(.*)$")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = rf"(?:{'|'.join(MONTHS)})[a-z]{{0,6}}"
MARKS = r"^[~*_\[(]*"  # emphasis and brackets before a date
BY_NUMBER = re.compile(MARKS + r"(\d{4})([-/.])(\d\d?)\2(\d\d?)(?=T\d|[\W_]|$)")
BY_NAME = re.compile(MARKS + rf"(\d\d?)\.? ({MONTH})\.?,? (\d{{4}})(?=[\W_]|$)", re.I)
LIKE_A_DATE = re.compile(
    MARKS + r"(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}|\d\d?/\d\d?/\d\d"
    rf"|\d\d?\.? {MONTH}\.?,? \d{{4}}|{MONTH}\.? \d\d?,? \d{{4}})(?!\d)",
    re.I,
)  # fmt: skip
FORMS = "2026-11-05, 2026/11/05 or 4 Nov 2026"
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
DELIMITER = re.compile(r"^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
FOREIGN = re.compile(r"^(<!-- Below this line |<a id=\"[^\"]+\"></a> ?<!-- rendered |<{7} |>{7} )")


class Piece(NamedTuple):
    """A piece of a notes file. `dated` is "" without a date; `table` is the head of the table the text is a row of."""

    text: str
    dated: str = ""
    table: str = ""
    copy_number: int = 0


class NotesFile(NamedTuple):
    """A notes file, read: which ledger it is for, its name and hash, its pieces in order; `undated` has a line for each
    heading that begins with what looks like a date and cannot be read as one."""

    ledger: Ledger
    name: str
    sha256: str
    pieces: tuple[Piece, ...]
    undated: tuple[str, ...] = ()


def read_notes(path: Path) -> NotesFile:
    """Reads a notes file. LedgerError, with the line, for what is not one: another name, no text, no notes, a ledger
    that was rendered here, marks of a merge."""
    ledger = NAMES.get(path.name.lower())
    if ledger is None:
        raise LedgerError(f"{path} is not named as a ledger; name it {', '.join(sorted(NAMES.values()))}")
    try:
        size = path.stat().st_size
        content = path.read_bytes() if path.is_file() and size <= MOST_BYTES else b""
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from None
    if not path.is_file():
        raise LedgerError(f"{path} is not a file")
    if size > MOST_BYTES:
        raise LedgerError(f"{path} has {size:,} bytes; notes have at most {MOST_BYTES:,}: split the file")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LedgerError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if FOREIGN.match(line):
            what = "marks of an unresolved merge" if line[0] in "<>" and line[1] in "<>" else "what labkit rendered"
            raise LedgerError(f"{path}, line {number}, holds {what}, not a person's notes; import the original")
        if "\0" in line:
            raise LedgerError(f"{path}, line {number}, holds a NUL byte: it is not text")
    pieces = list(pieces_of(text, by_rows=ledger in BY_ROWS))
    if not pieces:
        raise LedgerError(f"{path} holds no notes: no section (`## 2026-12-01 · what was found`) and no table")
    if len(pieces) > MOST_PIECES:
        raise LedgerError(f"{path} holds {len(pieces):,} entries; at most {MOST_PIECES:,} are taken at once: split it")
    return NotesFile(ledger, path.name, hashlib.sha256(content).hexdigest(), tuple(pieces), tuple(undatable(text)))


def pieces_of(text: str, by_rows: bool = False) -> Iterator[Piece]:
    """The pieces of a text, numbered where equal. A section that says nothing below its heading stays if it is dated."""
    seen: Counter[tuple[str, str]] = Counter()
    for section, dated in sections(text):
        rows, rest = table_rows(section) if by_rows else ([], section)
        if dated or says_something(rest, by_rows and bool(rows)):
            rows.append(Piece(rest, dated))
        for piece in rows:
            yield piece._replace(copy_number=seen[piece.table, piece.text])
            seen[piece.table, piece.text] += 1


def sections(text: str) -> Iterator[tuple[str, str]]:
    """(section, its date or "") in order; joined they are the text. What stands before the first is one of its own.

    A section begins at a heading of the first or second level, and at one of the third that is dated, follows one of
    the third, or stands in a file without any of the second. Lines in code fences and comments are no headings."""
    found = list(headings(text))
    seconds = any(level == 2 for _, level, _ in found)
    starts: list[tuple[int, str]] = [(0, "")]
    last = 0
    for offset, level, dated in found:
        if level <= 2 or dated or last == 3 or not seconds:
            last = level
            if offset == 0:
                starts = []
            starts.append((offset, dated))
    ends = [offset for offset, _ in starts[1:]] + [len(text)]
    for (start, dated), end in zip(starts, ends, strict=True):
        if end > start:
            yield text[start:end], dated


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """(offset, level 1 to 3, date or "") of each heading outside code fences and comments."""
    for line in scan(text):
        if line.plain and (heading := HEADING.match(line.text)):
            yield line.offset, len(heading[1]), date_of(heading[2])


def undatable(text: str) -> Iterator[str]:
    """A line for each heading that begins with what looks like a date and is none, or could be more than one."""
    for number, line in enumerate(scan(text), 1):
        heading = HEADING.match(line.text) if line.plain else None
        if heading and not date_of(heading[2]) and (like := LIKE_A_DATE.match(heading[2])):
            yield f"line {number}: {like[1]} is taken as no date; a heading's date is written as {FORMS}"


class Line(NamedTuple):
    """A line without its ending. `plain` tells that it is in no code fence and no comment; `closing` is what would
    close the one that is open after it."""

    offset: int
    text: str
    plain: bool
    closing: str


def scan(text: str) -> Iterator[Line]:
    """The lines of a text, each with where it stands."""
    offset, closing = 0, ""
    for line in text.split("\n"):
        bare = line.removeprefix("\ufeff").rstrip("\r")
        mark, plain = FENCE.match(bare), False
        if closing == "-->":
            closing = "" if "-->" in bare else closing
        elif closing:
            closing = "" if mark and mark[1].startswith(closing) and not bare.strip(" `~") else closing
        elif mark:
            closing = mark[1]
        else:
            plain = True
            closing = "-->" if bare.rfind("<!--") > bare.rfind("-->") else ""
        yield Line(offset, bare, plain, closing)
        offset += len(line) + 1


def date_of(title: str) -> str:
    """The day that a heading begins with, as `2026-11-05`; nothing where there is none, or none of the calendar."""
    try:
        if found := BY_NUMBER.match(title):
            return date(int(found[1]), int(found[3]), int(found[4])).isoformat()
        if found := BY_NAME.match(title):
            return date(int(found[3]), MONTHS.index(found[2][:3].lower()) + 1, int(found[1])).isoformat()
    except ValueError:
        pass
    return ""


def table_rows(section: str) -> tuple[list[Piece], str]:
    """(the rows of a section's tables, the section without them)."""
    lines = section.split("\n")
    heading = lines[0] if HEADING.match(lines[0].rstrip("\r")) else ""
    rows: list[Piece] = []
    rest: list[str] = []
    at = 0
    while at < len(lines):
        head = lines[at : at + 2]
        if len(head) == 2 and "|" in head[0] and "|" in head[1] and DELIMITER.match(head[1].rstrip("\r")):
            table = "\n".join(([heading] if heading.startswith("##") else []) + head)
            at += 2
            while at < len(lines) and "|" in lines[at]:
                rows.append(Piece(lines[at], "", table))
                at += 1
            continue
        rest.append(lines[at])
        at += 1
    return rows, "\n".join(rest)


def says_something(section: str, has_rows: bool) -> bool:
    """Whether an undated section is more than a title: of a file, or of a table whose rows are kept by themselves."""
    lines = [line for line in section.removeprefix("\ufeff").split("\n") if line.strip()]
    heading = HEADING.match(lines[0].rstrip("\r")) if lines else None
    if heading is None:
        return bool(lines)
    return len(lines) > 1 or (len(heading[1]) > 1 and not has_rows)


def left_open(text: str) -> str:
    """What closes a code fence or a comment that a text leaves open, so that what follows it is not swallowed."""
    closing = ""
    for line in scan(text):
        closing = line.closing
    return f"\n{closing}" if closing else ""
