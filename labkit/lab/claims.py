"""Numbers in claims: each quantity a sentence states must be one the run's data give, at the digits written."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.lab.effects import Sample, by_block, centre
from labkit.lab.events import Claim, Number
from labkit.lab.plan import Plan
from labkit.lab.verdict import Verdict
from labkit.measure.metrics import METRICS

QUANTITY = re.compile(
    r"(?P<bound>at least|more than|over|above|≥|>|at most|less than|under|below|≤|<)?\s*"
    r"(?<![\w.,/-])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)\s*"
    r"(?P<unit>×|x\b|-fold\b|times\b|%|percent\b|tok/s\b|tokens a second\b|tokens per second\b|req/s\b|GB/s\b|GFLOP/s\b"
    r"|ms\b|µs\b|us\b|s\b|seconds\b|J/tok\b|W\b)",
    re.IGNORECASE,
)
RATIO_UNITS = ("×", "x", "-fold", "times")
SHARE_UNITS = ("%", "percent")
SETTING_UNITS = ("s", "seconds", "ms", "w")
SAME_UNIT = {"tokens a second": "tok/s", "tokens per second": "tok/s", "seconds": "s", "µs": "us"}
AT_LEAST = ("at least", "more than", "over", "above", "≥", ">")


class Known(NamedTuple):
    """What a sentence may state: ratios, shares (0.25 for 25 %), values by unit, and what was given rather than found:
    `limits` (the rule's threshold and margin) with any unit, `settings` (parameters) as times and powers."""

    ratios: tuple[float, ...]
    shares: tuple[float, ...]
    values: Mapping[str, tuple[float, ...]]
    limits: frozenset[float]
    settings: frozenset[float]
    low: float | None
    high: float | None


def cell_numbers(run: str, rows: Sequence[Sample]) -> list[Number]:
    """The mean of every metric at every cell of a run."""
    keys = dict.fromkeys((row.metric, row.cell) for row in rows)
    found = []
    for metric, cell in keys:
        blocks = by_block(rows, metric, cell)
        found.append(
            Number(run=run, metric=metric, cell=cell, n=len(blocks), value=centre([blocks[b] for b in sorted(blocks)]))
        )
    return found


def known_numbers(numbers: Iterable[Number], verdict: Verdict, plan: Plan, parameters: Mapping[str, Any]) -> Known:
    """Everything the data of a run let one say: its cells' means, their ratios, the verdict, and what was given."""
    values: dict[str, list[float]] = {}
    by_metric: dict[str, list[float]] = {}
    for number in numbers:
        unit = METRICS[number.metric].unit if number.metric in METRICS else "1"
        values.setdefault(unit, []).append(number.value)
        by_metric.setdefault(number.metric, []).append(number.value)
    ratios = [
        a / b for group in by_metric.values() for a, b in itertools.permutations(group, 2) if b and math.isfinite(a / b)
    ]
    ends = [value for value in (verdict.effect, verdict.low, verdict.high) if value is not None]
    if verdict.ratio:
        ratios += [*ends, *verdict.values]
    elif verdict.unit:
        values.setdefault(verdict.unit, []).extend([*ends, *verdict.values])
    shares = [abs(ratio - 1) for ratio in ratios] + ratios + values.get("1", [])
    return Known(
        tuple(ratios),
        (*shares, plan.rule.margin),
        {unit: tuple(found) for unit, found in values.items()},
        frozenset({plan.rule.limit}),
        frozenset(numbers_in(parameters)),
        verdict.low,
        verdict.high,
    )


def checked_claims(texts: Iterable[str], known: Known) -> tuple[Claim, ...]:
    """The claims, those with a number the data do not bear out marked as withheld."""
    return tuple(Claim(text=text, withheld="; ".join(unsupported(text, known))) for text in texts)


def unsupported(text: str, known: Known) -> list[str]:
    """A line for each quantity in `text` that is none of the known ones, with the nearest that is."""
    faults = []
    for match in QUANTITY.finditer(text):
        number, unit = float(match["number"].replace(",", "")), match["unit"].lower()
        candidates, scale = candidates_for(unit, known)
        given = known.limits | (known.settings if unit in SETTING_UNITS else frozenset())
        if number in given or is_among(match["number"], number, [value * scale for value in candidates]):
            continue
        if match["bound"] and bounded(match["bound"].lower(), number / scale, known, unit in RATIO_UNITS):
            continue
        nearest = min((value * scale for value in candidates), key=lambda value: abs(value - number), default=None)
        instead = f"; nearest is {nearest:.4g}" if nearest is not None else ""
        faults.append(f"{match['number']} {match['unit']} is not in the data of the run{instead}")
    return faults


def candidates_for(unit: str, known: Known) -> tuple[Sequence[float], float]:
    """The known numbers a unit may go with, and what they are multiplied by when written."""
    if unit in RATIO_UNITS:
        return known.ratios, 1
    if unit in SHARE_UNITS:
        return known.shares, 100
    name = SAME_UNIT.get(unit, unit)
    fitting = next((values for one, values in known.values.items() if one.lower() == name), ())
    if name == "s":
        return (*fitting, *(value / 1000 for value in known.values.get("ms", ()))), 1
    return fitting, 1


def is_among(written: str, number: float, candidates: Iterable[float]) -> bool:
    """Whether a candidate rounds to the number as written: `5.8` stands for 5.75 to 5.85."""
    places = len(written.partition(".")[2])
    half = 0.5 * 10**-places
    return any(abs(value - number) <= half * (1 + 1e-9) for value in candidates)


def bounded(bound: str, number: float, known: Known, ratio: bool) -> bool:
    """Whether the verdict's whole interval lies on the stated side of the number."""
    if not ratio or known.low is None or known.high is None:
        return False
    return known.low >= number if bound in AT_LEAST else known.high <= number


def numbers_in(thing: Any) -> Iterable[float]:
    """Every number in nested settings."""
    if isinstance(thing, bool) or thing is None:
        return
    if isinstance(thing, int | float):
        yield float(thing)
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from numbers_in(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from numbers_in(value)
