"""Two runs compared: every cell they share, with the ratio, an interval that fits how they were measured, and a word."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labkit.errors import ParameterError, RunError
from labkit.lab.differences import Difference, bound_words, differences
from labkit.lab.effects import by_block, centre, settled_rows
from labkit.lab.lab import StoredRun
from labkit.lab.lever_checks import cannot_act
from labkit.lab.levers import find_lever, known_levers, workload
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Plan, cell_words
from labkit.lab.record import RunRecord, canonical_cell
from labkit.lab.session_spread import AnchorCheck, History, Spread, check_anchor, plan_of, spread_of, unpaired_interval
from labkit.lab.starts import samples_of
from labkit.measure import statistics
from labkit.measure.metrics import metric as known_metric

Word = statistics.Word | Literal["invalid"]


@dataclass(frozen=True)
class CellRatio:
    """A metric at a cell of both runs: geometric means over blocks, and the ratio new over old with its interval."""

    cell: str
    metric: str
    unit: str
    old: float
    new: float
    ratio: float
    low: float | None
    high: float | None
    blocks: tuple[int, int]
    spread: str  # between sessions, and where it is known from; nothing where the blocks are paired
    word: Word

    def words(self) -> str:
        """`5.83× [5.70, 5.96]`."""
        from labkit.lab.verdict import effect_words

        return effect_words(self.ratio, self.low, self.high, True, "")


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side, `new` over `old`. `paired` when their blocks were measured in turns, in one session; else
    each is one session, and its interval holds the spread between sessions. `level` is that of each interval, so that all
    hold together in 95 % of cases. An `upgrade` (another driver or build on the same card) is judged only while its
    `anchor` holds. `bound` says what the ratios can be put to."""

    old: str
    new: str
    paired: bool
    level: float
    cells: tuple[CellRatio, ...]
    differences: tuple[Difference, ...]
    upgrade: bool
    anchor: AnchorCheck | None
    bound: str
    notices: tuple[str, ...]

    def how(self) -> str:
        """How the intervals were made, in one sentence."""
        made = (
            "paired by block: the two runs were measured in turns"
            if self.paired
            else "not paired: Welch's interval, widened by the spread between sessions"
        )
        number = len(self.cells)
        family = f"; {number} cells at {100 * self.level:.4g} % each (Bonferroni), so that all hold together in 95 %"
        return made + (family if number > 1 else "; 95 %")

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"how": self.how()}


def compare_runs(root: Path, old: StoredRun, new: StoredRun, metric: str | None = None) -> Comparison:
    """Compares two runs of the lab at `root` in `metric`; left out, each cell in the metric it was measured for first.

    ParameterError when they are one run, or have no cell with that metric in common."""
    if metric is not None:
        known_metric(metric)
    if old.record.id == new.record.id:
        raise ParameterError(
            f"{old.record.id} cannot be compared with itself; its cells are compared by its own verdict"
        )
    a, b = (readable_rows(run) for run in (old, new))
    pairs, moved = common_cells(a, b)
    stands_apart = {canonical_cell(plan.anchor.cell) for run in (old, new) if (plan := plan_of(run)) and plan.anchor}
    pairs = [cells for cells in pairs if not stands_apart & set(cells)]
    shared = [(cells, name) for cells in pairs if (name := metric_of(a, b, cells, metric))]
    if not shared:
        raise ParameterError(nothing_shared(a, b, old, new, metric))
    paired = in_turns(a, b, old.record, new.record)
    found = differences(old, new)
    found = [without_reach(one, [cells for cells, _ in shared], old.record, new.record, root) for one in found]
    found += [one for one in moved if one.name not in {other.name for other in found}]
    known, alike = History(root), not any(map(may_act, found))
    upgrade = not paired and is_upgrade(found)
    anchor = check_anchor(known, old, new) if upgrade else None
    level = statistics.family_level(len(shared))
    faults = failed_checks(old.record, new.record)
    rows: list[CellRatio] = []
    notices = [*faults, *unchecked(old.record, new.record)]
    for cells, name in shared:
        ends = values_of(a, b, name, cells)
        if not all(math.isfinite(value) and value > 0 for end in ends for value in end.values()):
            where = f"{name} at {cell_words(json.loads(cells[0]))}"
            notices.append(f"{where} has samples that are not finite numbers above 0: no ratio")
            continue
        if paired and not ends[0].keys() & ends[1].keys():
            notices.append(
                f"{name} at {cell_words(json.loads(cells[0]))} was never measured in one block of both: no ratio"
            )
            continue
        spread = None if paired else spread_for(known, old, new, name, cells, level, anchor, alike)
        bad = bool(faults) and known_metric(name).timed
        rows.append(cell_ratio(cells, name, ends, level, spread, anchor, invalid=bad))
    if anchor is not None and not anchor.holds:
        notices.append(f"undecided, since another driver or build is judged by an anchor, and {anchor.reason}")
    return Comparison(
        old.record.id, new.record.id, paired, level, tuple(rows), tuple(found), upgrade, anchor,
        bound_words(found, paired), tuple(notices),
    )  # fmt: skip


