"""A file of another tool, read with care: every value knows its place, and faults are told with it."""

import codecs
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from labkit.errors import RunError

MOST_BYTES = 128 << 20
MOST_ENTRIES = 1_000_000  # of one list, and of the lines of a file
MOST_VALUES = 20_000_000
MOST_OBJECTS = 2_000_000
MOST_NUMBER = 1e15
MOST_TEXT = 1000
SHOWN = 60

Kind = Literal["json", "lines", "text"]


@dataclass(frozen=True)
class Node:
    """A value of a file and its place in it, as `[3].samples_ns` or `line 4: metrics`. What is missing is None."""

    file: Path
    place: str
    value: Any

    def fault(self, what: str) -> RunError:
        """The error that says what is wrong here."""
        return RunError(f"{self.file}: {self.place or 'the whole file'} {what}; nothing was imported")

    @property
    def missing(self) -> bool:
        """Whether there is nothing here, or null."""
        return self.value is None

    def at(self, *names: str) -> "Node":
        """A member of an object, by its names from the outside in; missing where there is none. RunError where what
        should hold it is no object."""
        found = self
        for name in names:
            value = found.value
            if value is not None and not isinstance(value, dict):
                raise found.fault(f"is {shown(value)}, where an object with {name!r} is expected")
            found = Node(self.file, joined(found.place, name), None if value is None else value.get(name))
        return found

    def first(self, *names: str) -> "Node":
        """The first of these members that is there; the first of all where none is."""
        return next((found for name in names if not (found := self.at(name)).missing), self.at(names[0]))

    def has(self, *names: str) -> bool:
        """Whether it is an object with all these members."""
        return isinstance(self.value, dict) and all(name in self.value for name in names)

    def items(self, expected: str = "a list") -> list["Node"]:
        """The entries of a list; none where it is missing. RunError where it is something else."""
        if self.missing:
            return []
        if not isinstance(self.value, list):
            raise self.fault(f"is {shown(self.value)}, where {expected} is expected")
        return [Node(self.file, f"{self.place}[{i}]", value) for i, value in enumerate(self.value)]

    def number(self, least: float = 0.0, most: float = MOST_NUMBER) -> float | None:
        """A number, None where it is missing. RunError for what is none, or lies outside `least` to `most`."""
        if self.missing:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fault(f"is {shown(self.value)}, where a number is expected")
        if not least <= self.value <= most:
            raise self.fault(f"is {shown(self.value)}, where a number from {least:g} to {most:g} is expected")
        return float(self.value)

    def whole(self, least: int = 0, most: float = MOST_NUMBER) -> int | None:
        """A whole number, None where it is missing."""
        found = self.number(least, most)
        if found is not None and found != int(found):
            raise self.fault(f"is {shown(self.value)}, where a whole number is expected")
        return None if found is None else int(self.value)

    def needed(self, least: float = 0.0, most: float = MOST_NUMBER) -> float:
        """A number that must be there."""
        found = self.number(least, most)
        if found is None:
            raise self.fault("is missing, where a number is expected")
        return found

    def numbers(self, least: float = 0.0, most: float = MOST_NUMBER) -> list[float]:
        """A list of numbers; none where it is missing."""
        return [entry.needed(least, most) for entry in self.items("a list of numbers")]

    def text(self) -> str | None:
        """A text of one line, None where it is missing or empty."""
        if self.missing or self.value == "":
            return None
        if not isinstance(self.value, str):
            raise self.fault(f"is {shown(self.value)}, where a text is expected")
        if len(self.value) > MOST_TEXT:
            raise self.fault(f"is a text of {len(self.value):,} characters, of {MOST_TEXT:,} at the most")
        if not self.value.isprintable():  # control characters, and halves of surrogate pairs
            raise self.fault(f"holds characters that cannot be printed: {shown(self.value)}")
        return self.value

    def scalar(self) -> bool | int | float | str | None:
        """A setting: true or false, a number, or a short text; None where it is missing."""
        if self.missing or isinstance(self.value, bool):
            return self.value  # type: ignore[no-any-return]
        if isinstance(self.value, str):
            return self.text()
        found = self.number(-MOST_NUMBER)
        return self.value if isinstance(self.value, int) else found


@dataclass(frozen=True)
class Document:
    """A file, read: JSON as one value, JSON lines as `rows`, or text that is neither. `content` are its bytes."""

    path: Path
    content: bytes
    kind: Kind
    text: str
    rows: tuple[Node, ...]

    @property
    def root(self) -> Node:
        """The one value of a JSON file; of other files, nothing."""
        return self.rows[0] if self.kind == "json" else Node(self.path, "", None)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def records(self) -> Sequence[Node]:
        """The objects it consists of: each line, each entry of a JSON list, or the one JSON object."""
        return self.root.items() if self.kind == "json" and isinstance(self.root.value, list) else self.rows

    def fault(self, what: str) -> RunError:
        """The error that says what is wrong with the whole of it."""
        return Node(self.path, "", None).fault(what)


def joined(place: str, name: str) -> str:
    """The place of a member: `[3].name`, `line 4: name`."""
    if not place:
        return name
    return f"{place}: {name}" if place.startswith("line ") and ":" not in place else f"{place}.{name}"


def shown(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return f"a whole number of {value.bit_length():,} bits"
    text = json.dumps(value) if not isinstance(value, str) else ascii(value[:SHOWN])
    return text if len(text) <= SHOWN + 2 else f"{text[:SHOWN]}…"


def read_document(path: Path) -> Document:
    """Reads a file. RunError, in one line with file and place, for one that cannot be read, is too large, is cut short,
    or holds a number that is none."""
    content = read_bytes(path)
    text = decoded(path, content)
    if text.lstrip()[:1] not in ("{", "["):
        return Document(path, content, "text", text, ())
    refuse_too_many(path, text)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and is_object(lines[0][1]):
        if len(lines) > MOST_ENTRIES:
            raise RunError(f"{path} has {len(lines):,} lines, of {MOST_ENTRIES:,} at the most; nothing was imported")
        rows = tuple(Node(path, f"line {number}", parsed(path, line, number)) for number, line in lines)
        kind: Kind = "lines"
    else:
        rows, kind = (Node(path, "", parsed(path, text)),), "json"
    for row in rows:
        check_values(row)
    return Document(path, content, kind, text, rows)


def read_bytes(path: Path) -> bytes:
    """The bytes of a plain file of a size that can be looked at."""
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path} is not a file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise RunError(f"{path} has {size:,} bytes, of {MOST_BYTES:,} at the most; nothing was imported")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


def decoded(path: Path, content: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 as some shells write it. RunError names the first other byte."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: byte {error.start:,} is no text ({error.reason}); nothing was imported") from None


def refuse_too_many(path: Path, text: str) -> None:
    """RunError for what would not fit into memory once parsed: counted before it is."""
    for sign, most, what in (
        (",", MOST_VALUES, "values"),
        ("{", MOST_OBJECTS, "objects"),
        ("[", MOST_OBJECTS, "lists"),
    ):
        if (count := text.count(sign)) > most:
            raise RunError(f"{path} holds about {count:,} {what}, of {most:,} at the most; nothing was imported")


def is_object(line: str) -> bool:
    """Whether a line alone is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def parsed(path: Path, text: str, line: int | None = None) -> Any:
    """A JSON value. RunError names line and column of the first fault."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        row = error.lineno if line is None else line
        cut = " (the file ends too early)" if error.pos >= len(text.rstrip()) - 1 else ""
        where = f"line {row}, column {error.colno}"
        raise RunError(f"{path}: {where}: no JSON: {error.msg}{cut}; nothing was imported") from None
    except RecursionError:
        raise RunError(f"{path}: line {line or 1}: lists nested too deeply; nothing was imported") from None
    except ValueError as error:
        raise RunError(f"{path}: line {line or 1}: no JSON: {str(error)[:80]}; nothing was imported") from None


def check_values(root: Node) -> None:
    """RunError for the first number that is not finite and the first list that is too long, by its place."""
    waiting = [iter([(root.place, root.value)])]
    while waiting:
        for place, value in waiting[-1]:
            if isinstance(value, float) and not math.isfinite(value):
                raise Node(root.file, place, value).fault(f"is {value}, which is no measured value")
            if isinstance(value, list) and len(value) > MOST_ENTRIES:
                what = f"is a list of {len(value):,}, of {MOST_ENTRIES:,} at the most"
                raise Node(root.file, place, value).fault(what)
            if isinstance(value, dict | list) and value:
                waiting.append(members(place, value))
                break
        else:
            waiting.pop()


def members(place: str, value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    """What a list or an object holds, with the places."""
    if isinstance(value, dict):
        return ((joined(place, ascii(name)[1:-1][:SHOWN]), item) for name, item in value.items())
    return ((f"{place}[{i}]", item) for i, item in enumerate(value))
