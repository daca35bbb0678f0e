"""What changed between a run and its repeat: verdicts, effects, speeds with intervals, and the conditions that differ."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.lab.lab import StoredRun
from labkit.lab.lever_effect import outcome_of
from labkit.lab.lever_ratio import Ratio, welch
from labkit.lab.measurements import read_rows
from labkit.lab.plan import Plan, cell_words, read_plan
from labkit.lab.record import RunRecord, canonical_cell
from labkit.lab.verdict import effect_words

MARGIN = 0.02  # within which a speed is the same
MOST_CELLS = 8  # of a run without a plan
Outcome = str


@dataclass(frozen=True)
class Speed:
    """A metric in one cell, then and now: geometric means, and the ratio now over then."""

    metric: str
    cell: str
    then: float
    now: float
    ratio: Ratio
    outcome: Outcome

    def words(self) -> str:
        """`0.912× [0.90, 0.93], slower`."""
        return f"{effect_words(self.ratio.ratio, self.ratio.low, self.ratio.high, True, '')}, {self.outcome}"


@dataclass(frozen=True)
class Changed:
    """One question, then and now. `trouble` says why it was not answered again."""

    question: str
    experiment: str
    then: str = ""  # the run
    now: str = ""
    verdict_then: str = ""
    verdict_now: str = ""
    effect_then: str = ""
    effect_now: str = ""
    speeds: tuple[Speed, ...] = ()
    conditions: tuple[str, ...] = ()
    trouble: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The heading it stands under."""
        if self.trouble:
            return "not answered again"
        if not self.then:
            return "answered for the first time"
        if self.verdict_then != self.verdict_now:
            return "another verdict"
        if any(speed.outcome not in ("same", "undecided") for speed in self.speeds):
            return "the same verdict at another speed"
        return "unchanged as far as can be told"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        speeds = [
            {
                "metric": s.metric,
                "cell": s.cell,
                "then": s.then,
                "now": s.now,
                "outcome": s.outcome,
                **s.ratio._asdict(),
            }
            for s in self.speeds
        ]
        return {**self.__dict__, "kind": self.kind, "speeds": speeds}


KINDS = (
    "another verdict", "the same verdict at another speed", "not answered again", "answered for the first time",
    "unchanged as far as can be told",
)  # fmt: skip


def changed(then: StoredRun | None, now: StoredRun) -> Changed:
    """A run and its repeat; `then` None for a question that was never asked."""
    plan = plan_of(now)
    common: dict[str, Any] = {
        "question": (plan.question or plan.belief) if plan else now.record.experiment,
        "experiment": now.record.experiment,
        "now": now.record.id,
        "verdict_now": outcome_word(now.record),
        "effect_now": effect_word(now.record),
    }
    if now.record.state != "completed":
        common["trouble"] = f"the repeat ended as {now.record.state}: {now.record.reason}".rstrip(": ")
    if then is None:
        return Changed(**common)
    return Changed(
        **common,
        then=then.record.id,
        verdict_then=outcome_word(then.record),
        effect_then=effect_word(then.record),
        speeds=tuple(speeds_of(then, now, plan)),
        conditions=tuple(conditions_that_differ(then.record, now.record)),
    )


def plan_of(run: StoredRun) -> Plan | None:
    """The run's plan, None where it has none."""
    path = run.folder / "plan.json"
    return read_plan(path) if path.exists() else None


def outcome_word(record: RunRecord) -> str:
    """The verdict's outcome; `no plan` without one."""
    return str((record.verdict or {}).get("outcome") or "no plan")


def effect_word(record: RunRecord) -> str:
    """The verdict's effect with its interval."""
    verdict = record.verdict or {}
    return effect_words(
        verdict.get("effect"),
        verdict.get("low"),
        verdict.get("high"),
        bool(verdict.get("ratio")),
        verdict.get("unit", ""),
    )


def speeds_of(then: StoredRun, now: StoredRun, plan: Plan | None) -> Iterable[Speed]:
    """The rule's metric at the rule's cells, or what a run without a plan measured first, then and now."""
    old, new = (read_rows(run.folder / "measurements.csv") for run in (then, now))
    if plan is not None:
        name = plan.rule.metric
        cells = [canonical_cell(cell) for cell in (plan.rule.cell, plan.rule.against) if cell is not None]
    else:
        name = new[0].metric if new else ""
        cells = list(dict.fromkeys(row.cell for row in new if row.metric == name))[:MOST_CELLS]
    for cell in cells:
        a, b = ([row.value for row in rows if (row.metric, row.cell) == (name, cell)] for rows in (old, new))
        if not a or not b or min(*a, *b) <= 0:
            continue
        ratio = welch(a, b)
        mean_then, mean_now = (math.exp(sum(map(math.log, values)) / len(values)) for values in (a, b))
        outcome = outcome_of(ratio.low, ratio.high, name, MARGIN)
        yield Speed(name, cell_words(json.loads(cell)), mean_then, mean_now, ratio, outcome)


