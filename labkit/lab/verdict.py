"""The verdict on a run: the plan's rule applied to its paired repetitions, and the pooling of runs of one scope."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from labkit.errors import LedgerError
from labkit.lab.effects import NoData, Sample, by_block, effects, settled_rows
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Plan, Rule, read_plan, stored_hash
from labkit.lab.record import canonical_cell
from labkit.lab.starts import Start, read_starts, start_fault, started_rows
from labkit.measure import statistics
from labkit.measure.metrics import metric

Outcome = Literal["confirmed", "refuted", "inconclusive", "invalid"]
Strength = Literal["look", "session result", "finding"]
PAIRS_FOR_A_RESULT = 10
SESSIONS_FOR_A_FINDING = 3


class Gate(Protocol):
    """A correctness check of a run."""

    @property
    def name(self) -> str: ...
    @property
    def passed(self) -> bool: ...


class Verdict(BaseModel):
    """What a rule says of the samples. `effect` with `low` and `high` is the ratio, or the metric, with its interval.

    `values` are the ratio (or sample) of each of `blocks`; `pairs` counts them. `runs` is how many sessions are in it.
    `logarithmic` tells that the interval was made on logarithms, so `effect` is a geometric mean. `word` is what a
    ratio's interval says whatever the rule asked: faster, slower, same (within 2 %, or the band the rule declares) or
    undecided. `warmup` are the blocks left out as warm-up, where the plan says so. `notices` warn of a trend through the
    session, outliers, or two groups: shown, never used to drop a sample. An *invalid* verdict has no effect worth
    reading, and no word."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Outcome
    strength: Strength
    reason: str
    rule: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = statistics.LEVEL
    method: statistics.Method = "none"
    logarithmic: bool = True
    ratio: bool = True
    unit: str = ""
    pairs: int = 0
    runs: int = 1
    close: bool = False
    retrospective: bool = False
    word: statistics.Word | Literal[""] = ""
    warmup: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether it is confirmed or refuted."""
        return self.outcome in ("confirmed", "refuted")

    @property
    def sentence(self) -> str:
        """One sentence that stands alone."""
        return f"{self.outcome.capitalize()} ({self.strength}): {self.reason}."

    def number(self) -> str:
        """The effect with its interval: `5.83× [5.70, 5.96]`, or `41.2 tok/s [40.9, 41.5]`."""
        return effect_words(self.effect, self.low, self.high, self.ratio, self.unit)

    def facts(self) -> dict[str, str]:
        """What a reader wants to know of it, in words."""
        facts = {
            "verdict": self.outcome,
            "strength": self.strength,
            "effect": self.number(),
            "in a word": self.word,
            "rule": self.rule,
            "pairs" if self.ratio else "repetitions": f"{self.pairs} in {count(self.runs, 'session')}",
            "because": self.reason,
            "left out": f"{count(len(self.warmup), 'block')} of warm-up, kept in the record" if self.warmup else "",
            "planned": "no: the rule is younger than the data (retrospective)" if self.retrospective else "",
            "notices": "; ".join(self.notices),
        }
        return {name: text for name, text in facts.items() if text}

    def __repr__(self) -> str:
        return f"<Verdict {self.outcome}, {self.strength}: {self.reason}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from labkit.show.pieces import facts_table, mark

        return facts_table(self.facts() | {"verdict": mark(self.outcome)})


def judge(
    plan: Plan, measurements: Iterable[Measurement], checks: Iterable[Gate] | None = None, *,
    starts: Mapping[int, Start] | None = None, retrospective: bool = False,
) -> Verdict:  # fmt: skip
    """Applies the plan's rule to the samples of one run.

    `measurements` are rows with block, cell (canonical JSON), metric and value. `checks` are the run's correctness
    gates; None leaves them out of it, while an empty list makes a timed metric invalid: a speed is worth nothing
    unless something was checked. `starts` tells by the order of each sample which start it came from: over restarts the
    samples of one start are one value, and without that witness there is no verdict. `retrospective` marks data older
    than the rule. Never raises for poor data: no samples, no complete block, a failed check, a negative control that
    moved, or restarts that did not take place is the outcome *invalid*, which is neither confirmed nor refuted."""
    rule, rows, starts = plan.rule, list(measurements), starts or {}
    common: dict[str, Any] = {
        "rule": rule.words(), "ratio": rule.ratio, "unit": "" if rule.ratio else metric(rule.metric).unit,
        "retrospective": retrospective,
    }  # fmt: skip
    try:
        kept = started_rows(plan, rows, starts) if plan.design == "restarts" else rows
        warm, warmup = settled_rows(plan, kept)
        blocks, values = effects(rule, warm)
    except NoData as gap:
        return Verdict(outcome="invalid", strength="look", reason=str(gap), **common)
    common |= {"blocks": blocks, "values": values, "warmup": warmup}
    fault = gate_fault(rule, checks) or start_fault(plan, rows, starts) or control_fault(plan, rows, starts)
    verdict = invalid(fault, values, common) if fault else settle_values(rule, values, common)
    return verdict.model_copy(update={"notices": (*verdict.notices, *anchor_notices(plan, rows))})


def gate_fault(rule: Rule, checks: Iterable[Gate] | None) -> str:
    """Why the correctness gates forbid a verdict, or nothing."""
    if checks is None:
        return ""
    gates = list(checks)
    if failed := [gate.name for gate in gates if not gate.passed]:
        return f"failed check: {', '.join(failed)}"
    if not gates and metric(rule.metric).timed:
        return f"no correctness check was recorded, and {rule.metric} says nothing about work that may be wrong"
    return ""


def control_fault(plan: Plan, rows: Sequence[Measurement], starts: Mapping[int, Start]) -> str:
    """Why the negative control forbids a verdict, or nothing."""
    if plan.negative_control is None:
        return ""
    alone = plan.model_copy(update={"rule": plan.negative_control, "negative_control": None})
    control = judge(alone, rows, starts=starts)
    if control.outcome in ("refuted", "invalid"):
        return f"the negative control is not the same: {control.reason}"
    return ""


def invalid(fault: str, values: Sequence[float], common: Mapping[str, Any]) -> Verdict:
    """The verdict of a run whose numbers may not be used; they are kept in it."""
    return Verdict(outcome="invalid", strength=strength_of(len(values)), reason=fault, pairs=len(values), **common)


def settle_values(rule: Rule, values: Sequence[float], common: Mapping[str, Any]) -> Verdict:
    """The verdict of one session's effects by block."""
    logarithmic = rule.ratio or statistics.positive(values)
    scaled = np.log(values) if logarithmic else np.asarray(values)
    found = statistics.interval(scaled)
    found = found.exp() if logarithmic else found
    outcome, reason, close = decide(rule, found)
    return Verdict(
        outcome=outcome, strength=strength_of(found.n), reason=reason, effect=found.estimate, low=found.low,
        high=found.high, method=found.method, logarithmic=logarithmic, pairs=found.n, close=close,
        word=word_of(rule, found), notices=warnings_of(scaled, logarithmic), **common,
    )  # fmt: skip


