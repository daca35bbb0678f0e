"""What benchmarks of servers have in common: requests of a client as rows, and their metrics by their own names here."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


def request_row(
    number: int,
    *,
    prompt: int | None = None,
    completion: int | None = None,
    submit_s: float | None = None,
    ttft_s: float | None = None,
    e2e_s: float | None = None,
    gaps_s: Sequence[float] = (),
    cached: int | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """A request as requests.jsonl has it; what is None is left out. `submit_s` counts from the run's start."""
    first = submit_s + ttft_s if submit_s is not None and ttft_s is not None else None
    last = submit_s + e2e_s if submit_s is not None and e2e_s is not None else None
    row = {
        "request": number, "prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached,
        "submit_s": submit_s, "first_token_s": first, "last_token_s": last, "ttft_s": ttft_s, "e2e_s": e2e_s,
        "tpot_s": tpot(completion, ttft_s, e2e_s), "gaps_s": list(gaps_s) or None, "error": error,
        "finish": "error" if error else None,
    }  # fmt: skip
    return {name: value for name, value in row.items() if value is not None}


def tpot(completion: int | None, ttft_s: float | None, e2e_s: float | None) -> float | None:
    """Seconds an output token took after the first; None of fewer than two."""
    if completion is None or completion < 2 or ttft_s is None or e2e_s is None or e2e_s <= ttft_s:
        return None
    return (e2e_s - ttft_s) / (completion - 1)


def request_metrics(requests: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of the requests that succeeded: medians of latencies over requests (of gaps, over all gaps), means of
    lengths; what no request tells is left out."""
    good = [row for row in requests if "error" not in row]
    found = {name: median(values) for name in LATENCIES if (values := [r[name] for r in good if name in r])}
    gaps = [gap for row in good for gap in row.get("gaps_s", ())]
    if gaps:
        found["itl_s"] = median(gaps)
    for name in ("prompt_tokens", "completion_tokens"):
        if counts := [row[name] for row in good if name in row]:
            found[name] = fmean(counts)
    return found


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
