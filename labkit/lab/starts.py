"""Which start each sample came from (the process, device, weights and engine that gave it), kept as `starts.csv` of a run."""

import csv
import io
import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.errors import ParameterError, RunError
from labkit.lab.levers import find_lever, workload
from labkit.lab.measurements import Measurement, append_text, read_rows
from labkit.lab.plan import Cell, Plan, cell_words
from labkit.lab.record import canonical_cell

FILE = "starts.csv"
Level = Literal["process", "device", "weights", "engine"]
LEVELS: tuple[Level, ...] = ("process", "device", "weights", "engine")  # each lives inside the one before it
COLUMNS = ("order", *LEVELS)

_names: dict[int, str] = {}  # the name of this process by its id, since a fork is another


class Start(NamedTuple):
    """What gave a sample: a process by a name of its own, and which device, weights and engine of that process."""

    process: str
    device: str = ""
    weights: str = ""
    engine: str = ""

    def upto(self, level: Level) -> tuple[str, ...]:
        """What tells two starts of a level apart: the level and all that it lives inside."""
        return self[: LEVELS.index(level) + 1]

    def words(self, level: Level = "engine") -> str:
        """`engine 3 of process 1f2e3d4c`."""
        inner = [f"{name} {number}" for name, number in zip(LEVELS[1:], self.upto(level)[1:], strict=False) if number]
        return f"{inner[-1]} of process {self.process}" if inner else f"process {self.process}"


def start_of(thing: Any) -> Start:
    """The start that a sample of `thing` comes from: an `Engine`, a `Device`, a server or process that was started
    (`subprocess.Popen`), or "process" for the one this runs in. ParameterError for anything else."""
    own = _names.setdefault(os.getpid(), secrets.token_hex(4))
    if thing == "process":
        return Start(own)
    if isinstance(thing, subprocess.Popen):
        return Start(f"{own}/{thing.pid}")
    origin = getattr(thing, "origin", None)
    if not isinstance(origin, Mapping):
        raise ParameterError(
            f"start={thing!r} is nothing that was started; give the Engine, the Device or the process (subprocess.Popen) "
            f'that was made anew for the sample, or "process" for the one the run is in'
        )
    process = f"{own}/{origin['process']}" if "process" in origin else own
    return Start(process, *(str(origin.get(level, "")) for level in LEVELS[1:]))


def append_start(path: Path, order: int, start: Start) -> None:
    """Appends what the samples of a call of `measure` came from, with the header when the file is new."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        writer.writerow(COLUMNS)
    writer.writerow((order, *start))
    append_text(path, text.getvalue())


def read_starts(folder: Path) -> dict[int, Start]:
    """Order of the call of `measure` → start, for the run in `folder`; empty without a file. RunError for a wrong line."""
    path = folder / FILE
    if not path.is_file():
        return {}
    found: dict[int, Start] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is not None and tuple(header) != COLUMNS:
            raise RunError(f"{path} has the columns {','.join(header)[:80]}; expected {','.join(COLUMNS)}")
        for line in reader:
            try:
                order, process, device, weights, engine = line
                found[int(order)] = Start(process, device, weights, engine)
            except ValueError:
                raise RunError(f"{path}, line {reader.line_num}: not a start: {','.join(line)[:80]}") from None
    return found


def samples_of(folder: Path, plan: Plan | None = None) -> list[Measurement]:
    """The samples of the run in `folder`, the blocks of one start as one where its plan compares over restarts: `plan`,
    else the one in the folder."""
    from labkit.lab.plan import read_plan

    rows = read_rows(folder / "measurements.csv")
    if plan is None and (folder / "plan.json").is_file():
        plan = read_plan(folder / "plan.json")
    return started_rows(plan, rows, read_starts(folder)) if plan is not None and plan.design == "restarts" else rows


def started_rows(plan: Plan, rows: Iterable[Measurement], starts: Mapping[int, Start]) -> list[Measurement]:
    """The rows of a plan over restarts, with the blocks that share a start joined into the first of them: so that what is
    paired is one value a start."""
    rows = list(rows)
    joined = joined_blocks(plan, rows, starts)
    cells = {canonical_cell(cell) for cell in plan.cells}
    return [row._replace(block=joined.get(row.block, row.block)) if row.cell in cells else row for row in rows]


def joined_blocks(plan: Plan, rows: Sequence[Measurement], starts: Mapping[int, Start]) -> dict[int, int]:
    """Block → the first block that it shares a start with, directly or by way of others, in any of the plan's cells."""
    cells, level = {canonical_cell(cell) for cell in plan.cells}, level_of(plan)
    known = {row.block: row.block for row in rows if row.cell in cells}
    seen: dict[tuple[str, ...], int] = {}

    def first(block: int) -> int:
        while known[block] != block:
            block = known[block]
        return block

    for row in rows:
        if row.cell in cells and row.order in starts:
            one = first(row.block)
            other = first(seen.setdefault(starts[row.order].upto(level), row.block))
            known[max(one, other)] = min(one, other)
    return {block: first(block) for block in known}