def may_act(one: Difference) -> bool:
    """Whether a difference is one of what was set or executed, and not of what merely came about in a session."""
    if one.kind == "build":
        return one.name != "commit"
    return one.bounds and (one.kind not in ("clocks", "load") or one.name.startswith("card "))


def without_reach(
    one: Difference, cells: Sequence[tuple[str, str]], old: RunRecord, new: RunRecord, root: Path
) -> Difference:
    """A difference in a lever says where the lever does not act, and bounds nothing where that is every cell: a cell
    that sets it itself, or at which both values come to the same."""
    levers = known_levers(root)
    found = find_lever(one.name, levers) if one.kind == "parameters" and one.bounds else None
    if found is None:
        return one
    values = [old.parameters.get(one.name), new.parameters.get(one.name)]

    def idle(both: tuple[str, str]) -> bool:
        knobs = [workload(json.loads(cell), levers=levers) for cell in both]
        if all(found.name in each for each in knobs):
            return bool(knobs[0][found.name] == knobs[1][found.name])
        ends = (workload(run.parameters, each, levers=levers) for run, each in zip((old, new), knobs, strict=True))
        return all(cannot_act(one.name, values, at, levers) for at in ends)

    still = [both for both in cells if idle(both)]
    if not still:
        return one
    if len(still) == len(cells):
        return replace(one, new=f"{one.new} (acts on no cell that is compared)", bounds=False)
    shown = ", ".join(cell_words(json.loads(both[1])) for both in still[:3]) + ("; …" if len(still) > 3 else "")
    return replace(one, new=f"{one.new} (does not act at {shown})")


def readable_rows(run: StoredRun) -> list[Measurement]:
    """A run's samples, those of one start in one block where its plan compares over restarts. ParameterError where it has
    none, RunError where a cell is not the knob values it must be."""
    path = run.folder / "measurements.csv"
    rows = samples_of(run.folder, plan_of(run))
    if not rows:
        raise ParameterError(f"{run.record.id} measured nothing, so there is nothing to compare")
    for text in dict.fromkeys(row.cell for row in rows):
        try:
            sound = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            sound = False
        if not sound:
            raise RunError(f"{path}: {text[:60]!r} is not a cell; it must be a JSON object of knob values")
    return rows


