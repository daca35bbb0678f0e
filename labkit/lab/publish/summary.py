"""What a run says of itself in a line: its verdict and result, its rule and belief, how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.lab.publish.numbers import cell_text, number
from labkit.lab.publish.read import RunView
from labkit.lab.record import canonical_cell

SIGNS = {"confirmed": "✓", "refuted": "✗", "inconclusive": "?", "invalid": "–"}
ENDINGS = {
    "running": ("Not finished.", "No end was recorded: the run is still going, or was cut off without a word."),
    "failed": ("A cell of this run failed.", ""),
    "crashed": ("The kernel of this run died.", ""),
    "killed": ("This run was killed.", ""),
    "timed-out": ("This run ran out of time.", ""),
    "stopped-early": ("This run was stopped early.", ""),
}
COMPARISONS = {">=": "at least", "<=": "at most", "same": "the same within the margin", "different": "different"}


@dataclass(frozen=True)
class Badge:
    """A verdict (or a run's state) as a mark: its word, its sign and what stands beside it; `kind` is its style."""

    word: str
    sign: str
    kind: str
    detail: str = ""


def badge(run: RunView) -> Badge:
    """What a run came to: its verdict, else how it ended."""
    outcome = str(run.verdict.get("outcome") or "")
    if outcome:
        strength = str(run.verdict.get("strength") or "")
        words = [strength] + (["exploratory"] if run.record.exploratory else [])
        words += ["planned after its data"] if run.record.retrospective else []
        detail = " · ".join(word for word in words if word)
        return Badge(outcome, SIGNS.get(outcome, "·"), outcome if outcome in SIGNS else "", detail)
    if not run.finished:
        return Badge(run.record.state.replace("-", " "), "!", "broken")
    return Badge("no verdict", "·", "", "exploratory: no plan was declared" if not run.plan else "")


def result_text(run: RunView) -> str:
    """The number of a verdict with its interval: `5.830× [5.701, 5.962], 10 pairs`."""
    verdict = run.verdict
    value = first_number(verdict, "estimate", "effect", "ratio", "value")
    if value is None:
        return ""
    sign = "×" if isinstance(rule_of(run).get("against"), Mapping) else ""
    low, high = first_number(verdict, "low", "lower"), first_number(verdict, "high", "upper")
    interval = f" [{number(low)}, {number(high)}]" if low is not None and high is not None else ""
    return f"{number(value)}{sign}{interval}"


def first_number(mapping: Mapping[str, Any], *names: str) -> float | None:
    """The first of `names` that is a number in `mapping` or in its `interval`."""
    inner = mapping.get("interval")
    for source in (mapping, inner if isinstance(inner, Mapping) else {}):
        for name in names:
            value = source.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
    return None


def rule_of(run: RunView) -> Mapping[str, Any]:
    rule = run.plan.get("rule")
    return rule if isinstance(rule, Mapping) else {}


def rule_text(rule: Mapping[str, Any]) -> str:
    """A decision rule in words: `decode_tok_s at width 8 over width 1 is at least 4 (margin 0.02)`."""
    cell, against = rule.get("cell"), rule.get("against")
    words = f"{rule.get('metric')}"
    if isinstance(cell, Mapping):
        words += f" at {cell_text(canonical_cell(cell))}"
    if isinstance(against, Mapping):
        words += f" over {cell_text(canonical_cell(against))}"
    comparison = str(rule.get("comparison"))
    words += f" is {COMPARISONS.get(comparison, comparison)}"
    if comparison in (">=", "<=") and rule.get("threshold") is not None:
        words += f" {rule['threshold']}"
    return words + (f" (margin {rule['margin']})" if rule.get("margin") is not None else "")


def ending(run: RunView) -> dict[str, str] | None:
    """The banner of a run that did not come to its end; None for one that did."""
    if run.finished:
        return None
    title, text = ENDINGS.get(run.record.state, (f"This run ended as {run.record.state}.", ""))
    done, total = run.progress.get("done"), run.progress.get("total")
    words = [run.record.reason or text, f"It had done {done} of {total}." if done is not None and total else ""]
    words.append(
        "What follows is what had been stored by then." if run.rows or run.notebook else "Nothing was measured."
    )
    sentences = (word if word[-1:] in ".!?" else f"{word}." for word in words if word)
    return {"title": title, "text": " ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)}


def plan_facts(run: RunView) -> list[tuple[str, str]]:
    """What was believed and decided beforehand, line by line."""
    plan = run.plan
    facts = [
        ("Belief", plan.get("belief")),
        ("Because", plan.get("believed_because")),
        ("Rule", rule_text(rule_of(run)) if rule_of(run) else None),
        ("Refuted if", plan.get("refuted_if")),
        ("Kind", plan.get("kind")),
        ("Plan", planned(run)),
    ]
    return [(name, str(text)) for name, text in facts if text]


def planned(run: RunView) -> str | None:
    """Whether the plan came before the data, with the start of its hash."""
    if not run.record.plan_hash:
        return None
    when = "after its data (retrospective)" if run.record.retrospective else "before the first measurement"
    return f"stored {when}, hash {run.record.plan_hash[:12]}"


def when_text(utc: str) -> str:
    """`2026-12-01T00:16:26Z` as `2026-12-01 00:16 UTC`; what is not a time stays as it is."""
    return f"{utc[:10]} {utc[11:16]} UTC" if len(utc) == 20 and utc.endswith("Z") else utc
