"""Times as other tools write them, as moments in UTC."""

from datetime import UTC, datetime

from labkit.lab.importers.document import Node

MOST_EPOCH = 4102444800.0  # the year 2100


def iso_time(node: Node) -> datetime | None:
    """`2026-12-01T10:00:00Z` as a moment; one without a zone is taken as UTC. None where it is missing."""
    text = node.text()
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise node.fault(f"is {text[:40]!r}, where a time such as 2026-12-01T10:00:00Z is expected") from None


def epoch_time(node: Node, scale: float = 1.0) -> datetime | None:
    """Seconds since 1970 (or that many of them, by `scale`) as a moment; None where it is missing."""
    seconds = node.number(0.0, MOST_EPOCH * scale)
    return None if seconds is None else datetime.fromtimestamp(seconds / scale, UTC)
