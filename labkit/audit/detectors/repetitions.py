"""Repetitions that are not of one kind: a trend of the pairs, two groups, a first repetition unlike the rest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import SURE_P, number
from labkit.audit.registry import detector
from labkit.lab.plan import Rule
from labkit.measure import statistics

LEAST = 0.02  # what is smaller is no trouble, however sure
FEW, MANY = 3, 8  # repetitions: from `MANY` on groups are told by statistics
FEW_APART, FEW_TIMES = 0.10, 10  # fewer are told apart by this share, and this many times the range of the rest
Logs = NDArray[np.float64]
MAIN = ("decode_tok_s", "stream_tok_s", "prefill_tok_s", "total_tok_s", "step_ms", "ttft_s", "kernel_us")


@dataclass(frozen=True)
class Series:
    """Repetitions in their order: of a metric at a cell, or ratios of two cells by block."""

    words: str
    values: tuple[float, ...]
    about: tuple[str, ...]


@detector("repetitions", 14, version=1, title="Repetitions of one kind")
def repetitions(evidence: Evidence) -> Iterator[Notice]:
    """The pair ratios of the cells that are compared, and the repetitions of those cells. A trend of the ratios (p < 1e-4
    and over 2 %) warns, and fails where its two ends give the rule different answers; repetitions in two groups, and a
    first one unlike the rest (p < 1e-4, or far outside where there are few; over 2 %), warn."""
    if evidence.kind != "run":
        return
    series = list(alone(evidence))
    found = [notice for pairs, rule in paired(evidence) for notice in trending(pairs, rule)]
    for one, cold in series:
        found += [*grouped(one), *(() if cold else first_unlike(one))]
    yield from found
    if not series:
        text = f"{evidence.name} has no {FEW} repetitions of a timed metric to judge"
        yield Notice(outcome="not assessable", text=text, subject=evidence.name, missing=(f"{FEW} repetitions",))
        return
    troubled = {subject for notice in found for subject in notice.about}
    sound = tuple(dict.fromkeys(s for one, _ in series for s in one.about if s not in troubled))
    if sound:
        text = "the repetitions that decide are of one kind: no trend, no groups, no cold start"
        yield Notice(outcome="ok", text=text, subject=evidence.name, about=sound)


def paired(evidence: Evidence) -> Iterator[tuple[Series, Rule | None]]:
    """(ratios by block, the rule they decide or None) of the cells read against each other."""
    if evidence.plan is None:
        return
    rule = evidence.plan.rule
    ruled = list(evidence.pair(rule.cell, rule.against)) if rule.against is not None else []
    for one, other in evidence.read_against():
        first, second = by_block(one, rule.metric), by_block(other, rule.metric)
        blocks = [b for b in sorted(first.keys() & second.keys()) if fit(first[b]) and fit(second[b])]
        if len(blocks) >= FEW:
            ratios = tuple(first[block] / second[block] for block in blocks)
            words = f"{rule.metric} at {one.subject} over {other.subject}"
            yield Series(words, ratios, (one.subject, other.subject)), rule if (one, other) in ruled else None


def alone(evidence: Evidence) -> Iterator[tuple[Series, bool]]:
    """(repetitions, whether their warm-up is left out anyway) of each cell that decides: the rule's, else every cell."""
    plan = evidence.plan
    cells = list(evidence.observations)
    if plan is not None:
        found = [evidence.pair(plan.rule.cell, end) for end in (plan.rule.cell, plan.rule.against) if end is not None]
        cells = [pair[1] for pairs in found for pair in pairs]
    for one in cells:
        metric = plan.rule.metric if plan is not None else next((name for name in MAIN if name in one.metrics), "")
        values = one.series(metric)
        if len(values) >= FEW and all(map(fit, values)):
            yield (
                Series(f"{metric} at {one.subject}", values, (one.subject,)),
                plan is not None and plan.warmup != "counted",
            )


def fit(value: float) -> bool:
    """Whether a value has a logarithm."""
    return math.isfinite(value) and value > 0


def by_block(one: Observation, metric: str) -> dict[int, float]:
    """Block → the repetition measured in it, the last where there are several."""
    return {sample.block: sample.value for sample in one.samples.get(metric, ())}


