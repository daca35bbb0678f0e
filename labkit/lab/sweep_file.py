"""What is kept of a sweep: one file of its points and their runs, swapped in whole, and the table it amounts to."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from labkit.errors import RunError
from labkit.lab.folder import runs_folder
from labkit.lab.record import Frozen, read_record
from labkit.lab.same_time import beside
from labkit.lab.series import state_of


class Point(Frozen):
    """One parameter set. `run` is the run made for it, None before there is one; `settled` once the ledger has it. On a
    fleet, `worker` ran it, and `reason` says why nothing came of it."""

    values: dict[str, Any]
    run: str | None = None
    settled: bool = False
    worker: str = ""
    reason: str = ""


class SweepFile(Frozen):
    """What is kept of a sweep, in `data/sweeps/<id>.json`. `definition` is a hash of what was asked for."""

    schema_version: Literal[1] = 1
    id: str
    experiment: str
    notebook: str
    notebook_sha256: str
    definition: str
    fixed: dict[str, Any]
    grid: dict[str, list[Any]]
    negative_controls: tuple[str, ...] = ()
    margin: float = 0.02
    begun: str
    points: tuple[Point, ...]
    warnings: tuple[str, ...] = ()
    ended: str | None = None
    effects: tuple[dict[str, Any], ...] = ()

    def with_point(self, number: int, **fields: Any) -> "SweepFile":
        """The file with fields of one point replaced."""
        points = list(self.points)
        points[number] = points[number].model_copy(update=fields)
        return self.model_copy(update={"points": tuple(points)})


def sweeps_folder(root: Path) -> Path:
    """Where the lab keeps its sweeps."""
    return root / "data" / "sweeps"


def read_sweep(path: Path) -> SweepFile:
    """A sweep's file. RunError when it is damaged or of another schema."""
    try:
        return SweepFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise RunError(f"{path} is not a sweep that can be read: {first}") from None


def find_sweep(root: Path, definition: str) -> SweepFile | None:
    """The newest sweep of this definition; one that cannot be read stops the search, so nothing is done twice."""
    found = sorted(sweeps_folder(root).glob(f"*-{definition}.json"))
    return read_sweep(found[-1]) if found else None


def table(root: Path, file: SweepFile) -> list[dict[str, Any]]:
    """The sweep as rows: the values of a point, its state, its run, and the verdict where the run has one; on a fleet
    also its worker, why nothing came of it, and the points' runs that went on beside it on one machine."""
    rows: list[dict[str, Any]] = []
    records = []
    for point in file.points:
        state, verdict = state_of(root, point.run), ""
        if point.run is not None and state == "completed":
            records.append(record := read_record(runs_folder(root) / point.run))
            verdict = str((record.verdict or {}).get("outcome", ""))
        rows.append({"values": point.values, "state": state, "run": point.run or "", "verdict": verdict})
        if point.worker or point.reason:
            lost = {"state": "failed"} if point.reason and state == "missing" else {}
            rows[-1] |= {"worker": point.worker, "reason": point.reason, **lost}
    together = beside(records)
    for row in rows:
        if row["run"] in together:
            row["beside"] = together[row["run"]]
    return rows


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Those rows as text, a column a lever."""
    names = list(rows[0]["values"]) if rows else []
    own = ["state", "verdict", *(["worker"] if any(row.get("worker") for row in rows) else []), "run"]
    head = [*names, *own]
    lines = [[*(shown(row["values"][name]) for name in names), *(row.get(name, "") for name in own)] for row in rows]
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *lines]
    )


def remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What else is to be said of rows of a table: why points have no run, and which shared a machine."""
    words = [", ".join(f"{name}={shown(value)}" for name, value in row["values"].items()) for row in rows]
    said = [f"{text}: {row['reason']}" for text, row in zip(words, rows, strict=True) if row.get("reason")]
    shared = [text for text, row in zip(words, rows, strict=True) if row.get("beside")]
    if shared:
        said.append(
            f"{len(shared)} of {len(rows)} points ran beside others on one machine (--json says which): {'; '.join(shared)}"
        )
    return said


def shown(value: Any) -> str:
    """A value as a person writes it."""
    return value if isinstance(value, str) else json.dumps(value)