def strength_of(pairs: int, sessions: int = 1) -> Strength:
    """A look under ten pairs, a result of the session from ten, a finding from three sessions."""
    if sessions >= SESSIONS_FOR_A_FINDING:
        return "finding"
    return "session result" if pairs >= PAIRS_FOR_A_RESULT else "look"


def decide(rule: Rule, found: statistics.Interval) -> tuple[Outcome, str, bool]:
    """(outcome, reason, whether it was close) of an interval under a rule; see `Rule` for what each means."""
    subject = effect_words(found.estimate, found.low, found.high, rule.ratio, metric(rule.metric).unit)
    if found.low is None or found.high is None:
        return "inconclusive", f"{subject} is one {'pair' if rule.ratio else 'sample'}, which has no interval", False
    low, high, limit, (bottom, top) = found.low, found.high, rule.limit, rule.band
    text = f"{limit:.6g}"
    if rule.comparison in (">=", "<="):
        reached = low >= limit if rule.comparison == ">=" else high <= limit
        missed = high < limit if rule.comparison == ">=" else low > limit
        asked = "at least" if rule.comparison == ">=" else "at most"
        close = low <= top and high >= bottom and rule.margin > 0
        nearly = ", by less than the margin" if close else ""
        if reached:
            return "confirmed", f"{subject} is {asked} {text}{nearly}", close
        if missed:
            return "refuted", f"{subject} is not {asked} {text}{nearly}", close
        return "inconclusive", f"{subject} straddles {text}", False
    inside, outside = low >= bottom and high <= top, high < bottom or low > top
    band = f"{bottom:.6g} to {top:.6g}" if rule.margin else text
    if inside or outside:
        outcome: Outcome = "confirmed" if inside == (rule.comparison == "same") else "refuted"
        return outcome, f"{subject} lies {'within' if inside else 'outside'} {band}", False
    return "inconclusive", f"{subject} is partly within {band} and partly outside", False


def anchor_notices(plan: Plan, rows: Sequence[Sample]) -> tuple[str, ...]:
    """What a reader must know of the plan's anchor: that it is missing, or moved by itself."""
    if plan.anchor is None:
        return ()
    values = by_block(rows, plan.anchor.metric, canonical_cell(plan.anchor.cell))
    series = [values[block] for block in sorted(values)]
    if not series:
        return (
            "its anchor was not measured, so it cannot be compared across an upgrade: "
            "labkit.lab.anchor.measure_anchor(run, device, block) once a block",
        )
    if statistics.positive(series) and statistics.trend_alarm(np.log(series)) is not None:
        return ("its anchor moved through the session: something else on the machine changed",)
    return ()


def word_of(rule: Rule, found: statistics.Interval) -> statistics.Word | Literal[""]:
    """The word for a ratio's interval; nothing where the rule is of a metric itself."""
    if not rule.ratio:
        return ""
    declared = rule.comparison in ("same", "different") and rule.limit == 1 and rule.margin > 0
    margin = rule.margin if declared else statistics.MARGIN
    return statistics.comparison_word(found.low, found.high, metric(rule.metric).better, margin)


