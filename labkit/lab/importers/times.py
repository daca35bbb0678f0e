"""Times as other tools write them, as moments in UTC."""

from datetime import UTC, datetime

from labkit.lab.importers.document import Node

MOST_EPOCH = 4102444800.0  # the year 2100


def iso_time(node: Node) -> datetime | None:
    """`2026-12-01T10:00:00Z` as a moment; one without a zone is taken as UTC. None where it is missing."""
    text = node.text()
    found = None if text is None else moment(text)
    if text is not None and found is None:
        raise node.fault(f"is {text[:40]!r}, where a time such as 2026-12-01T10:00:00Z is expected")
    return found


def moment(text: str) -> datetime | None:
    """A time in ISO 8601 from 1970 to 2100 as a moment; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        return found if 0 <= found.timestamp() <= MOST_EPOCH else None
    except (ValueError, OverflowError):
        return None


def epoch_time(node: Node, scale: float = 1.0) -> datetime | None:
    """Seconds since 1970 (or that many of them, by `scale`) as a moment; None where it is missing."""
    seconds = node.number(0.0, MOST_EPOCH * scale)
    return None if seconds is None else datetime.fromtimestamp(seconds / scale, UTC)