def conditions_that_differ(then: RunRecord, now: RunRecord) -> Iterable[str]:
    """Every condition that is not what it was, in words, and what disturbed the repeat."""
    a, b = then.device or {}, now.device or {}
    pairs: list[tuple[str, Any, Any]] = [
        (name.replace("_", " "), a.get(name), b.get(name))
        for name in ("name", "driver_name", "driver_info", "api_version")
    ]
    pairs += [
        (f"card {name}", (a.get("card") or {}).get(name), (b.get("card") or {}).get(name)) for name in card_facts(a, b)
    ]
    pairs += [
        ("model", model_word(then), model_word(now)),
        ("commit", short(then.git.commit if then.git else None), short(now.git.commit if now.git else None)),
        ("system", then.host.os, now.host.os),
        ("processor", then.host.cpu, now.host.cpu),
        ("notebook's code", short(then.notebook_sha256), short(now.notebook_sha256)),
    ]  # fmt: skip
    for name, old, new in pairs:
        if old != new:
            yield f"{name}: {old} → {new}"
    if then.shaders != now.shaders:
        names = [name for name in {**then.shaders, **now.shaders} if then.shaders.get(name) != now.shaders.get(name)]
        yield f"shaders: {len(names)} changed"
    for name in sorted({*then.packages, *now.packages}):
        if then.packages.get(name) != now.packages.get(name):
            yield f"package {name}: {then.packages.get(name)} → {now.packages.get(name)}"
    for name in sorted({*then.parameters, *now.parameters}):
        if then.parameters.get(name) != now.parameters.get(name):
            yield f"parameter {name}: {then.parameters.get(name)!r} → {now.parameters.get(name)!r}"
    if then.host.boot_id != now.host.boot_id:
        yield "another boot of the machine"
    if now.neighbours is not None:
        yield from (f"beside the repeat: {trouble}" for trouble in now.neighbours.troubles)


def card_facts(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names of what either record says of its card."""
    return sorted({*(a.get("card") or {}), *(b.get("card") or {})})


def model_word(record: RunRecord) -> str | None:
    """The model by the hash of its file, else by name."""
    model = record.model or {}
    return short(model.get("sha256")) or model.get("name")


def short(text: str | None) -> str | None:
    """The start of a hash."""
    return text[:12] if text else text


# The page


def summary(items: Sequence[Changed]) -> str:
    """`2 of 7 questions have another verdict, 1 runs at another speed`."""
    counts = {kind: sum(item.kind == kind for item in items) for kind in KINDS}
    told = [f"{kind}: {number}" for kind, number in counts.items() if number]
    return f"{len(items)} question{'' if len(items) == 1 else 's'} asked again. {'; '.join(told)}."


def markdown(title: str, items: Sequence[Changed]) -> str:
    """The page as markdown: what changed first."""
    from labkit.lab.entry_text import md

    parts = [f"# {md(title)}", summary(items)]
    for kind in KINDS:
        found = [item for item in items if item.kind == kind]
        if found:
            parts.append(f"## {kind[0].upper()}{kind[1:]}")
            parts += ["\n".join(lines_of(item, md)) for item in found]
    return "\n\n".join(parts) + "\n"


def lines_of(item: Changed, md: Any = str) -> list[str]:
    """One question as a list."""
    lines = [f"### {md(item.question)}", "", f"- experiment: {md(item.experiment)}"]
    if item.trouble:
        lines.append(f"- trouble: {md(item.trouble)}")
    if item.verdict_now and not item.trouble:
        both = [f"{item.verdict_then} {item.effect_then}", f"{item.verdict_now} {item.effect_now}"]
        told = [words.strip() for words in (both if item.then else both[1:])]
        lines.append(f"- verdict: {md(' → '.join(told))}")
    lines += [
        f"- {speed.metric} at {md(speed.cell)}: {speed.then:.4g} → {speed.now:.4g}, {speed.words()}"
        for speed in item.speeds
    ]
    lines += [f"- changed: {md(text)}" for text in item.conditions]
    if item.then and not item.conditions:
        lines.append("- changed: no condition that a record keeps")
    runs = " → ".join(run for run in (item.then, item.now) if run)
    return [*lines, f"- runs: {runs}"] if runs else lines


def page(title: str, items: Sequence[Changed]) -> str:
    """The page as one HTML file that needs no network."""
    import html

    def text(value: str) -> str:
        return html.escape(value)

    sections = []
    for kind in KINDS:
        found = [item for item in items if item.kind == kind]
        if not found:
            continue
        blocks = []
        for item in found:
            head, _, *rest = lines_of(item)
            points = "".join(f"<li>{text(line.removeprefix('- '))}</li>" for line in rest)
            blocks.append(f"<h3>{text(head.removeprefix('### '))}</h3><ul>{points}</ul>")
        sections.append(f"<h2>{text(kind[0].upper() + kind[1:])}</h2>{''.join(blocks)}")
    style = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color-scheme:light dark}li{margin:.2em 0}"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{text(title)}</title><style>{style}</style>"
        f"<h1>{text(title)}</h1><p>{text(summary(items))}</p>{''.join(sections)}</html>\n"
    )


def write_page(folder: Path, name: str, title: str, items: Sequence[Changed]) -> tuple[Path, Path]:
    """Writes `<name>.md` and `<name>.html`, each whole; their paths."""
    from labkit.lab.record import write_atomic

    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{name}.md", folder / f"{name}.html"
    for path, content in zip(written, (markdown(title, items), page(title, items)), strict=True):
        write_atomic(path, content)
    return written