def level_of(plan: Plan) -> Level:
    """What counts as one start of a plan: the outermost of what its knobs need made anew, else whatever was given."""
    needed = {level for knob in plan.knobs for cell in plan.cells if (level := level_at(plan, knob, cell))}
    return next((level for level in LEVELS if level in needed), "engine")


def level_at(plan: Plan, knob: str, cell: Cell) -> Level | None:
    """What must be made anew at a cell for another value of a knob; None where it has one value, or values take turns."""
    found = find_lever(knob)
    if found is None or len({repr(other.get(knob)) for other in plan.cells}) < 2:
        return None
    needs = found.needs_at(workload(plan.shape or {}, cell))
    return next((level for level in LEVELS if level == needs), None)


def start_fault(plan: Plan, rows: Sequence[Measurement], starts: Mapping[int, Start]) -> str:
    """Why the samples of a plan over restarts are not what it says, or nothing: no witness, one start for two values of
    a knob that needs a new one, or one start for every repetition."""
    if plan.design != "restarts":
        return ""
    cells = {canonical_cell(cell): cell for cell in plan.cells}
    ends = [canonical_cell(cell) for cell in (plan.rule.cell, plan.rule.against) if cell is not None]
    mine = [row for row in rows if row.metric == plan.rule.metric and row.cell in ends]
    remedy = "name what was made anew in each block: run.measure(cell, block, start=engine, ...)"
    if without := sum(row.order not in starts for row in mine):
        return f"nothing shows a restart: {without} of its {len(mine)} samples have no start in {FILE}; {remedy}"
    told = [(cells[row.cell], starts[row.order]) for row in rows if row.cell in cells and row.order in starts]
    if shared := next(filter(None, (shared_start(plan, knob, told) for knob in plan.knobs)), ""):
        return f"{shared}; {remedy}"
    joined = joined_blocks(plan, rows, starts)
    blocks = {row.block for row in mine}
    if len(blocks) > 1 and len({joined[block] for block in blocks}) == 1:
        names = list(dict.fromkeys(starts[row.order].words(level_of(plan)) for row in mine))
        shown = " and ".join(names) if len(names) < 3 else f"{len(names)} starts that reach from block to block"
        return f"all {len(blocks)} blocks come from {shown}: a start is one repetition, however often it is measured; {remedy}"
    return ""


def shared_start(plan: Plan, knob: str, told: Iterable[tuple[Cell, Start]]) -> str:
    """Which start gave samples at two values of a knob that needs a new one for each, or nothing."""
    seen: dict[tuple[str, ...], Cell] = {}
    for cell, start in told:
        if level := level_at(plan, knob, cell):
            other = seen.setdefault(start.upto(level), cell)
            if other.get(knob) != cell.get(knob):
                words = " and ".join(cell_words({knob: each.get(knob)}) for each in (other, cell))
                return f"{words} come from one start ({start.words(level)}), so nothing was restarted between them"
    return ""
