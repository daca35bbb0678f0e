"""A request with its times, as it comes from an answer or from a row of requests.jsonl, and back."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, TypeGuard

from labkit.errors import ParameterError
from labkit.measure.workloads.hashes import block_hashes, prompt_sha256, text_sha256
from labkit.runtimes.runtime import MOST_TOKENS, Answer

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
DIGITS = 7  # of a gap: a tenth of a microsecond
ABOUT = ("content", "nominal_prompt_tokens", "context_tokens", "sized", "images", "image_pixels", "cache")


@dataclass(frozen=True)
class Timed:
    """One request: times in seconds of one clock, None where they are not told.

    `events` are (moment, tokens) of what came: tokens of one event share its moment. `tokens` is what it emitted: as the
    server counts, else as they were seen to come. `error` is why it failed, None for one that came whole."""

    submit_s: float | None = None
    due_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    events: tuple[tuple[float, int], ...] = ()
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    error: str | None = None

    @classmethod
    def of(cls, answer: Answer) -> "Timed":
        """The request of an answer."""
        events = tuple((at, len(list(group))) for at, group in itertools.groupby(answer.times))
        return cls(
            submit_s=answer.submit_s,
            due_s=answer.due_s,
            first_s=answer.first_s,
            last_s=answer.last_s,
            events=events,
            tokens=len(answer.times) if answer.completion_tokens is None else answer.completion_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            drafted=answer.drafted,
            accepted=answer.accepted,
            error=answer.error,
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Timed":
        """The request of a row of requests.jsonl, whoever wrote it. ParameterError for gaps that are no durations, or token
        counts that do not fit them."""
        submit, first, last = (number_of(row, name) for name in ("submit_s", "first_token_s", "last_token_s"))
        tokens = whole_of(row, "completion_tokens")
        gaps, counts = gaps_of(row)
        events: tuple[tuple[float, int], ...] = ()
        if first is not None and gaps:
            events = tuple(zip(itertools.accumulate(gaps, initial=first), counts, strict=True))
        elif first is not None:
            events = ((first, 1),) if last is None or last <= first else ((first, 1), (last, max(1, (tokens or 2) - 1)))
        return cls(
            submit_s=submit,
            due_s=number_of(row, "due_s"),
            first_s=first,
            last_s=last,
            events=events,
            tokens=sum(count for _, count in events) if tokens is None else tokens,
            prompt_tokens=whole_of(row, "prompt_tokens"),
            cached_tokens=whole_of(row, "cached_tokens"),
            drafted=whole_of(row, "drafted"),
            accepted=whole_of(row, "accepted"),
            error=str(row["error"]) if row.get("error") else None,
        )

    @property
    def good(self) -> bool:
        """Whether it came whole: no error, and the times of its submit and of its tokens."""
        return self.error is None and None not in (self.submit_s, self.first_s, self.last_s)

    @property
    def times(self) -> tuple[float, ...]:
        """When each token came."""
        return tuple(at for at, count in self.events for _ in range(count))

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its submit to its first token."""
        return None if self.first_s is None or self.submit_s is None else self.first_s - self.submit_s

    @property
    def e2e_s(self) -> float | None:
        """Seconds from its submit to its last token."""
        return None if self.last_s is None or self.submit_s is None else self.last_s - self.submit_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first. A server may count an end token that nobody saw: where its count is one off
        what was seen to come, what was seen counts."""
        seen = sum(count for _, count in self.events)
        return tpot(seen if abs(seen - self.tokens) <= 1 else self.tokens, self.ttft_s, self.e2e_s)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds between one event and the next: a multi-token event is one gap."""
        return tuple(then - now for (now, _), (then, _) in itertools.pairwise(self.events))


