"""How far sessions of one scope lie apart: by their history in the lab, by an anchor's, or, with neither, an assumption."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import LabError
from labkit.lab.conditions import driver_words as without_raw_version
from labkit.lab.effects import by_block, centre
from labkit.lab.folder import runs_folder
from labkit.lab.lab import StoredRun
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import Anchor, Plan, read_plan
from labkit.lab.record import RunRecord, canonical_cell, read_record
from labkit.lab.scope import build_words, driver_words, model_words, shape_of
from labkit.measure import statistics

SESSIONS_NEEDED = 5
HOW = "Plan(anchor=stream_anchor()) and measure_anchor(run, device, block) in each block, both of labkit.lab.anchor"
MEASURING = "labkit.lab.anchor.measure_anchor(run, device, block) does, once a block"
ASSUMED = 0.02  # standard deviation of a session's logarithm, the upper end of what is common, where nothing is known
MANY = 10_000  # degrees of freedom of what is assumed
TELLS_NOTHING = math.log(100)  # an interval that reaches further to either side is none


@dataclass(frozen=True)
class Spread:
    """The standard deviation of sessions' logarithms, from `sessions` of them; 0 sessions is an assumption."""

    sd: float
    freedom: int
    sessions: int
    basis: str

    def reach(self, level: float) -> float:
        """How far two sessions lie apart by it, as a logarithm."""
        return statistics.t_quantile(self.freedom, level) * self.sd * math.sqrt(2)


@dataclass(frozen=True)
class AnchorCheck:
    """Whether an anchor lay where its history said it would: `value` of the later run against the interval that
    `sessions` earlier ones predict. `reason` says why it does not hold, or is empty."""

    metric: str
    sessions: int
    value: float | None
    low: float | None
    high: float | None
    reason: str
    spread: Spread | None = None

    @property
    def holds(self) -> bool:
        """Whether the machine is as it was, as far as the anchor tells."""
        return not self.reason


def unpaired_interval(a: ArrayLike, b: ArrayLike, level: float, spread: Spread) -> statistics.Interval:
    """Mean of `b` minus mean of `a`, logarithms of the blocks of two single sessions, with an interval that holds the
    spread between sessions: Welch's, and never narrower than two sessions lie apart by `spread`. With an assumed spread,
    which has none of the blocks' noise in it, the two are added in squares. One that reaches beyond a factor of 100 is no
    interval."""
    found = statistics.welch_interval(a, b, level)
    between = spread.reach(level)
    if found.low is None or found.high is None:
        if not spread.sessions:
            return found
        half = between
    else:
        within = (found.high - found.low) / 2
        half = max(within, between) if spread.sessions else math.hypot(within, between)
    middle = found.estimate
    if half > TELLS_NOTHING:
        return statistics.Interval(middle, None, None, found.n, "sessions", level)
    return statistics.Interval(middle, middle - half, middle + half, found.n, "sessions", level)


class History:
    """The completed runs of the lab at `root`, oldest first, each read once; what cannot be read is passed over, and so
    are runs whose verdict is invalid."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._rows: dict[str, list[Measurement]] = {}

    @cached_property
    def runs(self) -> list[StoredRun]:
        """All of them."""
        found = []
        for path in sorted(runs_folder(self.root).glob("[!.]*/run.json")):
            try:
                record = read_record(path.parent)
            except LabError:
                continue
            if record.state == "completed" and (record.verdict or {}).get("outcome") != "invalid":
                found.append(StoredRun(record, path.parent))
        return found

    @cached_property
    def scopes(self) -> dict[str, list[StoredRun]]:
        """The runs by scope."""
        found: dict[str, list[StoredRun]] = defaultdict(list)
        for run in self.runs:
            found[scope_key(run.record)].append(run)
        return found

    def middle(self, run: StoredRun, name: str, cell: str) -> float | None:
        """A run's geometric mean over blocks; None where it has no samples, or one that is not positive."""
        if run.record.id not in self._rows:
            try:
                self._rows[run.record.id] = read_rows(run.folder / "measurements.csv")
            except LabError:
                self._rows[run.record.id] = []
        values = list(by_block(self._rows[run.record.id], name, cell).values())
        return centre(values) if values and min(values) > 0 else None

    def of_anchor(self, anchor: Anchor, first: RunRecord, last: RunRecord) -> list[float]:
        """The anchor's value in each session before `last` on the device and under the driver of `first`."""
        found = []
        for run in self.runs:
            there = run.record
            if (there.started, there.id) >= (last.started, last.id) or card(there) != card(first):
                continue
            plan = plan_of(run) if driver_words(there.device) == driver_words(first.device) else None
            if plan is None or plan.anchor is None or plan.anchor.essence() != anchor.essence():
                continue
            if value := self.middle(run, anchor.metric, canonical_cell(anchor.cell)):
                found.append(value)
        return found


def card(record: RunRecord) -> str | None:
    """The UUID of a run's device."""
    return (record.device or {}).get("uuid")


def scope_key(record: RunRecord) -> str:
    """What runs must share to be sessions of one scope, whatever their rule."""
    parts = (card(record), driver_words(record.device), build_words(record), model_words(record.model))
    return canonical_cell({"scope": parts, "shape": shape_of(record)})


