"""Which runs went on at the same time on one machine, by what their records say."""

from collections.abc import Sequence
from datetime import datetime

from labkit.lab.record import RunRecord


def beside(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The runs that each run overlapped with in one boot of one machine, by id; runs that had a machine to themselves,
    and those whose machine or end is not told, are left out. Ends in the same second as another starts do not overlap."""
    found: dict[str, list[str]] = {}
    timed = [(one, span) for one in records if one.host.boot_id and (span := span_of(one))]
    for one, (began, ended) in timed:
        for other, (their_start, their_end) in timed:
            if (
                one.id != other.id
                and one.host.boot_id == other.host.boot_id
                and began < their_end
                and their_start < ended
            ):
                found.setdefault(one.id, []).append(other.id)
    return found


def span_of(record: RunRecord) -> tuple[datetime, datetime] | None:
    """When a run began and ended, None where it does not tell."""
    try:
        return datetime.fromisoformat(record.started), datetime.fromisoformat(record.ended or "")
    except ValueError:
        return None
