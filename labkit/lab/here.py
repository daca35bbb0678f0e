"""A run of another card repeated on this one: the parameters that named the card left out, the two verdicts compared."""

from collections.abc import Mapping
from typing import Any

from labkit.lab.coverage import list_words
from labkit.lab.lab import StoredRun
from labkit.lab.plan import Plan, read_plan
from labkit.lab.record import RunRecord
from labkit.lab.scope import device_words
from labkit.lab.verdict import Verdict, judge_folder

CARD = ("device",)  # parameters that pick a card by name or number: they mean the machine they were given on


def for_this_card(overrides: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is repeated with on this machine: all it had but its choice of a card, and what is given now."""
    return {name: value for name, value in overrides.items() if name not in CARD} | dict(given)


def compare_here(then: StoredRun, now: StoredRun) -> tuple[str, ...]:
    """What a repeat on this card says of the original, a line each: the cards, both verdicts, whether they agree.

    Each run is judged by its own samples, whatever its record says."""
    there, here = device_words(then.record), device_words(now.record)
    same_card = uuid(then.record) is not None and uuid(then.record) == uuid(now.record)
    cards = f"the same card, {here}" if same_card else f"there {there}, here {here}"
    lines = [f"cards: {cards}"]
    old, new = plan_of(then), plan_of(now)
    if old is None or new is None:
        return (*lines, "no plan: without one a run answers no question, so only speeds can be compared")
    first, second = judge_folder(then.folder), judge_folder(now.folder)
    lines.append(f"verdict: there {verdict_words(first)}, here {verdict_words(second)}")
    if old.rule.essence() != new.rule.essence():
        return (*lines, "the rule was changed since, so the verdicts do not answer the same question")
    return (*lines, agreement(first, second, same_card))


def agreement(then: Verdict, now: Verdict, same_card: bool) -> str:
    """Whether the two verdicts agree, and what may be said of the sizes of their effects."""
    where = "this card again" if same_card else "this card"
    undecided = [name for name, one in (("there", then), ("here", now)) if not one.decided]
    if undecided:
        return f"not settled {list_words(undecided)}: neither agreement nor difference can be claimed"
    if then.outcome != now.outcome:
        return f"differs: {then.outcome} there, {now.outcome} on {where}; both are true of their own card"
    if then.low is None or then.high is None or now.low is None or now.high is None:
        return f"agrees: {now.outcome} on {where} too"
    apart = then.high < now.low or now.high < then.low
    size = "the sizes of the effect differ: their intervals do not touch" if apart else "the effects' intervals overlap"
    return f"agrees: {now.outcome} on {where} too; {size}"


def verdict_words(verdict: Verdict) -> str:
    """`confirmed 5.83× [5.70, 5.96] (session result)`."""
    return f"{verdict.outcome} {verdict.number()}".strip() + f" ({verdict.strength})"


def plan_of(run: StoredRun) -> Plan | None:
    """The run's plan, None where it has none."""
    path = run.folder / "plan.json"
    return read_plan(path) if path.exists() else None


def uuid(record: RunRecord) -> str | None:
    """The device's UUID, None where the record does not have it."""
    return (record.device or {}).get("uuid")