def plan_of(run: StoredRun) -> Plan | None:
    """A run's plan; None where it has none that can be read."""
    try:
        return read_plan(run.folder / "plan.json") if (run.folder / "plan.json").is_file() else None
    except LabError:
        return None


def apart(old: RunRecord, new: RunRecord, record: RunRecord) -> str:
    """What acts and is no part of the scope, where `old` and `new` have it differently, as `record` has it: the settings
    of the card (power limit, ECC) and the notebook's code."""
    told = [
        {f"card {name}": value for name, value in ((one.device or {}).get("card") or {}).items()}
        | ({"notebook": one.notebook_sha256} if one.notebook_sha256 else {})
        for one in (old, new, record)
    ]
    names = [name for name in sorted(told[0].keys() & told[1].keys()) if told[0][name] != told[1][name]]
    return canonical_cell({name: told[2].get(name) for name in names})


def spread_of(
    known: History, old: StoredRun, new: StoredRun, name: str, cells: tuple[str, str], level: float, alike: bool = False
) -> Spread:
    """The spread between sessions of a metric at a cell, from the completed runs in the scopes of both. With fewer than
    five of one scope it is assumed, or what those there show where two sessions lie further apart by that at `level`.

    The two themselves are sessions of one scope where nothing differs that acts, whatever their state; `alike` says so
    where their parameters differ in what does not act."""

    def key_of(run: StoredRun) -> str:
        return scope_key(run.record) + apart(old.record, new.record, run.record)

    groups: dict[str, dict[str, float]] = {}
    for run, cell in zip((old, new), cells, strict=True):
        key = key_of(run)
        found = groups.setdefault("alike" if alike else key + cell, {})
        for other in (*known.scopes.get(scope_key(run.record), ()), run):
            if key_of(other) == key and (value := known.middle(other, name, cell)):
                found[other.record.id] = value
    logs = [np.log(list(values.values())) for values in groups.values() if len(values) >= 2]
    most = max(map(len, groups.values()))
    freedom, number = sum(len(one) - 1 for one in logs), sum(map(len, logs))
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs)
    shown = (
        Spread(math.sqrt(squares / freedom), freedom, number, f"from {number} sessions of the same scope")
        if logs
        else None
    )
    if shown is not None and most >= SESSIONS_NEEDED:
        return shown
    assumed = Spread(
        ASSUMED, MANY, 0, f"assumed: {most} of the {SESSIONS_NEEDED} sessions of one scope that would tell it"
    )
    if shown is None or shown.reach(level) <= assumed.reach(level):
        return assumed
    if len(groups) == 1 and number == 2:
        return replace(shown, basis="undecided: two sessions of one scope, this is their spread")
    return replace(
        shown, basis=f"from the {number} sessions of the scope there are, of {SESSIONS_NEEDED} that would tell it"
    )


def check_anchor(known: History, old: StoredRun, new: StoredRun) -> AnchorCheck:
    """Whether the anchor of two runs, whichever is given first, lies in the later where its earlier sessions predict it.

    Its history are the completed runs before the later one that measured the same anchor on the same device under the
    driver of the earlier one; at least five, else it does not hold."""
    first, last = sorted((old, new), key=lambda run: (run.record.started, run.record.id))
    anchors: list[Anchor] = [plan.anchor for run in (old, new) if (plan := plan_of(run)) is not None and plan.anchor]
    if len(anchors) < 2 or anchors[0].essence() != anchors[1].essence():
        why = "no anchor was measured in both"
        if len(anchors) < 2:
            without = [run.record.id for run in (old, new) if (plan := plan_of(run)) is None or plan.anchor is None]
            why += f": {' and '.join(without)} declared none. For the next upgrade, {HOW}"
        else:
            why = (
                f"the two runs have different anchors, {' and '.join(anchor.words() for anchor in anchors)}: each has a "
                f"history of its own"
            )
        return AnchorCheck("", 0, None, None, None, why)
    anchor = anchors[0]
    values = known.of_anchor(anchor, first.record, last.record)
    value = known.middle(last, anchor.metric, canonical_cell(anchor.cell))
    if value is None:
        return AnchorCheck(
            anchor.metric, len(values), None, None, None, f"{last.record.id} did not measure its anchor; {MEASURING}"
        )
    if len(values) < SESSIONS_NEEDED:
        driver, lacking = without_raw_version(driver_words(first.record.device)), SESSIONS_NEEDED - len(values)
        why = (
            f"its anchor has {len(values)} of the {SESSIONS_NEEDED} earlier sessions on this device and driver ({driver}): "
            f"measure it in {lacking} more completed run{'s' * (lacking > 1)} there, then once more after the upgrade"
        )
        return AnchorCheck(anchor.metric, len(values), value, None, None, why)
    found = statistics.prediction_interval(np.log(values)).exp()
    assert found.low is not None
    assert found.high is not None
    sd = float(np.log(values).std(ddof=1))
    spread = Spread(sd, len(values) - 1, len(values), f"from {len(values)} sessions of the anchor")
    moved = "" if found.low <= value <= found.high else (
        f"its anchor moved too: {anchor.metric} is {value:.4g}, its {len(values)} sessions predict {found.low:.4g} to "
        f"{found.high:.4g}. What changed reaches further than the upgrade (clocks, cooling, another program), or the "
        f"upgrade moves every kernel"
    )  # fmt: skip
    return AnchorCheck(anchor.metric, len(values), value, found.low, found.high, moved, spread)
