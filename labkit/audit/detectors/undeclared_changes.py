"""Undeclared changes: cells that are compared in one thing and differ in others that nobody named."""

import math
import re
from collections.abc import Iterator

from labkit.audit.evidence import CONDITIONS, Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector
from labkit.lab.plan import Plan

CLOCK_SHARE = 0.02  # clocks nearer than this are the same
DRAFTS = ("draft", "drafts", "k", "speculation")
NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
ARROW = re.compile(rf"({NUM})[^\d→>]*?(?:->|→)\s*({NUM})")
# What a text may call a condition by.
CALLED = {
    "device_name": ("card", "device", "gpu"),
    "model": ("model",),
    "quantisation": ("quant", "bits", "bpw"),
    "backend": ("backend", "runtime", "engine", "build", "driver"),
    "streams": ("stream", "batch", "concurren", "user", "width"),
    "slots": ("slot",),
    "tokens_per_pass_max": ("draft", "specul", "mtp", "token a pass", "tokens a pass"),
    "depth": ("depth", "context", "deep", "positions"),
    "prompt_tokens": ("prompt", "token", "length"),
    "output_tokens": ("output", "length"),
    "cache": ("cache", "prefix", "warm", "cold"),
    "memory_mhz": ("clock", "mhz", "memory"),
    "power_cap_w": ("cap", "power"),
}


@detector("undeclared-changes", 11, version=2, title="More changed than declared")
def undeclared_changes(evidence: Evidence) -> Iterator[Notice]:
    """What differs between compared cells: the plan's knobs may, and what the negative control's two cells differ in (it is
    declared to change nothing, and judged by that); whatever else does warns. Several knobs at once are a
    named bundle: allowed, and the claim is then of all of them together. Of published rows, those that a text puts
    beside each other (`a → b`) are compared, and what the text names is declared."""
    pairs = in_run(evidence) if evidence.kind == "run" else in_claims(evidence)
    clean: list[str] = []
    for one, other, declared, text in pairs:
        changed = changes(one, other, evidence.kind)
        hidden = {name: line for name, line in changed.items() if not named(name, line, declared, text)}
        if evidence.kind == "claims" and len(changed) == 1:
            hidden = {}  # it is what the rows are put beside each other for
        # published numbers stand or fall by themselves: what is at fault is the text that compares them
        about = (one.subject, other.subject) if evidence.kind == "run" else ()
        if hidden:
            said = f"{one.subject} and {other.subject} differ in {' and '.join(hidden)}, which nobody declared"
            declared_words = ", ".join(name for name in changed if name not in hidden) or "nothing"
            lines = (*hidden.values(), f"declared: {declared_words}; changed: {', '.join(changed)}")
            yield Notice(outcome="warn", text=said, subject=one.subject, about=about, arithmetic=lines)
        elif len(changed) > 1:
            said = f"{one.subject} against {other.subject} is of {' and '.join(changed)} together, and of none alone"
            lines = tuple(changed.values())
            yield Notice(outcome="ok", text=said, subject=one.subject, about=about, arithmetic=lines)
        else:
            clean += (one.subject, other.subject)
    if evidence.plan is not None and evidence.plan.rule.against is not None and not any(evidence.read_against()):
        said = f"the cells that the plan of {evidence.name} compares were not both measured"
        missing = ("samples of both cells",)
        yield Notice(outcome="not assessable", text=said, subject=evidence.name, missing=missing)
    if clean:
        said = f"cells of {evidence.name} that are read against each other differ in what is declared"
        yield Notice(outcome="ok", text=said, subject=evidence.name, about=tuple(dict.fromkeys(clean)))


def in_run(evidence: Evidence) -> Iterator[tuple[Observation, Observation, tuple[str, ...], str]]:
    """(cell, the cell it is compared with, declared knobs, no text) of a run with a plan."""
    if evidence.plan is not None:
        for one, other in evidence.read_against():
            yield one, other, (*evidence.plan.knobs, *controlled(evidence.plan, one, other)), ""


def controlled(plan: Plan, one: Observation, other: Observation) -> tuple[str, ...]:
    """What two cells differ in where they are those of the plan's negative control, else nothing."""
    control = plan.negative_control
    if (
        control is None
        or control.against is None
        or (dict(one.knobs), dict(other.knobs)) != (control.cell, control.against)
    ):
        return ()
    return tuple(one.knobs_apart(other))


def in_claims(evidence: Evidence) -> Iterator[tuple[Observation, Observation, tuple[str, ...], str]]:
    """(row, row, nothing, the text) of published rows that a text of their source puts beside each other."""
    by_value: dict[tuple[str, str, str, float], list[Observation]] = {}
    for one in evidence.observations:
        for metric, value in one.metrics.items():
            by_value.setdefault((one.source, one.date, metric, float(f"{value:.6g}")), []).append(one)
    for one in evidence.observations:
        for match in ARROW.finditer(one.text[:20_000]):
            first, second = (float(part.replace(",", "")) for part in match.groups())
            for metric in one.metrics:
                olds = by_value.get((one.source, one.date, metric, float(f"{first:.6g}")), [])
                news = by_value.get((one.source, one.date, metric, float(f"{second:.6g}")), [])
                if len(olds) == len(news) == 1 and olds[0] is not news[0]:
                    yield news[0], olds[0], (), one.text


def changes(one: Observation, other: Observation, kind: str) -> dict[str, str]:
    """What is known to differ between two cells or rows, each with a line; of a run the knobs, and what was read back."""
    found: dict[str, str] = {}
    if kind == "run":
        for name in one.knobs_apart(other):
            found[name] = f"{name}: {other.knobs.get(name)} → {one.knobs.get(name)}"
        for name in ("memory_mhz", "cache"):
            a, b = one.condition(name), other.condition(name)
            if a is not None and b is not None and not same(a, b) and one.phase == other.phase:
                found[name] = f"{name}: {shown(b)} → {shown(a)}"
        return found
    for name in CONDITIONS:
        a, b = one.condition(name), other.condition(name)
        if name != "phase" and a is not None and b is not None and not same(a, b):
            found[name] = f"{name}: {shown(b)} → {shown(a)}"
    if any(one.settings.get(name) != other.settings.get(name) for name in DRAFTS):
        found.pop("tokens_per_pass_max", None)  # it is what the drafter makes of it
    for name in one.settings.keys() & other.settings.keys():
        if one.settings[name] != other.settings[name]:
            found[name] = f"{name}: {other.settings[name]} → {one.settings[name]}"
    return found


def same(a: object, b: object) -> bool:
    """Whether two conditions are alike; clocks and counts within 2 %."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=CLOCK_SHARE)
    return a == b


def shown(value: object) -> str:
    """A condition as a line has it."""
    return number(value) if isinstance(value, int | float) else str(value)


def named(name: str, line: str, declared: tuple[str, ...], text: str) -> bool:
    """Whether a change is declared: a knob of the plan, or by name, by what people call it, or by value in the text."""
    if name in declared:
        return True
    lower = text.lower()
    values = [part.strip().lower() for part in line.partition(": ")[2].split("→")]
    words = (*CALLED.get(name, ()), name.lower(), *(value for value in values if len(value) > 2))
    return any(word in lower for word in words)
