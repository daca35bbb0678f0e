"""The ledgers' files: what a person wrote above the line, rendered blocks below it, each with its hash."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.errors import LedgerError
from labkit.lab.events import digest
from labkit.lab.record import write_atomic
from labkit.lab.render import Block

# Longer than a line on purpose: git takes what a person writes above it and the state below as two changes, not one.
LINE = """\
<!-- Below this line everything is rendered from data/ledger/ by `lab ledger render`; write above it.

     After branches were merged, `lab ledger render` makes the rest anew from the events of both.

     state {state} through {through} -->"""
LINE_START = re.compile(r"^<!-- Below this line ", re.M)
STATE = re.compile(r"^(?:<!-- Below this line .* | +)state (?P<state>[0-9a-f]{16}) through (?P<through>\S+) -->$", re.M)
BLOCK_SHAPE = re.compile(r'^<a id="(?P<anchor>[^"]+)"></a> ?<!-- rendered (?P<hash>[0-9a-f]{16}) -->$', re.M)
OURS, THEIRS = re.compile(r"^<{7} ", re.M), re.compile(r"^>{7} ", re.M)
MOST_BYTES = 64 << 20  # ten thousand entries have a third of it
ASIDE = "[a-z0-9_]" * 8  # how `write_atomic` ends the name of the file it writes aside
NOTHING = "*Nothing yet.*"
TITLES = {
    "FINDINGS.md": "# Findings",
    "MISTAKES.md": "# Mistakes",
    "OPEN-PROBLEMS.md": "# Open problems",
    "LEVERS.md": "# Levers",
}


class FoundBlock(NamedTuple):
    """A block as it stands in a file; `hash` is what it had when it was rendered."""

    anchor: str
    hash: str
    text: str

    @property
    def edited(self) -> bool:
        """Whether its text is not what was rendered."""
        return digest(f"{self.anchor}\n{self.text}") != self.hash


class LedgerFile(NamedTuple):
    """A ledger taken apart. `stray` is text between the line and the first block; `state` is "" without a line.

    `merged` tells that git put it together from two branches line by line: then its blocks are no one's."""

    head: str
    stray: str
    blocks: tuple[FoundBlock, ...]
    state: str
    through: str
    merged: bool = False

    @property
    def edited(self) -> list[FoundBlock]:
        """The blocks a person changed; text put before the first is one without an anchor."""
        stray = [FoundBlock("", "", self.stray)] if self.stray and self.stray != NOTHING else []
        return [*stray, *(block for block in self.blocks if block.edited)]


def read_ledger(path: Path) -> LedgerFile:
    """The ledger at `path` taken apart; an absent one has its title alone above the line.

    Where the line was deleted, what a person wrote ends at the first rendered block. LedgerError when it is no text."""
    text = ledger_content(path)
    start, states, first = LINE_START.search(text), list(STATE.finditer(text)), BLOCK_SHAPE.search(text)
    if len(states) > 1 or (OURS.search(text) and THEIRS.search(text)):
        ends = [match.start() for match in (start, *states, first) if match]
        return LedgerFile(text[: min(ends, default=len(text))].rstrip(), "", (), "", "", merged=True)
    state = states[0] if states else None
    if start is None or state is None or (first is not None and first.start() < state.start()):
        head = text[: first.start()] if first else text
        body = text[first.start() :] if first else ""
        return LedgerFile(head[: start.start() if start else None].rstrip(), "", split_blocks(body), "", "")
    body = text[state.end() :]
    first = BLOCK_SHAPE.search(body)
    stray = (body[: first.start()] if first else body).strip()
    return LedgerFile(text[: start.start()].rstrip(), stray, split_blocks(body), state["state"], state["through"])


def ledger_content(path: Path) -> str:
    """A ledger's text with its line endings as they are; that of an absent one is its title. LedgerError when it is too
    large to be one or no text."""
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= MOST_BYTES else b""
    except FileNotFoundError:
        return TITLES[path.name] + "\n"
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from None
    mend = "restore it from git, or move it away and `lab ledger render` makes it anew from data/ledger"
    if size > MOST_BYTES:
        raise LedgerError(f"{path} has {size:,} bytes, more than a ledger can have ({MOST_BYTES:,}); {mend}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LedgerError(f"{path} is not UTF-8 text (byte {error.start}); {mend}") from None


def split_blocks(body: str) -> tuple[FoundBlock, ...]:
    """The rendered blocks in a body."""
    starts = list(BLOCK_SHAPE.finditer(body))
    ends = [match.start() for match in starts[1:]] + [len(body)] * bool(starts)
    return tuple(
        FoundBlock(match["anchor"], match["hash"], body[match.end() : end].strip())
        for match, end in zip(starts, ends, strict=True)
    )


def ledger_text(head: str, blocks: Sequence[Block], state: str, through: str) -> str:
    """A ledger put together again."""
    line = LINE.format(state=state, through=through or "none")
    parts = [head.rstrip(), line]
    for anchor, text in blocks:
        body = text.strip()
        parts.append(f'<a id="{anchor}"></a> <!-- rendered {digest(f"{anchor}{chr(10)}{body}")} -->\n\n{body}')
    return "\n\n".join(parts if blocks else [*parts, NOTHING]) + "\n"


def edit_lines(rendered: str, found: str) -> tuple[str, ...]:
    """What a person changed in a block: `- ` lines they took away, `+ ` lines they put in."""
    diff = difflib.ndiff(rendered.strip().splitlines(), found.strip().splitlines())
    return tuple(line.rstrip() for line in diff if line[:2] in ("- ", "+ ") and line[2:].strip())


def write_if_changed(path: Path, text: str) -> bool:
    """Swaps the whole file in, unless it says the same already. To be called by who holds the ledger.
    LedgerError when it cannot be written: the events are, so nothing is lost."""
    for left in path.parent.glob(f".{path.name}.{ASIDE}"):  # by a process that died before it swapped its file in
        left.unlink(missing_ok=True)
    try:
        if path.read_bytes() == text.encode():
            return False
    except FileNotFoundError:
        pass
    try:
        write_atomic(path, text)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror}; `lab ledger render` writes it later") from None
    return True
