"""The samples of a run: rows appended to `measurements.csv` and `requests.jsonl`, whole or not at all."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import ParameterError, RunError

COLUMNS = ("block", "order", "cell", "metric", "value", "utc")


class Measurement(NamedTuple):
    """One sample: a metric of a cell in a block (a repetition); `order` counts the calls of `measure` in the run."""

    block: int
    order: int
    cell: str
    metric: str
    value: float
    utc: str


def append_rows(path: Path, rows: Iterable[Measurement]) -> None:
    """Appends rows to `measurements.csv` in one write, with the header when the file is new."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        writer.writerow(COLUMNS)
    writer.writerows(row._replace(value=repr(row.value)) for row in rows)  # type: ignore[arg-type]
    append_text(path, text.getvalue())


def append_json(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one JSON object as a line."""
    append_text(path, json.dumps(row, ensure_ascii=False) + "\n")


def append_text(path: Path, text: str) -> None:
    """Appends in a single system call, so a process that dies leaves whole lines."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def read_rows(path: Path) -> list[Measurement]:
    """Every row of a `measurements.csv`, in order; none when there is no file. RunError names a line that is wrong."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(parse_rows(path, file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} is damaged: {error}") from None


def parse_rows(path: Path, file: Iterable[str]) -> Iterator[Measurement]:
    """The rows in an open `measurements.csv`. RunError names a line that is wrong."""
    reader = csv.reader(file)
    header = next(reader, None)
    if header is not None and tuple(header) != COLUMNS:
        raise RunError(f"{path} has the columns {','.join(header)[:200]}; expected {','.join(COLUMNS)}")
    for line in reader:
        try:
            block, order, cell, metric, value, utc = line
            yield Measurement(int(block), int(order), cell, metric, float(value), utc)
        except ValueError:
            raise RunError(f"{path}, line {reader.line_num}: not a measurement: {','.join(line)[:200]}") from None


def checked_value(metric: str, value: Any) -> float:
    """A sample as a float. ParameterError for what is not a finite number: a missing sample is not measured as nan."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{metric} must be a number, not {value!r}") from None
    if not math.isfinite(number):
        raise ParameterError(f"{metric} is {number}; a sample must be finite (leave it out when it was not measured)")
    return number