def answer_row(answer: Answer, since: Callable[[float], float] = float) -> dict[str, Any]:
    """What a run record keeps of an answer, for `run.request(block=..., cell=..., **answer_row(answer, run.elapsed))`.

    Times through `since`. The names are those of the engine's own rows (`Completion.row`): prompt hash, token counts,
    submit, first and last token. `gaps_s` are seconds between events, and `event_tokens` how many tokens each brought
    where some brought several, so that every token's time can be had again. What is not told is left out."""
    ask, about = answer.ask, answer.ask.about
    timed = Timed.of(answer)
    ids = None if isinstance(ask.prompt, str) else ask.prompt
    counts = [count for _, count in timed.events]
    row: dict[str, Any] = {
        "prompt_sha256": about.get("prompt_sha256")
        or (text_sha256(str(ask.prompt)) if ids is None else prompt_sha256(ids)),
        "block_hashes": about.get("block_hashes") or (None if ids is None else block_hashes(ids)),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_tokens": timed.tokens if answer.times or answer.completion_tokens is not None else None,
        "asked_tokens": ask.tokens,
        "due_s": at_time(answer.due_s, since),
        "submit_s": since(answer.submit_s),
        "first_token_s": at_time(answer.first_s, since),
        "last_token_s": at_time(answer.last_s, since),
        "end_s": at_time(answer.end_s, since),
        "gaps_s": [round(gap, DIGITS) for gap in timed.gaps_s] or None,
        "event_tokens": counts if any(count > 1 for count in counts) else None,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "server": dict(answer.timings) or None,
        "finish": answer.finish,
        "failed": answer.failed,
        "error": answer.error,
        "notes": list(answer.notes) or None,
        "text": answer.text or None,
        "reasoning": answer.reasoning or None,
        **{name: about[name] for name in ABOUT if name in about},
    }
    return {name: value for name, value in row.items() if value is not None}


def at_time(moment: float | None, since: Callable[[float], float]) -> float | None:
    """A moment through `since`."""
    return None if moment is None else since(moment)


def number_of(row: Mapping[str, Any], name: str) -> float | None:
    """A column as a finite number, None where it is not told."""
    value = row.get(name)
    return float(value) if finite(value) else None


def finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def gaps_of(row: Mapping[str, Any]) -> tuple[list[float], list[int]]:
    """A row's seconds between events and the tokens each event brought; none of either where it does not tell."""
    gaps = row.get("gaps_s") or []
    if not isinstance(gaps, list) or not all(finite(gap) and gap >= 0 for gap in gaps):
        raise ParameterError(f"gaps_s of a request are seconds, 0 or more, not {str(gaps)[:60]}")
    counts = row.get("event_tokens") or [1] * (len(gaps) + 1)
    whole = isinstance(counts, list) and all(type(count) is int and 1 <= count <= MOST_TOKENS for count in counts)
    if not whole or (gaps and len(counts) != len(gaps) + 1):
        raise ParameterError(
            f"event_tokens of a request are whole numbers, one more than its {len(gaps)} gaps, not {str(counts)[:60]}"
        )
    return [float(gap) for gap in gaps], counts


def whole_of(row: Mapping[str, Any], name: str) -> int | None:
    """A column as a whole number, None where it is not told."""
    value = number_of(row, name)
    return None if value is None else int(value)


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
    """A request of which durations are known, as requests.jsonl has it; what is None is left out. `submit_s` counts from
    the run's start."""
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
    """Metrics of rows that may tell durations alone, of those that succeeded: medians of latencies over requests (of
    gaps, over all gaps), means of lengths; what no request tells is left out."""
    good = [row for row in requests if "error" not in row]
    found = {name: median(values) for name in LATENCIES if (values := [r[name] for r in good if name in r])}
    gaps = [gap for row in good for gap in row.get("gaps_s", ())]
    if gaps:
        found["itl_s"] = median(gaps)
    for name in ("prompt_tokens", "completion_tokens"):
        if counts := [row[name] for row in good if name in row]:
            found[name] = fmean(counts)
    return found