def warnings_of(values: Any, logarithmic: bool = True) -> tuple[str, ...]:
    """What looks odd in a session's effects, in their order: trend, outliers, two groups."""
    found = []
    line = statistics.trend_alarm(values, logarithmic)
    if line is not None:
        found.append(f"the effect moves through the session (p = {line.p:.1g}): the blocks did not cancel the drift")
    if outliers := statistics.count_outliers(values):
        found.append(f"{count(outliers, 'outlier')} (modified z over 3.5), kept")
    if statistics.two_groups(values):
        found.append("the repetitions fall into two groups")
    return tuple(found)


def pool(plan: Plan, sessions: Sequence[Sequence[float]], *, retrospective: bool = False) -> Verdict:
    """One verdict over all valid sessions of one scope, each given as its effects by block, oldest first.

    Sessions of ten pairs and more count where there is one, and looks are then left out: few pairs would only widen
    the interval. Looks alone are taken together, as one larger look. Two sessions give the interval that spans both of
    theirs, so they confirm only what both confirm. From three on it is the t interval of the session means, which
    holds the spread between sessions, and the verdict is a finding. LedgerError for no session."""
    rule = plan.rule
    results = [session for session in sessions if len(session) >= PAIRS_FOR_A_RESULT]
    common: dict[str, Any] = {
        "rule": rule.words(), "ratio": rule.ratio, "unit": "" if rule.ratio else metric(rule.metric).unit,
        "retrospective": retrospective,
    }  # fmt: skip
    if not sessions:
        raise LedgerError(f"{plan.experiment} has no valid session to pool")
    if not results:
        together = tuple(value for session in sessions for value in session)
        look = settle_values(rule, together, common)
        return look.model_copy(update={"strength": "look", "runs": len(sessions)})
    if len(results) == 1:
        return settle_values(rule, results[0], common)
    logarithmic = rule.ratio or all(statistics.positive(session) for session in results)
    scaled = [np.log(session) if logarithmic else np.asarray(session) for session in results]
    if len(results) < SESSIONS_FOR_A_FINDING:
        each = [statistics.interval(session) for session in scaled]
        low, high = min(i.low for i in each if i.low is not None), max(i.high for i in each if i.high is not None)
        middle = float(np.mean([i.estimate for i in each]))
        found = statistics.Interval(middle, low, high, len(each), "hull")
    else:
        found = statistics.session_interval([float(session.mean()) for session in scaled])
    found = found.exp() if logarithmic else found
    outcome, reason, close = decide(rule, found)
    pairs = sum(len(session) for session in results)
    return Verdict(
        outcome=outcome, strength=strength_of(pairs, len(results)), reason=reason, effect=found.estimate,
        low=found.low, high=found.high, method=found.method, logarithmic=logarithmic, pairs=pairs,
        runs=len(results), close=close, word=word_of(rule, found), **common,
    )  # fmt: skip


def judge_folder(folder: Path) -> Verdict:
    """The verdict on the run in `folder`, by its own plan.json, measurements.csv and run.json.

    Its notices tell of every deviation from the plan. Invalid when plan.json is not the plan whose hash the record
    holds, or when the audit fails it. ParameterError without a readable plan."""
    from labkit.lab.deviations import deviation_words
    from labkit.lab.measurements import read_rows
    from labkit.lab.record import read_record

    plan, record = read_plan(folder / "plan.json"), read_record(folder)
    rows, starts = read_rows(folder / "measurements.csv"), read_starts(folder)
    verdict = judge(plan, rows, record.checks, starts=starts, retrospective=record.retrospective)
    notices = (*verdict.notices, *map(deviation_words, record.deviations))
    verdict = verdict.model_copy(update={"notices": notices})
    if record.plan_hash != stored_hash(folder / "plan.json"):
        changed = "plan.json was changed after it was declared: its hash is not the record's"
        return verdict.model_copy(update={"outcome": "invalid", "reason": changed})
    from labkit.audit.stored import run_audit, withheld_reason

    if verdict.outcome != "invalid" and (withheld := withheld_reason(run_audit(folder, store=False))):
        return verdict.model_copy(update={"outcome": "invalid", "reason": withheld})
    return verdict


def effect_words(effect: float | None, low: float | None, high: float | None, ratio: bool, unit: str) -> str:
    """An effect with its interval, at the digits the interval supports: `5.83× [5.70, 5.96]`."""
    if effect is None:
        return ""
    sign = "×" if ratio else "" if unit == "1" else f" {unit}"
    if low is None or high is None:
        return f"{effect:.4g}{sign}"
    places = digits(effect, high - low)
    return f"{effect:.{places}f}{sign} [{low:.{places}f}, {high:.{places}f}]"


def digits(value: float, width: float) -> int:
    """Decimal places that show two digits of an interval's width, and at least three of the value; 12 at most."""
    shown = max(-math.floor(math.log10(width)) + 1 if width > 0 else 0, 0)
    least = max(2 - math.floor(math.log10(abs(value))), 0) if value else 0
    return min(max(shown, least), 12)


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 session`, `3 sessions`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
