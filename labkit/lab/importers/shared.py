"""What the rows of one file share, and what tells them apart."""

from collections.abc import Mapping, Sequence
from typing import Any


def split(settings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(what all rows share, what tells each apart)."""
    names = dict.fromkeys(name for one in settings for name in one)
    varied = [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]
    shared = {name: settings[0][name] for name in names if name not in varied and settings[0].get(name) is not None}
    return shared, [{name: one[name] for name in varied if one.get(name) is not None} for one in settings]


def common(values: Sequence[str | None]) -> str | None:
    """The value all have, None where they differ."""
    return values[0] if len(set(values)) == 1 else None