def trending(pairs: Series, rule: Rule | None) -> Iterator[Notice]:
    """The notice on ratios that move through the session."""
    logs = np.log(pairs.values)
    line = statistics.trend_alarm(logs)
    if line is None:
        return
    half = line.slope * (len(logs) - 1) / 2
    first, last = (math.exp(float(logs.mean()) + end) for end in (-half, half))
    crossed = rule is not None and answer(rule, first) != answer(rule, last)
    lines = [
        f"{pairs.words}: {number(first)} at the first block, {number(last)} at the last, by a straight line through {len(logs)}",
        f"{last / first - 1:+.1%}, of {LEAST:.0%} at the most; p = {line.p:.1g}, of {SURE_P:.0e} at the least",
    ]
    if crossed and rule is not None:
        lines.append(f"the rule asks for {rule.words().rpartition(': ')[2]}: one end is, the other is not")
    text = f"{pairs.words} moves through the session by {last / first - 1:+.1%}: the blocks did not cancel what drifted"
    outcome = "fail" if crossed else "warn"
    yield Notice(outcome=outcome, text=text, subject=pairs.about[0], about=pairs.about, arithmetic=tuple(lines))  # type: ignore[arg-type]


def answer(rule: Rule, ratio: float) -> bool:
    """What a rule says of one ratio, taken as exact."""
    if rule.comparison in (">=", "<="):
        return ratio >= rule.limit if rule.comparison == ">=" else ratio <= rule.limit
    low, high = rule.band
    return low <= ratio <= high


def grouped(series: Series) -> Iterator[Notice]:
    """The notice on repetitions that fall into two groups."""
    logs = np.sort(np.log(series.values))
    many = len(logs) >= MANY
    if many and not statistics.two_groups(logs):
        return
    cut = best_cut(logs, least=max(2, -(-len(logs) // 5)) if many else 1)
    low, high = logs[:cut], logs[cut:]
    apart = math.expm1(float(high.mean() - low.mean()))
    if many and apart <= LEAST:
        return
    if not many:
        inner = max(float(np.ptp(low)), float(np.ptp(high)))
        if apart <= FEW_APART or math.log1p(apart) <= FEW_TIMES * inner or lone_first(series, low, high):
            return
    lines = (
        f"{len(low)} of {len(logs)} about {number(math.exp(float(low.mean())))}, {len(high)} about "
        f"{number(math.exp(float(high.mean())))}: {apart:.1%} apart, of {LEAST if many else FEW_APART:.0%} at the most",
        "one of 200 normal samples divides so well" if many else f"over {FEW_TIMES} times the range within a group",
    )
    text = f"the repetitions of {series.words} fall into two groups, {apart:.0%} apart: their mean is of neither"
    yield Notice(outcome="warn", text=text, subject=series.about[0], about=series.about, arithmetic=lines)


def best_cut(logs: Logs, least: int) -> int:
    """Where sorted values part into two groups with the least variance within them."""
    cuts = range(least, len(logs) - least + 1)
    return min(cuts, key=lambda cut: float(logs[:cut].var() * cut + logs[cut:].var() * (len(logs) - cut)))


def lone_first(series: Series, low: Logs, high: Logs) -> bool:
    """Whether one group is the first repetition alone: a cold start, which has its own notice."""
    smaller = low if len(low) <= len(high) else high
    return len(smaller) == 1 and math.isclose(float(smaller[0]), math.log(series.values[0]))


def first_unlike(series: Series) -> Iterator[Notice]:
    """The notice on a first repetition that the rest is not like."""
    first, rest = math.log(series.values[0]), np.log(series.values[1:])
    middle = float(np.median(rest))
    apart = math.expm1(first - middle)
    if len(rest) >= MANY - 1:
        from scipy.special import stdtr

        spread = float(rest.std(ddof=1)) * math.sqrt(1 + 1 / len(rest))
        t = abs(first - float(rest.mean())) / spread if spread else math.inf
        p = float(2 * stdtr(len(rest) - 1, -t))
        sure, why = (
            p < SURE_P and abs(apart) > LEAST,
            f"p = {p:.1g} by the spread of the rest, of {SURE_P:.0e} at the least",
        )
    else:
        span = float(np.ptp(rest))
        sure = abs(apart) > FEW_APART and abs(first - middle) > FEW_TIMES * span
        why = (
            f"{abs(first - middle) / span:.3g} times the range of the rest, of {FEW_TIMES} at the most"
            if span
            else "no range"
        )
    if not sure:
        return
    shown = f"{number(series.values[0])} first, then {number(median(series.values[1:]))} in the middle of {len(rest)}"
    lines = (f"{shown}: {apart:+.1%}", why)
    text = f"the first repetition of {series.words} is {apart:+.0%} off the rest: it was not warm at the measured shape"
    yield Notice(outcome="warn", text=text, subject=series.about[0], about=series.about, arithmetic=lines)
