"""What benchmarks of servers have in common: the knobs of a cell of requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def same_length(requests: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """The length that all successful requests have alike; None where they differ or do not tell."""
    lengths = {row.get(name) for row in requests if "error" not in row}
    found = lengths.pop() if len(lengths) == 1 else None
    return int(found) if found else None


def serving_knobs(
    requests: Sequence[Mapping[str, Any]], streams: int | None, runtime: str | None = None, **settings: Any
) -> dict[str, Any]:
    """A cell of requests to a server: prompts and outputs mixed, or prompts alone where each asks for one token.
    Lengths are knobs where all requests have them alike."""
    lengths = {"prompt": same_length(requests, "prompt_tokens"), "generate": same_length(requests, "completion_tokens")}
    phase = "prefill" if lengths["generate"] == 1 else "mixed"
    found = {"runtime": runtime, "phase": phase, "streams": streams, **lengths, **settings}
    return {name: value for name, value in found.items() if value is not None}
