"""What changed between a run and its repeat: verdicts, effects, speeds with intervals, and the conditions that differ."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.compare import CellRatio, compare_runs
from labkit.lab.differences import differences
from labkit.lab.lab import StoredRun
from labkit.lab.plan import Plan, cell_words, read_plan
from labkit.lab.record import RunRecord, canonical_cell
from labkit.lab.verdict import effect_words

MOST_CELLS = 8  # of a run without a plan


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
    speeds: tuple[CellRatio, ...] = ()
    conditions: tuple[str, ...] = ()
    bound: str = ""  # what the speeds' ratios can be put to
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
        if any(speed.word not in ("same", "undecided", "invalid") for speed in self.speeds):
            return "the same verdict at another speed"
        return "unchanged as far as can be told"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self.__dict__, "kind": self.kind, "speeds": [asdict(speed) for speed in self.speeds]}


KINDS = (
    "another verdict", "the same verdict at another speed", "not answered again", "answered for the first time",
    "unchanged as far as can be told",
)  # fmt: skip


def changed(root: Path, then: StoredRun | None, now: StoredRun) -> Changed:
    """A run of the lab at `root` and its repeat; `then` None for a question that was never asked."""
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
    speeds, bound = speeds_of(root, then, now, plan)
    return Changed(
        **common,
        then=then.record.id,
        verdict_then=outcome_word(then.record),
        effect_then=effect_word(then.record),
        speeds=speeds,
        bound=bound,
        conditions=tuple(one.words() for one in differences(then, now)),
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


def speeds_of(root: Path, then: StoredRun, now: StoredRun, plan: Plan | None) -> tuple[tuple[CellRatio, ...], str]:
    """The rule's metric at the rule's cells, or what a run without a plan measured first, then and now, as `lab compare`
    compares them; and what the ratios can be put to. Nothing where they share no cell."""
    try:
        found = compare_runs(root, then, now, plan.rule.metric if plan else None)
    except ParameterError:
        return (), ""
    if plan is None:
        return found.cells[:MOST_CELLS], found.bound
    wanted = [json.loads(canonical_cell(cell)) for cell in (plan.rule.cell, plan.rule.against) if cell is not None]
    ours = {cell_words(cell) for cell in wanted}
    return tuple(cell for cell in found.cells if cell.cell in ours), found.bound


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
    for speed in item.speeds:
        numbers = f"{speed.old:.4g} → {speed.new:.4g} {speed.unit}, {speed.words()}, {speed.word}"
        between = f" (spread between sessions: {speed.spread})" if speed.spread else ""
        lines.append(f"- {speed.metric} at {md(speed.cell)}: {md(numbers + between)}")
    lines += [f"- changed: {md(text)}" for text in item.conditions]
    if item.then and not item.conditions:
        lines.append("- changed: no condition that a record keeps")
    if item.bound:
        lines.append(f"- what this can be put to: {md(item.bound)}")
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
