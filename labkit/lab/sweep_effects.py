"""What a sweep measured of each lever: the ratio of two of its values, with its interval, conditions and witness."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from labkit.lab.folder import runs_folder
from labkit.lab.lab import StoredRun
from labkit.lab.lever_checks import witness_of
from labkit.lab.levers import Lever, find_lever
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import cell_words, read_plan
from labkit.lab.record import Frozen, canonical_cell, read_record
from labkit.lab.scope import device_words, model_words
from labkit.lab.sweep_file import SweepFile, state_of
from labkit.measure.metrics import metric
from labkit.measure.statistics import LEVEL, t_quantile

Outcome = Literal["faster", "slower", "higher", "lower", "same", "undecided"]


class LeverEffect(Frozen):
    """A lever moved from `old` to `new`: the ratio new over old of `metric` at `cell`, each value measured in a run of its
    own with `blocks` repetitions, so drift between the two runs is part of it. `at` are the other levers of the grid."""

    lever: str
    old: str
    new: str
    at: str = ""
    metric: str
    cell: str = ""
    ratio: float
    low: float | None
    high: float | None
    blocks: tuple[int, int]
    outcome: Outcome
    margin: float
    negative_control: bool = False
    witness: Literal["moved", "did not move", "not recorded"] = "not recorded"
    runs: tuple[str, str]
    device: str = ""
    model: str = ""
    unlike: tuple[str, ...] = ()  # what else differs between the two runs

    @property
    def control_moved(self) -> bool:
        """Whether this is a negative control that did not come out the same."""
        return self.negative_control and self.outcome not in ("same", "undecided")


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The ratio of the geometric means b / a of positive samples and its 95 % interval, by Welch's t on logarithms
    (Welch 1947): the two are not paired. Without two samples of each there is no interval."""
    x, y = [math.log(value) for value in a], [math.log(value) for value in b]
    middle = sum(y) / len(y) - sum(x) / len(x)
    if len(x) < 2 or len(y) < 2:
        return math.exp(middle), None, None
    parts = [variance(values) / len(values) for values in (x, y)]
    spread = sum(parts)
    if spread == 0:
        return math.exp(middle), math.exp(middle), math.exp(middle)
    freedom = spread**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (x, y), strict=True))
    half = t_quantile(max(1, math.floor(freedom)), LEVEL) * math.sqrt(spread)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def variance(values: Sequence[float]) -> float:
    """The sample variance."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def outcome_of(low: float | None, high: float | None, name: str, margin: float) -> Outcome:
    """What an interval of a ratio says: all within the margin of 1 is *same*, all beyond it a difference."""
    if low is None or high is None:
        return "undecided"
    if low >= 1 - margin and high <= 1 + margin:
        return "same"
    if high < 1 - margin or low > 1 + margin:
        grew, better = low > 1, metric(name).better
        if better == "none":
            return "higher" if grew else "lower"
        return "faster" if grew == (better == "higher") else "slower"
    return "undecided"


def samples(
    run: StoredRun, name: str, values: Mapping[str, Any], levers: Mapping[str, Lever]
) -> dict[str, list[float]]:
    """The run's samples of a metric by cell, without the knobs that the sweep itself set: of a cell that names such a
    lever, only where it is set as the sweep set it."""
    set_to = {own_name(key, levers): value for key, value in values.items()}
    found: dict[str, list[float]] = defaultdict(list)
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
            found[canonical_cell(rest)].append(row.value)
    return dict(found)


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
        if point.run is not None and state_of(root, point) == "completed":
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
        if min(*left[cell], *right[cell]) <= 0:
            continue
        ratio, low, high = welch(left[cell], right[cell])
        found.append(
            LeverEffect(
                lever=name,
                old=cell_words({name: old_values[name]}),
                new=cell_words({name: new_values[name]}),
                at=cell_words(others),
                metric=named,
                cell=cell_words(json.loads(cell)),
                ratio=ratio,
                low=low,
                high=high,
                blocks=(len(left[cell]), len(right[cell])),
                outcome=outcome_of(low, high, named, file.margin),
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


def effect_line(effect: LeverEffect) -> str:
    """One line: `kv=f16 to kv=f32: decode_tok_s 0.912× [0.90, 0.93], slower (10 and 10 blocks)`."""
    from labkit.lab.verdict import effect_words

    place = ", ".join(part for part in (effect.at, effect.cell) if part)
    number = effect_words(effect.ratio, effect.low, effect.high, True, "")
    parts = [
        f"{effect.old} to {effect.new}{f' at {place}' if place else ''}: {effect.metric} {number}, {effect.outcome}"
    ]
    if effect.negative_control:
        parts.append("NEGATIVE CONTROL MOVED" if effect.control_moved else "negative control")
    if effect.witness == "did not move":
        parts.append("its witness did not move")
    if effect.unlike:
        parts.append(f"also different: {', '.join(effect.unlike)}")
    parts.append(f"{effect.blocks[0]} and {effect.blocks[1]} blocks, one run each")
    return "; ".join(parts)
