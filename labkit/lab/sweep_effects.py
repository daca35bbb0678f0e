"""What a sweep measured of each lever: the ratio of two of its values, with its interval, conditions and witness."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.lab.differences import differences
from labkit.lab.effects import by_block
from labkit.lab.folder import runs_folder
from labkit.lab.lab import StoredRun
from labkit.lab.lever_checks import witness_of
from labkit.lab.lever_effect import LeverEffect, outcome_of, settings_of
from labkit.lab.lever_ratio import unpaired_ratio
from labkit.lab.levers import Lever, find_lever
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import cell_words, read_plan
from labkit.lab.record import canonical_cell, read_record
from labkit.lab.scope import device_words, driver_words, model_words, shape_of
from labkit.lab.series import state_of
from labkit.lab.session_spread import History, spread_of
from labkit.lab.starts import samples_of
from labkit.lab.sweep_file import SweepFile
from labkit.measure import statistics


def samples(
    run: StoredRun, name: str, values: Mapping[str, Any], levers: Mapping[str, Lever]
) -> dict[str, tuple[str, list[float]]]:
    """(text of the cell, the blocks' values of a metric in it) of a run, by what of the cell the sweep did not set. Of a cell that
    names a lever of the sweep, only where it is set as the sweep set it."""
    set_to = {own_name(key, levers): value for key, value in values.items()}
    cells: dict[str, str] = {}
    rows = samples_of(run.folder)
    for row in rows:
        if row.metric != name:
            continue
        cell, rest, fits = json.loads(row.cell), {}, True
        for knob, value in cell.items():
            if (lever := own_name(knob, levers)) in set_to:
                wanted = set_to[lever]
                fits &= value == wanted or wanted == [value]
            else:
                rest[knob] = value
        if fits:
            cells.setdefault(canonical_cell(rest), row.cell)
    return {rest: (cell, list(by_block(rows, name, cell).values())) for rest, cell in cells.items()}


def own_name(name: str, levers: Mapping[str, Lever]) -> str:
    """The lever's own name; a name nobody declared stands for itself."""
    found = find_lever(name, levers)
    return found.name if found is not None and found.name != "constant" else name


def metric_of(run: StoredRun) -> str:
    """The metric of the run's rule; without a plan, the first it measured; nothing where it measured nothing."""
    if (run.folder / "plan.json").exists():
        return read_plan(run.folder / "plan.json").rule.metric
    rows: list[Measurement] = read_rows(run.folder / "measurements.csv")
    return rows[0].metric if rows else ""


def effects_of(root: Path, file: SweepFile, levers: Mapping[str, Lever]) -> list[LeverEffect]:
    """Every lever's effect from its first completed value to each other, at each setting of the other levers, with
    intervals that hold together (Bonferroni)."""
    runs: list[tuple[dict[str, Any], StoredRun]] = []
    for point in file.points:
        if point.run is not None and state_of(root, point.run) == "completed":
            folder = runs_folder(root) / point.run
            runs.append((point.values, StoredRun(read_record(folder), folder)))
    pairs: list[Pair] = []
    for name in [name for name, values in file.grid.items() if len(values) > 1]:
        groups: dict[str, list[tuple[dict[str, Any], StoredRun]]] = defaultdict(list)
        for values, run in runs:
            others = {key: value for key, value in values.items() if key != name}
            groups[canonical_cell(others)].append((values, run))
        for base, *rest in groups.values():
            for other in rest:
                pairs += pairs_of(name, base, other, levers)
    level, known = statistics.family_level(max(1, len(pairs))), History(root)
    return [effect_of(pair, file, level, known, levers) for pair in pairs]


@dataclass(frozen=True)
class Pair:
    """Two points that differ in one lever, at a cell both measured: (values, run, cell, samples) of each."""

    lever: str
    metric: str
    rest: str  # the cell without the sweep's levers
    old: tuple[dict[str, Any], StoredRun, str, list[float]]
    new: tuple[dict[str, Any], StoredRun, str, list[float]]


def pairs_of(
    name: str,
    old: tuple[dict[str, Any], StoredRun],
    new: tuple[dict[str, Any], StoredRun],
    levers: Mapping[str, Lever],
) -> list[Pair]:
    """What two points measured alike, one for each cell both have with samples above 0."""
    (old_values, a), (new_values, b) = old, new
    named = metric_of(a)
    if not named or named != metric_of(b):
        return []
    left, right = samples(a, named, old_values, levers), samples(b, named, new_values, levers)
    return [
        Pair(name, named, cell, (old_values, a, *left[cell]), (new_values, b, *right[cell]))
        for cell in left
        if cell in right and min(*left[cell][1], *right[cell][1]) > 0
    ]


def effect_of(pair: Pair, file: SweepFile, level: float, known: History, levers: Mapping[str, Lever]) -> LeverEffect:
    """The effect between two points. Each is one session, so the interval holds the spread between sessions."""
    name, (old_values, a, old_cell, old_samples), (new_values, b, new_cell, new_samples) = (
        pair.lever,
        pair.old,
        pair.new,
    )
    spread = spread_of(known, a, b, pair.metric, (old_cell, new_cell), level)
    ratio = unpaired_ratio(old_samples, new_samples, level, spread)
    return LeverEffect(
        lever=name,
        old=cell_words({name: old_values[name]}),
        new=cell_words({name: new_values[name]}),
        at=cell_words({key: value for key, value in old_values.items() if key != name}),
        metric=pair.metric,
        cell=cell_words(json.loads(pair.rest)),
        cells=(old_cell, new_cell),
        **ratio._asdict(),
        outcome=outcome_of(ratio.low, ratio.high, pair.metric, file.margin),
        margin=file.margin,
        level=level,
        spread=(spread.sd, spread.freedom, spread.sessions),
        negative_control=name in file.negative_controls,
        witness=witnessed(name, (a, old_cell), (b, new_cell), levers),
        runs=(a.record.id, b.record.id),
        device=device_words(b.record),
        model=model_words(b.record.model),
        driver=driver_words(b.record.device),
        settings=settings_of(shape_of(b.record), [*file.grid, *json.loads(new_cell)], levers),
        unlike=unlike(name, a, b, levers),
    )


def witnessed(
    name: str, old: tuple[StoredRun, str], new: tuple[StoredRun, str], levers: Mapping[str, Lever]
) -> Literal["moved", "did not move", "not recorded"]:
    """Whether the lever's witness differs between a cell of one run and a cell of another: at those cells where it is
    told by cell, since a run may have measured both values of the lever; else between the runs."""
    left, right = (witness_of(name, run.record, run.folder, levers) for run, _ in (old, new))
    if left is None or right is None:
        return "not recorded"
    if isinstance(left, dict) and isinstance(right, dict) and old[1] in left and new[1] in right:
        left, right = left[old[1]], right[new[1]]
    return "did not move" if left == right else "moved"


def unlike(name: str, a: StoredRun, b: StoredRun, levers: Mapping[str, Lever]) -> tuple[str, ...]:
    """What else differs between two runs than the lever and what follows from it; see `differences`."""
    own = own_name(name, levers)
    follows = {"device": {"device", "driver", "machine", "clocks"}, "model": {"model"}, "quant": {"model"}}
    follows["driver"] = {"driver", "build"}
    return tuple(
        one.name
        for one in differences(a, b)
        if one.kind != "parameters" and one.kind not in follows.get(own, set())
        if "programs (" not in one.name
    )