def against_control(plan: Plan, rows: Sequence[Measurement], name: str | None = None) -> tuple[CellRatio, ...]:
    """Every cell of a plan over its control (else over what the rule compares with, else the first cell) in a metric,
    the rule's where none is named: paired by block, with intervals that all hold together in 95 % of cases (Bonferroni).
    Cells without a block in common with the control are left out. ParameterError for a metric there is not."""
    metric_id = known_metric(name or plan.rule.metric).id
    control = canonical_cell(plan.control or plan.rule.against or plan.cells[0])
    kept, _ = settled_rows(plan, rows)
    base = by_block(kept, metric_id, control)
    cells = [(cell, by_block(kept, metric_id, canonical_cell(cell))) for cell in plan.cells]
    cells = [
        (cell, values) for cell, values in cells if canonical_cell(cell) != control and base.keys() & values.keys()
    ]
    cells = [(cell, values) for cell, values in cells if min(*base.values(), *values.values()) > 0]
    level = statistics.family_level(max(1, len(cells)))
    return tuple(
        cell_ratio((canonical_cell(cell),) * 2, metric_id, (base, values), level, None, None, invalid=False)
        for cell, values in cells
    )


def common_cells(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[list[tuple[str, str]], list[Difference]]:
    """(cells of both as (old, new) canonical JSON, what differs between them).

    A knob that has no value in common, as where each run was made at one value of it, is left out of the match and told
    as a difference, where the cells are still told apart without it."""
    cells = [{row.cell: json.loads(row.cell) for row in rows} for rows in (a, b)]
    values: list[dict[str, set[str]]] = [{}, {}]
    for side, known in zip(values, cells, strict=True):
        for cell in known.values():
            for knob, value in cell.items():
                side.setdefault(knob, set()).add(json.dumps(value, sort_keys=True))
    apart = [knob for knob in values[0] if knob in values[1] and not values[0][knob] & values[1][knob]]
    keyed: list[dict[str, str]] = []
    for known in cells:
        keys = {text: canonical_cell({k: v for k, v in cell.items() if k not in apart}) for text, cell in known.items()}
        if len(set(keys.values())) < len(keys):
            return [], []
        keyed.append({key: text for text, key in keys.items()})
    said = [{knob: " and ".join(sorted(side[knob])).replace('"', "") for knob in apart} for side in values]
    moved = [Difference("parameters", knob, said[0][knob], said[1][knob]) for knob in apart]
    keys_of_both = sorted((key for key in keyed[0] if key in keyed[1]), key=cell_order)
    return [(keyed[0][key], keyed[1][key]) for key in keys_of_both], moved


def cell_order(text: str) -> list[tuple[str, bool, float, str]]:
    """Cells in the order a reader looks for them: by each knob, numbers by size."""
    return [
        (knob, isinstance(value, str), 0.0 if isinstance(value, str) else number(value), str(value))
        for knob, value in json.loads(text).items()
    ]


def number(value: Any) -> float:
    """A value to sort by."""
    return float(value) if isinstance(value, int | float) else 0.0


def metric_of(
    a: Sequence[Measurement], b: Sequence[Measurement], cells: tuple[str, str], wanted: str | None
) -> str | None:
    """The metric a pair of cells is compared in: the wanted one, else the first measured of those both have."""
    first = dict.fromkeys(row.metric for row in a if row.cell == cells[0])
    second = {row.metric for row in b if row.cell == cells[1]}
    return next((name for name in first if name in second and wanted in (None, name)), None)


def nothing_shared(
    a: Sequence[Measurement], b: Sequence[Measurement], old: StoredRun, new: StoredRun, wanted: str | None
) -> str:
    """Why two runs cannot be compared, in a line."""
    both = sorted({row.metric for row in a} & {row.metric for row in b})
    names = f"{old.record.id} and {new.record.id}"
    if wanted is not None and wanted not in both:
        return f"{names} have not both measured {wanted}; they have {', '.join(both) or 'no metric'} in common"
    shown = " against ".join(cell_words(json.loads(rows[0].cell)) for rows in (a, b))
    return f"{names} have no cell in common ({shown}, for one)"


def in_turns(a: Sequence[Measurement], b: Sequence[Measurement], old: RunRecord, new: RunRecord) -> bool:
    """Whether the blocks of two runs were measured in turns on one card of one boot: each block of either lies before
    the next block of both. Times are to the second, so blocks may touch."""
    card = [(run.device or {}).get("uuid") for run in (old, new)]
    if card[0] is None or card[0] != card[1] or old.host.boot_id != new.host.boot_id:
        return False
    spans: dict[int, list[str]] = {}
    counts: Mapping[int, set[int]] = {}
    for side, rows in enumerate((a, b)):
        for row in rows:
            spans.setdefault(row.block, []).append(row.utc)
            counts = {**counts, row.block: {*counts.get(row.block, ()), side}}
    blocks = sorted(block for block, sides in counts.items() if len(sides) == 2)
    if len(blocks) < 3 or not all(all(spans[block]) for block in blocks):
        return False
    ends = [(min(spans[block]), max(spans[block])) for block in blocks]
    follow = all(one[1] <= other[0] for one, other in itertools.pairwise(ends))
    return follow and all(one[1] < other[0] for one, other in zip(ends, ends[2:], strict=False))


def is_upgrade(found: Sequence[Difference]) -> bool:
    """Whether the same card ran another driver or build, with all else that bounds a claim alike or not."""
    kinds = {one.kind for one in found if one.bounds}
    return "device" not in kinds and bool(kinds & {"driver", "build"})


def failed_checks(old: RunRecord, new: RunRecord) -> list[str]:
    """A line for each run that failed a check of correctness, or whose verdict is invalid: its speeds are worth nothing."""
    found = []
    for run in (old, new):
        failed = [check.name for check in run.checks if not check.passed]
        if failed:
            found.append(f"{run.id} failed its check {', '.join(failed)}: its speeds are invalid")
        elif (run.verdict or {}).get("outcome") == "invalid":
            found.append(f"{run.id} is invalid: {(run.verdict or {}).get('reason')}")
    return found


def unchecked(old: RunRecord, new: RunRecord) -> list[str]:
    """A line where correctness was not checked, or a run did not come to its end."""
    found = [f"{run.id} ended as {run.state}" for run in (old, new) if run.state != "completed"]
    names = [run.id for run in (old, new) if not run.checks]
    if names:
        found.append(f"no correctness check was recorded in {' and '.join(names)}: a speed may be that of wrong work")
    return found


def values_of(
    a: Sequence[Measurement], b: Sequence[Measurement], name: str, cells: tuple[str, str]
) -> tuple[dict[int, float], dict[int, float]]:
    """The blocks' values of both."""
    return by_block(a, name, cells[0]), by_block(b, name, cells[1])


def spread_for(
    known: History, old: StoredRun, new: StoredRun, name: str, cells: tuple[str, str], level: float,
    anchor: AnchorCheck | None, alike: bool,
) -> Spread:  # fmt: skip
    """The spread between sessions: the metric's own where its history tells it, else the anchor's, else assumed."""
    found = spread_of(known, old, new, name, cells, level, alike)
    return anchor.spread if not found.sessions and anchor is not None and anchor.spread is not None else found


def cell_ratio(
    cells: tuple[str, str], name: str, ends: tuple[dict[int, float], dict[int, float]], level: float,
    spread: Spread | None, anchor: AnchorCheck | None, invalid: bool,
) -> CellRatio:  # fmt: skip
    """One row of the table; `spread` None where the blocks are paired."""
    old, new = ends
    if spread is None:
        pairs = statistics.paired_ratios(new, old)
        found = statistics.interval(pairs.logs, level).exp()
    else:
        found = unpaired_interval(np.log(list(old.values())), np.log(list(new.values())), level, spread).exp()
    known = known_metric(name)
    word: Word = statistics.comparison_word(found.low, found.high, known.better)
    if anchor is not None and not anchor.holds:
        word = "undecided"
    shared = {knob: value for knob, value in json.loads(cells[1]).items() if json.loads(cells[0]).get(knob) == value}
    return CellRatio(
        cell_words(shared) or "all", name, known.unit, centre(list(old.values())), centre(list(new.values())),
        found.estimate, found.low, found.high, (len(old), len(new)),
        "" if spread is None else f"{100 * spread.sd:.2g} %, {spread.basis}", "invalid" if invalid else word,
    )  # fmt: skip
