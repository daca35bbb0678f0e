"""The registry of exporters: each file of this folder declares one with `@exporter` and is found by itself."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.measurements import read_rows
from labkit.lab.record import RunRecord, read_record, write_atomic


@dataclass(frozen=True)
class Repetition:
    """One cell in one block: its knobs, its metrics, its requests, when it was measured."""

    knobs: Mapping[str, Any]
    block: int
    metrics: Mapping[str, float]
    requests: Sequence[Mapping[str, Any]]
    utc: str

    def number(self, *names: str) -> float | None:
        """A knob that is a number, by the first of its names that is one."""
        values = [self.knobs.get(name) for name in names]
        return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


@dataclass(frozen=True)
class Stored:
    """A run to be written in other rows. Its parameters count where a cell says nothing of a knob."""

    record: RunRecord
    repetitions: Sequence[Repetition]

    def cells(self) -> Iterator[list[Repetition]]:
        """The repetitions of each cell, in the order the cells were first measured."""
        found: dict[str, list[Repetition]] = {}
        for one in self.repetitions:
            found.setdefault(json.dumps(one.knobs, sort_keys=True), []).append(one)
        yield from found.values()


@dataclass(frozen=True)
class Written:
    """Rows that were written: where, how many, and a line for each cell that they cannot hold."""

    path: Path
    rows: int
    left_out: tuple[str, ...]


Rows = tuple[list[dict[str, Any]], list[str]]
_found: dict[str, Callable[[Stored], Rows]] = {}


def exporter(name: str) -> Callable[[Callable[[Stored], Rows]], Callable[[Stored], Rows]]:
    """Declares the decorated function as the writer of a format: (its rows, a line for each cell it leaves out)."""

    def declare(write: Callable[[Stored], Rows]) -> Callable[[Stored], Rows]:
        if name in _found and _found[name].__module__ != write.__module__:
            raise ParameterError(f"the exporter {name!r} is declared twice")
        _found[name] = write
        return write

    return declare


def exporters() -> dict[str, Callable[[Stored], Rows]]:
    """Every exporter by its name."""
    import labkit.lab.exporters as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_found.items()))


def write_as(folder: Path, name: str, out: Path | None = None) -> Written:
    """Writes the run in `folder` in the rows of another tool: a list into a `.json`, else a line each; by default into
    `<run id>.<name>.jsonl` where one is. ParameterError for an unknown name; RunError where no cell fits its rows;
    LabError where `out` cannot be written, or is there already and is something else."""
    known = exporters()
    if name not in known:
        raise ParameterError(f"a run cannot be exported as {name!r}; there are: zip, {', '.join(known)}")
    record = read_record(folder)
    if record.state == "running":
        raise RunError(f"{record.id} is still running; export it when it has ended")
    rows, left_out = known[name](read_stored(folder, record))
    if not rows:
        why = f" ({left_out[0]})" if left_out else ""
        raise RunError(f"{record.id} has nothing that rows of {name} hold{why}")
    path = (out or Path(f"{record.id}.{name}.jsonl")).absolute()
    if path.suffix.lower() == ".json":
        text = json.dumps(rows[0] if len(rows) == 1 and name == "vllm" else rows, indent=2, ensure_ascii=False) + "\n"
    else:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    put(path, text)
    return Written(path, len(rows), tuple(left_out))


def put(path: Path, text: str) -> None:
    """Writes a file whole, never over another one."""
    if path.is_dir() or not path.parent.is_dir():
        raise LabError(f"{path} is a folder, or in none; name a file with --out")
    try:
        if path.exists() and path.read_bytes() != text.encode():
            raise LabError(f"{path} is there already and is something else; name another file with --out")
        write_atomic(path, text)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from None


def read_stored(folder: Path, record: RunRecord) -> Stored:
    """A run with its samples and requests, repetition by repetition."""
    from labkit.audit.run_evidence import load_cell
    from labkit.audit.run_files import read_lines
    from labkit.lab.record import canonical_cell

    metrics: dict[tuple[str, int], dict[str, float]] = {}
    times: dict[tuple[str, int], str] = {}
    for row in read_rows(folder / "measurements.csv"):
        metrics.setdefault((row.cell, row.block), {})[row.metric] = row.value
        times.setdefault((row.cell, row.block), row.utc)
    requests: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in read_lines(folder / "requests.jsonl"):
        if isinstance(line.get("cell"), dict) and isinstance(line.get("block"), int):
            requests.setdefault((canonical_cell(line["cell"]), line["block"]), []).append(line)
    return Stored(
        record,
        [
            Repetition(load_cell(cell), block, found, requests.get((cell, block), ()), times[cell, block])
            for (cell, block), found in metrics.items()
        ],
    )
