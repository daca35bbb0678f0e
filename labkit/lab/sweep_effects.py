"""What a sweep measured of each lever: the ratio of two of its values, with its interval, conditions and witness."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from labkit.lab.folder import runs_folder
from labkit.lab.lab import StoredRun
from labkit.lab.lever_checks import witness_of
from labkit.lab.lever_effect import LeverEffect, outcome_of
from labkit.lab.lever_ratio import welch
from labkit.lab.levers import Lever, find_lever
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import cell_words, read_plan
from labkit.lab.record import canonical_cell, read_record
from labkit.lab.scope import device_words, model_words
from labkit.lab.series import state_of
from labkit.lab.sweep_file import SweepFile


def samples(
    run: StoredRun, name: str, values: Mapping[str, Any], levers: Mapping[str, Lever]
) -> dict[str, tuple[str, list[float]]]:
    """(text of the cell, samples of a metric in it) of a run, by what of the cell the sweep did not set. Of a cell that
    names a lever of the sweep, only where it is set as the sweep set it."""
    set_to = {own_name(key, levers): value for key, value in values.items()}
    found: dict[str, tuple[str, list[float]]] = {}
    for row in read_rows(run.folder / "measurements.csv"):
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
            kept, values_of = found.setdefault(canonical_cell(rest), (row.cell, []))
            if kept == row.cell:
                values_of.append(row.value)
    return found


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
    """Every lever's effect from its first completed value to each other, at each setting of the other levers."""
    runs: list[tuple[dict[str, Any], StoredRun]] = []
    for point in file.points:
        if point.run is not None and state_of(root, point.run) == "completed":
            folder = runs_folder(root) / point.run
            runs.append((point.values, StoredRun(read_record(folder), folder)))
    found: list[LeverEffect] = []
    for name in [name for name, values in file.grid.items() if len(values) > 1]:
        groups: dict[str, list[tuple[dict[str, Any], StoredRun]]] = defaultdict(list)
        for values, run in runs:
            others = {key: value for key, value in values.items() if key != name}
            groups[canonical_cell(others)].append((values, run))
        for (values, base), *rest in groups.values():
            for other_values, other in rest:
                found += compared(file, name, (values, base), (other_values, other), levers)
    return found


def compared(
    file: SweepFile,
    name: str,
    old: tuple[dict[str, Any], StoredRun],
    new: tuple[dict[str, Any], StoredRun],
    levers: Mapping[str, Lever],
) -> list[LeverEffect]:
    """The effects between two points that differ in one lever, one for each cell both have."""
    (old_values, a), (new_values, b) = old, new
    named = metric_of(a)
    if not named or named != metric_of(b):
        return []
    left, right = samples(a, named, old_values, levers), samples(b, named, new_values, levers)
    others = {key: value for key, value in old_values.items() if key != name}
    found = []
    for cell in [cell for cell in left if cell in right]:
        (old_cell, old_samples), (new_cell, new_samples) = left[cell], right[cell]
        if min(*old_samples, *new_samples) <= 0:
            continue
        ratio = welch(old_samples, new_samples)
        found.append(
            LeverEffect(
                lever=name,
                old=cell_words({name: old_values[name]}),
                new=cell_words({name: new_values[name]}),
                at=cell_words(others),
                metric=named,
                cell=cell_words(json.loads(cell)),
                cells=(old_cell, new_cell),
                **ratio._asdict(),
                outcome=outcome_of(ratio.low, ratio.high, named, file.margin),
                margin=file.margin,
                negative_control=name in file.negative_controls,
                witness=witnessed(name, a, b, levers),
                runs=(a.record.id, b.record.id),
                device=device_words(b.record),
                model=model_words(b.record.model),
                unlike=unlike(name, a, b, levers),
            )
        )
    return found


def witnessed(
    name: str, a: StoredRun, b: StoredRun, levers: Mapping[str, Lever]
) -> Literal["moved", "did not move", "not recorded"]:
    """Whether the lever's witness differs between the two runs."""
    left, right = (witness_of(name, run.record, run.folder, levers) for run in (a, b))
    if left is None or right is None:
        return "not recorded"
    return "did not move" if left == right else "moved"


def unlike(name: str, a: StoredRun, b: StoredRun, levers: Mapping[str, Lever]) -> tuple[str, ...]:
    """What differs between two runs besides the lever: device, driver, model, commit, boot."""
    own = own_name(name, levers)
    left, right = ({**(run.record.device or {})} for run in (a, b))
    facts = {
        "device": (left.get("uuid"), right.get("uuid")),
        "driver": (left.get("driver_info"), right.get("driver_info")),
        "model": (model_words(a.record.model), model_words(b.record.model)),
        "commit": tuple(run.record.git.commit if run.record.git else None for run in (a, b)),
        "boot": (a.record.host.boot_id, b.record.host.boot_id),
    }
    follows = {"device": {"device", "driver"}, "model": {"model"}, "quant": {"model"}, "driver": {"driver", "commit"}}
    return tuple(what for what, (x, y) in facts.items() if x != y and what not in follows.get(own, set()))
