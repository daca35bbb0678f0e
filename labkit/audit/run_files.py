"""The files of a run that the audit reads: lines of JSON, telemetry, and what its notebook says in words."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.errors import RunError

MOST_LINES = 1_000_000
MOST_BYTES = 1 << 30


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; none where there is none. RunError names a line that is not one."""
    if not path.is_file():
        return
    if (size := path.stat().st_size) > MOST_BYTES:
        raise RunError(f"{path} has {size:,} bytes, of {MOST_BYTES:,} at the most")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number > MOST_LINES:
                raise RunError(f"{path} has over {MOST_LINES:,} lines")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise RunError(f"{path}, line {number}, is not a JSON object")
            yield row


def read_telemetry(path: Path) -> Iterator[dict[str, Any]]:
    """The readings of telemetry.csv: numbers where there is one, None where the card did not say."""
    if not path.is_file():
        return
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.DictReader(file):
                yield {name: reading(name, value) for name, value in row.items() if name is not None}
    except csv.Error as error:
        raise RunError(f"{path} is damaged: {error}") from None


def reading(name: str, text: Any) -> Any:
    """A cell of telemetry.csv."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return text if name == "limited" else float(text)
    except ValueError:
        return None


def read_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """(subject, sentence) of each claim the run's notebook makes."""
    path = folder / "conclusion.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        claims = [str(text) for text in document.get("claims", ())]
    except (OSError, ValueError, AttributeError, TypeError):
        raise RunError(f"{path} is damaged; it must be a JSON object") from None
    for number, text in enumerate(claims, 1):
        yield f"claim {number}", text
