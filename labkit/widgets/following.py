"""How far a run is, read from its folder: the same whether it goes on in this process, in another, or has ended."""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.lab.folder import (
    HEARTBEAT,
    NOTEBOOK,
    PARTIAL,
    PROGRESS,
    close_dead_runs,
    count_cells,
    read_json,
    runs_folder,
)
from labkit.lab.measurements import Measurement, parse_rows
from labkit.lab.plan import Plan, read_plan
from labkit.lab.progress import Pace
from labkit.lab.record import Cells, RunRecord, canonical_cell, read_record

DEAD_S = 5.0  # between two looks for runs whose process died


@dataclass(frozen=True)
class Standing:
    """How far a run is. `done` of `total` are steps it tells of itself, else measurements of its plan; `cell` of `cells`
    is the notebook's; `record` is None before anything is stored."""

    record: RunRecord | None = None
    folder: Path | None = None
    done: float = 0.0
    total: float = 0.0
    text: str = ""
    left_s: float | None = None
    cell: int = 0
    cells: Cells | None = None
    plan: Plan | None = None
    rows: Sequence[Measurement] = ()

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.record is not None and self.record.state != "running"


class Following:
    """One run, looked at again and again."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.run_id = root, run_id
        self._pace = Pace()
        self._size = -1
        self._rows: list[Measurement] = []
        self._plan: Plan | None = None
        self._swept = time.monotonic()

    def folder(self) -> Path | None:
        """Where its files are at this moment."""
        whole = runs_folder(self.root) / self.run_id
        places = (whole, whole.with_name(f"{PARTIAL}{self.run_id}"), whole)  # it may be renamed between two looks
        return next((place for place in places if (place / "run.json").is_file()), None)

    def look(self) -> Standing:
        """How far it is now. LabError where its record is damaged."""
        if time.monotonic() - self._swept >= DEAD_S:
            self._swept = time.monotonic()
            close_dead_runs(self.root)
        for last in (False, True):
            folder = self.folder()
            if folder is None:
                return Standing()
            try:
                return self._look(folder)
            except (LabError, OSError):
                if last or self.folder() == folder:
                    raise
        raise AssertionError("unreachable")

    def _look(self, folder: Path) -> Standing:
        record = read_record(folder)
        if self._plan is None and (folder / "plan.json").exists():
            self._plan = read_plan(folder / "plan.json")
        rows, told, beat = self._measured(folder), read_json(folder / PROGRESS), read_json(folder / HEARTBEAT)
        done, total = _number(told.get("done")), _number(told.get("total"))
        text = str(told.get("text") or "")
        if not total and self._plan is not None:
            wanted = {canonical_cell(cell) for cell in self._plan.cells}
            done = float(len({(row.cell, row.block) for row in rows if row.cell in wanted}))
            total = float(len(wanted) * self._plan.repetitions)
        left = self._pace.left(done, total) if total and record.state == "running" else None
        cells = record.cells or count_cells(folder / NOTEBOOK)
        cell = beat.get("cell")
        return Standing(
            record, folder, done, total, text, left, cell if isinstance(cell, int) else 0, cells, self._plan, rows
        )

    def _measured(self, folder: Path) -> Sequence[Measurement]:
        """The samples so far; a line that is being written waits for its end."""
        path = folder / "measurements.csv"
        size = path.stat().st_size if path.exists() else 0
        if size != self._size:
            content = path.read_bytes() if size else b""
            whole = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")
            self._rows = list(parse_rows(path, io.StringIO(whole, newline="")))
            self._size = size
        return self._rows


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
