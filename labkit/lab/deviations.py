"""Deviations: what an edit of a stored plan changed, for the record and for a reader; the first plan stays the judge."""

from typing import Any

from labkit.lab.plan import Plan, canonical_json
from labkit.lab.record import Change, Deviation, utc_now

NESTED = ("", "rule", "negative_control", "anchor")  # what is compared field by field


def deviation(stored: Plan, edited: Plan, samples: int) -> Deviation | None:
    """What `edited` changes of the plan as first stored, after `samples` of the run; None where they say the same."""
    found = differences("", stored.model_dump(mode="json"), edited.model_dump(mode="json"))
    if not found:
        return None
    return Deviation(utc=utc_now(), samples=samples, plan_hash=edited.hash, changes=tuple(found))


def differences(path: str, old: Any, new: Any) -> list[Change]:
    """What differs between two values of a plan, field by field where both are rules or anchors."""
    if old == new:
        return []
    if path in NESTED and isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            change
            for name in names
            for change in differences(f"{path}.{name}".lstrip("."), old.get(name), new.get(name))
        ]
    return [Change(field=path, before=canonical_json(old), after=canonical_json(new))]


def deviation_words(found: Deviation) -> str:
    """One line: `the plan was edited after 6 samples (2026-12-01T00:17:00Z): rule.threshold from 4.0 to 3.5; it is judged
    as first stored`."""
    changed = ", ".join(f"{change.field} from {change.before} to {change.after}" for change in found.changes)
    number = f"{found.samples} sample{'' if found.samples == 1 else 's'}"
    return f"the plan was edited after {number} ({found.utc}): {changed}; it is judged as first stored"
