"""One experiment over devices and dates: what its rule judges in each of its runs, as pictures and tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.lab.effects import by_block, settled_rows
from labkit.lab.plan import Rule, cell_words
from labkit.lab.publish.markdown import slug
from labkit.lab.publish.numbers import number
from labkit.lab.publish.read import RunView
from labkit.lab.publish.summary import Badge, badge, when_text
from labkit.lab.record import canonical_cell
from labkit.lab.scope import driver_words, model_words
from labkit.palette import NEUTRAL, PALETTE

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
MOST_DRAWN = 60  # runs of one picture; the table has all
FOLDER = "compare"


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval (None where one sample gives none) and how many blocks it is from."""

    value: float
    low: float | None
    high: float | None
    n: int

    def words(self, unit: str = "") -> str:
        """`5.83× [5.70, 5.96]`."""
        around = f" [{number(self.low)}, {number(self.high)}]" if self.low is not None and self.high is not None else ""
        return f"{number(self.value)}{unit}{around}"


@dataclass(frozen=True)
class Line:
    """A run in a table: where its page is, its conditions, its verdict, and each quantity in words."""

    address: str
    started: str
    when: str
    device: str
    driver: str
    model: str
    verdict: Badge
    quantities: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """The runs that one rule judges: its quantities by name, a picture of each (plotly's JSON), and the runs, by device
    and the newest first."""

    rule: str
    quantities: tuple[str, ...]
    pictures: tuple[dict[str, Any], ...]
    lines: tuple[Line, ...]


def compared(runs: Iterable[RunView]) -> dict[str, list[RunView]]:
    """The judged runs of each experiment that has several, as they come."""
    found: dict[str, list[RunView]] = {}
    for run in runs:
        if run.plan is not None and run.verdict is not None:
            found.setdefault(run.record.experiment, []).append(run)
    return {experiment: those for experiment, those in found.items() if len(those) > 1}


def compare_address(experiment: str) -> str:
    """Where the page of an experiment is, from the site's root."""
    return f"{FOLDER}/{slug(experiment)}/index.html"


def points_of(run: RunView) -> dict[str, Any]:
    """The rule's metric at the rule's cells, each as (value, low, high, blocks), as JSON has it; empty where it was not
    measured."""
    from labkit.lab.figures import interval
    from labkit.lab.starts import samples_of

    if run.plan is None or not run.rows:
        return {}
    rule = run.plan.rule
    found: dict[str, Any] = {}
    try:
        rows, _ = settled_rows(run.plan, samples_of(run.folder, run.plan))
        for name, cell in (("cell", rule.cell), ("against", rule.against)):
            values = list(by_block(rows, rule.metric, canonical_cell(cell)).values()) if cell is not None else []
            if values:
                mean, low, high, n = interval(values)
                found[name] = [mean, *((low, high) if n > 1 else (None, None)), n]
    except LabError:
        return {}  # its own page says what is damaged
    return found


