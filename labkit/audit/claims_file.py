"""A CSV of claims, read strictly and without trust: bounded lines and fields, UTF-8, every fault with its row and column."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from labkit.errors import ParameterError

MOST_ROWS = 20_000
MOST_LINE = 100_000  # bytes of one line
MOST_FIELD = 10_000  # characters of one field
SHOWN = 40
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # a tab and the ends of lines are text


class Places:
    """Names of places in a file of claims: `r9700.csv, row 3 (line 4), column unit`."""

    def __init__(self, path: Path) -> None:
        self.path, self.columns = path, ["?"]

    def fault(self, row: int, line: int, column: str | int, what: str) -> ParameterError:
        """An error that names its place; `column` is its name or its index. Row 0 is the header."""
        if isinstance(column, int):
            column = self.columns[column] if column < len(self.columns) else f"number {column + 1}"
        place = f"row {row} (line {line})" if row else f"the header (line {line})"
        return ParameterError(f"{self.path.name}, {place}, column {column}: {what}")


def read_table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header as written, and (line, cells) of each row. ParameterError names row and column of what is wrong."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}") from None
    places = Places(path)
    rows: list[tuple[int, list[str]]] = []
    header: list[str] = []
    with file:
        for line, cells in logical_rows(file, places):
            if not header:
                header = [cell.strip() for cell in cells]
                places.columns = header
                check_header(places, header)
                continue
            if len(rows) >= MOST_ROWS:
                raise places.fault(len(rows) + 1, line, 0, f"there are over {MOST_ROWS:,} rows; split the file")
            if len(cells) != len(header):
                at = min(len(cells), len(header))
                what = f"the row has {len(cells)} cells and the header {len(header)}"
                raise places.fault(len(rows) + 1, line, at, what)
            rows.append((line, [cell.strip() for cell in cells]))
    if not header:
        raise ParameterError(f"{path.name} is empty; its first row names the columns")
    return header, rows


def check_header(places: Places, header: list[str]) -> None:
    """Refuses a header with an empty or a repeated name."""
    if len(header) == 1 and ";" in header[0]:
        raise places.fault(0, 1, "number 1", "the columns are parted by ';'; save the file with commas between them")
    for index, name in enumerate(header):
        if not name:
            raise places.fault(0, 1, index, "the column has no name")
        if name in header[:index]:
            raise places.fault(0, 1, name, "the column is there twice")


def logical_rows(file: BinaryIO, places: Places) -> Iterator[tuple[int, list[str]]]:
    """(line it begins in, cells) of each row that is not blank; a quoted field may hold newlines. Never holds more than
    a row within the limits."""
    text, began, row, number = "", 0, 0, 0
    while raw := file.readline(MOST_LINE + 1):
        number += 1
        began = began or number
        if len(raw) > MOST_LINE:
            at = field_index(text + raw.decode("utf-8", "replace"))
            raise places.fault(
                row, began, at, f"the field goes on for over {MOST_LINE:,} bytes; is this a file of claims?"
            )
        try:
            text += raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            at = field_index(text + raw[: error.start].decode("utf-8", "replace"))
            raise places.fault(row, began, at, f"byte {raw[error.start]:#04x} is not UTF-8; save it as UTF-8") from None
        if control := CONTROL.search(text):
            at = field_index(text[: control.start()])
            raise places.fault(row, began, at, f"the control character {ord(control[0]):#04x} is not text")
        if text.count('"') % 2:  # a quoted field goes on
            if len(text) > MOST_LINE:
                raise places.fault(row, began, field_index(text), "a quoted field does not end; a quote is missing")
            continue
        if cells := parse(text):
            for index, cell in enumerate(cells):
                if len(cell) > MOST_FIELD:
                    what = f"the field has {len(cell):,} characters, of {MOST_FIELD:,} at the most"
                    raise places.fault(row, began, index, what)
            yield began, cells
            row += 1
        text, began = "", 0
    if text:
        raise places.fault(row, began, field_index(text), "a quoted field does not end; a quote is missing")


def parse(text: str) -> list[str]:
    """The cells of one row; none for a blank line."""
    if not text.strip():
        return []
    return next(csv.reader([text.rstrip("\r\n").replace("\r\n", "\n").replace("\n", " ")]), [])


def field_index(text: str) -> int:
    """Which field a row's beginning breaks off in."""
    fields, quoted = 0, False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            fields += 1
    return fields


NUMBER = re.compile(r"[~≈]?\s*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/°%-]*)\s*\*?")
UNKNOWN = frozenset({"", "-", "–", "—", "?", "unknown", "n/a", "na", "none", "not stated", "not given"})


def number_of(text: str, units: dict[str, float]) -> float | None:
    """A number as people write it (`1,724`, `24.7e9*`, `~0.53`, `1359 MHz`), None for what says that it is unknown.
    ParameterError for anything else: not a number, not finite, below 0, or in a unit not among `units`."""
    if text.strip().lower() in UNKNOWN:
        return None
    if text.strip().lower() == "empty":  # a context
        return 0.0
    shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    match = NUMBER.fullmatch(text.strip())
    digits = match[1].replace(",", "") if match else ""
    if match is None or not any(character.isdigit() for character in digits.lower().partition("e")[0]):
        raise ParameterError(f"{shown!r} is not a number; leave it empty where it is not known")
    if match[2] and match[2].lower() not in units:
        known = f"; it may be in {', '.join(units)}" if units else ""
        raise ParameterError(f"{shown!r} has a unit that does not belong here{known}")
    value = float(digits) * units.get(match[2].lower(), 1.0)
    if not 0 <= value < 1e30:
        raise ParameterError(f"{shown!r} is outside what can be: a number from 0")
    return value


def half_digit(text: str) -> float:
    """Half of the last digit a number was written with: 0.05 for `36.0`, 0.5 for `1,724`, 5e7 for `24.7e9`."""
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        return 0.0
    digits, _, exponent = match[1].replace(",", "").lower().partition("e")
    places = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** min(int(exponent or 0) - places, 30)