def judged(runs: Sequence[RunView], points: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    """The runs of an experiment by what their rules judge, the newest run's first. `points` are those of each run."""
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        assert run.plan is not None
        rule = run.plan.rule
        key = canonical_cell({"metric": rule.metric, "cell": rule.cell, "against": rule.against or {}})
        groups.setdefault(key, []).append(run)
    return [group(found, points) for found in groups.values()]


def group(runs: Sequence[RunView], points: Mapping[str, Mapping[str, Any]]) -> Judged:
    """The runs of one rule, newest first given."""
    plan = runs[0].plan
    assert plan is not None
    rule = plan.rule
    names = {"effect": effect_name(rule)} if rule.ratio else {}
    names |= {"cell": f"{rule.metric} at {cell_words(rule.cell)}"}
    names |= {"against": f"{rule.metric} at {cell_words(rule.against)}"} if rule.against is not None else {}
    ordered = sorted(runs, key=lambda run: run.device)  # stable: of one device the newest stays first
    known = {run.id: quantities(run, points.get(run.id, {})) for run in ordered}
    lines = tuple(
        Line(
            f"../../runs/{run.id}/index.html",
            run.record.started,
            when_text(run.record.started),
            run.device or "not described",
            driver_words(run.record.device),
            model_words(run.record.model),
            badge(run),
            tuple(
                known[run.id][what].words("×" if what == "effect" else "") if what in known[run.id] else "–"
                for what in names
            ),
        )
        for run in ordered
    )
    drawn = {run.id for run in sorted(runs, key=lambda run: run.record.started, reverse=True)[:MOST_DRAWN]}
    shown = [run for run in ordered if run.id in drawn]
    limit = "effect" if rule.ratio else "cell"
    pictures = tuple(
        picture(shown, what, name, known, rule if what == limit else None)
        for what, name in names.items()
        if any(what in known[run.id] for run in shown)
    )
    return Judged(rule.words(), tuple(names.values()), pictures, lines)


def effect_name(rule: Rule) -> str:
    """What a ratio is of."""
    assert rule.against is not None
    return f"{rule.metric}, {cell_words(rule.cell)} over {cell_words(rule.against)}"


def quantities(run: RunView, points: Mapping[str, Any]) -> dict[str, Interval]:
    """What the rule judges in a run, by its part in the rule."""
    found = {name: Interval(*values) for name, values in points.items()}
    verdict = run.verdict
    if verdict is not None and verdict.ratio and verdict.effect is not None:
        found["effect"] = Interval(verdict.effect, verdict.low, verdict.high, verdict.pairs)
    return found


def picture(
    runs: Sequence[RunView], what: str, name: str, known: Mapping[str, Mapping[str, Interval]], rule: Rule | None
) -> dict[str, Any]:
    """A quantity over the runs: a line a run, a colour and a symbol a device, and the rule's threshold where it judges
    this quantity."""
    runs = [run for run in runs if what in known[run.id]]
    heights = {run.id: len(runs) - 1 - place for place, run in enumerate(runs)}
    devices = list(dict.fromkeys(run.device for run in runs))
    traces = [
        trace(device, place, [(heights[run.id], run, known[run.id][what]) for run in runs if run.device == device])
        for place, device in enumerate(devices)
    ]
    ends = [
        end
        for run in runs
        for end in (known[run.id][what].low, known[run.id][what].value, known[run.id][what].high)
        if end
    ]
    axis: dict[str, Any] = {"automargin": True, "zeroline": False}
    axis |= {"showgrid": True, "ticks": "outside", "nticks": 6, "ticksuffix": "×" if what == "effect" else ""}
    if ends and min(ends) > 0 and max(ends) / min(ends) >= 8:
        axis |= {"type": "log", "tickformat": "~g"} | ({"dtick": "D2"} if max(ends) / min(ends) < 1000 else {})
    where = f"{len(runs)} run{'s' * (len(runs) > 1)} on {len(devices)} device{'s' * (len(devices) > 1)}"
    layout: dict[str, Any] = {
        "title": {
            "text": name,
            "subtitle": {"text": f"{where}; points with 95 % intervals"},
        },
        "height": 110 + 26 * len(runs) + 22 * len(devices) * (len(devices) > 1),
        "xaxis": axis,
        "yaxis": {
            "tickvals": list(heights.values()),
            "ticktext": [run.record.started[:10] for run in runs],
            "range": [-0.7, len(runs) - 0.3],
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "bottom", "yref": "container"},
        "margin": {"l": 20, "r": 24, "t": 24, "b": 48},
        "showlegend": len(devices) > 1,
        "hovermode": "closest",
    }  # fmt: skip
    if rule is not None:
        low, high = rule.band
        layout["shapes"] = [
            {"type": "rect", "xref": "x", "yref": "paper", "x0": low, "x1": high, "y0": 0, "y1": 1,
             "fillcolor": NEUTRAL, "opacity": 0.2, "line": {"width": 0}, "layer": "below"}
        ] * (low < high)  # fmt: skip
        layout["shapes"] += [
            {"type": "line", "xref": "x", "yref": "paper", "x0": rule.limit, "x1": rule.limit, "y0": 0, "y1": 1,
             "line": {"color": PALETTE[1], "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": rule.limit, "xref": "x", "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
             "text": f"the rule: {rule.words().rpartition(': ')[2]}"}
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def trace(device: str, place: int, found: Sequence[tuple[int, RunView, Interval]]) -> dict[str, Any]:
    """The runs of one device."""
    values = [one.value for _, _, one in found]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": device or "not described",
        "x": values,
        "y": [height for height, _, _ in found],
        "marker": {"color": PALETTE[place % len(PALETTE)], "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(one.high if one.high is not None else one.value) - one.value for _, _, one in found],
            "arrayminus": [one.value - (one.low if one.low is not None else one.value) for _, _, one in found],
            "thickness": 2,
            "width": 4,
        },
        "text": [f"{when_text(run.record.started)}: {one.words()}, {badge(run).word}" for _, run, one in found],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }
