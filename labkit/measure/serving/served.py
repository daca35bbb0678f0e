"""A cell of requests in numbers: its metrics by their registered ids, percentiles, residents, and as a table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from labkit.errors import ParameterError
from labkit.measure.bench.streams import Arrivals, Window, window_of
from labkit.measure.serving.percentiles import SHOWN, Percentile, least_count, percentile
from labkit.measure.serving.requests import Timed
from labkit.measure.serving.residents import Steps, in_flight, resident, waiting
from labkit.measure.serving.saturation import Saturation, saturation
from labkit.runtimes.runtime import Answer

LATENCIES: dict[str, Callable[[Timed], Sequence[float | None]]] = {
    "ttft_s": lambda one: (one.ttft_s,),
    "tpot_s": lambda one: (one.tpot_s,),
    "itl_s": lambda one: one.gaps_s,
    "e2e_s": lambda one: (one.e2e_s,),
}
TAILS = {"ttft_p95_s": ("ttft_s", 0.95), "itl_p99_s": ("itl_s", 0.99), "e2e_p95_s": ("e2e_s", 0.95)}


@dataclass(frozen=True)
class Limits:
    """What a request must meet, all at once, to count as good put; None is no limit. Seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ParameterError(f"the limit {name} is {value!r}: give seconds above 0")
        if not any(value is not None for value in vars(self).values()):
            raise ParameterError("goodput needs at least one limit: ttft_s, tpot_s or e2e_s")

    def met(self, one: Timed) -> bool:
        """Whether a request meets every limit. One of a single token has no time a token, and meets that limit."""
        return all(
            limit is None or (value := getattr(one, name)) is None or value <= limit
            for name, limit in vars(self).items()
        )

    @property
    def words(self) -> str:
        """`ttft ≤ 0.5 s, tpot ≤ 0.05 s`."""
        return ", ".join(f"{name.removesuffix('_s')} ≤ {value:g} s" for name, value in vars(self).items() if value)


@dataclass(frozen=True)
class Served:
    """Requests of one cell, one repetition. Made by `of` from answers or `of_rows` from a record; those that failed are
    counted, and are part of no rate and no latency."""

    requests: tuple[Timed, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise ParameterError("no request was sent: there is nothing to measure")

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> "Served":
        """Of answers. ParameterError for none."""
        return cls(tuple(Timed.of(answer) for answer in answers))

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "Served":
        """Of rows of requests.jsonl. ParameterError for none."""
        return cls(tuple(Timed.of_row(row) for row in rows))

    @cached_property
    def good(self) -> tuple[Timed, ...]:
        """The requests that came whole."""
        return tuple(one for one in self.requests if one.good)

    @property
    def failed(self) -> int:
        """How many did not."""
        return len(self.requests) - len(self.good)

    @property
    def failed_share(self) -> float:
        """Of all that were sent."""
        return self.failed / len(self.requests)

    @property
    def tokens(self) -> int:
        """Tokens that the good ones emitted."""
        return sum(one.tokens for one in self.good)

    @cached_property
    def span(self) -> tuple[float, float]:
        """From the first submit of all to the last token of the good ones. ParameterError where none is good."""
        if not self.good:
            raise ParameterError(f"all {len(self.requests)} requests failed: {self.requests[0].error}")
        starts = [one.submit_s for one in self.requests if one.submit_s is not None]
        return min(starts), max(one.last_s for one in self.good if one.last_s is not None)

    @cached_property
    def window(self) -> tuple[Window | None, str]:
        """The stretch in which every request decodes, or None and why there is none."""
        if self.failed:
            return None, f"{self.failed} of {len(self.requests)} requests failed"
        streams = [Arrivals(one.prompt_tokens or 0, one.submit_s or 0.0, one.times) for one in self.good]
        try:
            return window_of(streams), ""
        except ParameterError as error:
            return None, str(error)

    def values(self, latency: str) -> list[float]:
        """All values of `ttft_s`, `tpot_s`, `e2e_s` (one a request) or `itl_s` (one a gap between events, pooled)."""
        if latency not in LATENCIES:
            raise ParameterError(f"{latency!r} is no latency of a request; there are {', '.join(LATENCIES)}")
        return [value for one in self.good for value in LATENCIES[latency](one) if value is not None]

    def percentile(self, latency: str, p: float) -> Percentile:
        """A percentile of a latency, with its interval; without a value where the count cannot carry it."""
        return percentile(self.values(latency), p)

    @cached_property
    def resident(self) -> Steps:
        """How many decode at once."""
        return resident(self.good)

    @cached_property
    def in_flight(self) -> Steps:
        """How many were sent and have not ended."""
        return in_flight(self.good)

    @cached_property
    def waiting(self) -> Steps:
        """How many wait for their first token."""
        return waiting(self.good)

    @cached_property
    def saturation(self) -> Saturation:
        """Whether an open load was more than the server takes."""
        return saturation(self.good)

    @property
    def late_s(self) -> tuple[float, float] | None:
        """(median, most) seconds by which requests were sent after the load wanted them sent; None in a closed loop."""
        late = [one.submit_s - one.due_s for one in self.good if one.due_s is not None and one.submit_s is not None]
        return (median(late), max(late)) if late else None

    def metrics(self, limits: Limits | None = None) -> dict[str, float]:
        """Metrics by their registered ids, for `run.measure(cell, block, **served.metrics())`; only those there are.

        Latencies are medians (of `itl_s` over all gaps: a multi-token event is one). A tail (`ttft_p95_s`, `itl_p99_s`,
        `e2e_p95_s`) is there where the count carries it. `decode_tok_s` is there where all requests decode at once for
        two steps. Where all failed, that alone. Joules a token are of `token_energy`, over `span`."""
        found = {"failed_share": self.failed_share}
        if not self.good:
            return found
        begin, end = self.span
        found |= {name: median(values) for name in LATENCIES if (values := self.values(name))}
        found |= {
            name: tail.value for name, (of, p) in TAILS.items() if (tail := self.percentile(of, p)).value is not None
        }
        found |= self._rates(begin, end) | self._counts()
        if limits is not None:
            met = [one for one in self.good if limits.met(one)]
            found |= {
                "goodput_req_s": len(met) / (end - begin),
                "goodput_tok_s": sum(one.tokens for one in met) / (end - begin),
            }
        return found

    def _rates(self, begin: float, end: float) -> dict[str, float]:
        if end <= begin:
            return {}
        found = {
            "makespan_s": end - begin,
            "request_s": len(self.good) / (end - begin),
            "total_tok_s": self.tokens / (end - begin),
            "resident_most": float(self.resident.most),
            "resident_mean": self.resident.mean(begin, end),
            "in_flight_mean": self.in_flight.mean(begin, end),
        }
        waited = [one.tokens / one.e2e_s for one in self.good if one.e2e_s and one.tokens > 1]
        if waited:
            found |= {"stream_min_tok_s": min(waited), "stream_max_tok_s": max(waited)}
        if each := [1 / one.tpot_s for one in self.good if one.tpot_s]:
            found["stream_tok_s"] = fmean(each)
        window, _ = self.window
        return found if window is None else found | {"decode_tok_s": window.tok_s}

    def _counts(self) -> dict[str, float]:
        found: dict[str, float] = {"completion_tokens": fmean(one.tokens for one in self.good)}
        prompts = [one.prompt_tokens for one in self.good if one.prompt_tokens is not None]
        if prompts:
            found["prompt_tokens"] = fmean(prompts)
        told = [one for one in self.good if one.cached_tokens is not None and one.prompt_tokens]
        if told:
            found["cached_share"] = sum(one.cached_tokens or 0 for one in told) / sum(
                one.prompt_tokens or 0 for one in told
            )
        drafting = [one for one in self.good if one.drafted and one.accepted is not None]
        if drafting:
            accepted = sum(one.accepted or 0 for one in drafting)
            own = sum(one.tokens - 1 for one in drafting)  # the first comes of the prompt
            found["acceptance"] = accepted / sum(one.drafted or 0 for one in drafting)
            if own > accepted:
                found |= {"tokens_per_step": own / (own - accepted), "accepted_per_step": accepted / (own - accepted)}
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a latency a row, its count and percentiles in milliseconds, `[low, high]` beside each; a dash
        where the count does not carry one."""
        return [
            (name.removesuffix("_s").upper(), str(len(values)), *(_shown(percentile(values, p)) for p in SHOWN))
            for name in LATENCIES
            if (values := self.values(name))
        ]

    def facts(self) -> list[str]:
        """What stands below the table, a sentence each."""
        found = [
            f"{len(self.good)} of {len(self.requests)} requests came whole"
            + (f", {self.failed} failed" * bool(self.failed))
        ]
        found += sorted({one.error for one in self.requests if one.error})[:3]
        if not self.good:
            return found
        one = self.metrics()
        if "makespan_s" in one:
            found.append(
                f"{one['total_tok_s']:.4g} tok/s and {one['request_s']:.4g} requests/s over {one['makespan_s']:.4g} s; "
                f"resident {one['resident_mean']:.3g} on average, {one['resident_most']:.0f} at the most"
            )
        window, why = self.window
        found.append(f"{window.tok_s:.4g} tok/s while all decode" if window else f"no rate of decoding: {why}")
        if late := self.late_s:
            found.append(f"sent late by {late[0] * 1e3:.3g} ms at the median, {late[1] * 1e3:.3g} ms at the most")
            if self.saturation.over:
                found.append(self.saturation.words())
        if one.get("stream_max_tok_s", 0.0) > one.get("stream_min_tok_s", 0.0):
            low, high = one["stream_min_tok_s"], one["stream_max_tok_s"]
            found.append(f"each at {low:.4g} to {high:.4g} tok/s, its wait included: {high / low:.3g} times apart")
        if "cached_share" in one:
            found.append(f"{one['cached_share']:.1%} of the prompts' tokens came from a cache")
        if "acceptance" in one:
            found.append(f"{one['acceptance']:.1%} of drafted tokens accepted")
        needs = [(f"p{p * 100:g}", least_count(p)) for p in SHOWN]
        found.append(f"a dash: too few to bound it ({', '.join(f'{name} needs {n}' for name, n in needs)})")
        return found

    def __str__(self) -> str:
        table = [("ms", "n", *(f"p{p * 100:g}" for p in SHOWN)), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join([*lines, *self.facts()])

    def __repr__(self) -> str:
        return f"<Served: {len(self.good)} of {len(self.requests)} requests, {self.tokens} tokens>"

    def _repr_html_(self) -> str:
        from labkit.show.pieces import paragraph, table

        head = ("ms", "n", *(f"p{p * 100:g}" for p in SHOWN))
        shown = table(head, self.rows(), numbers=range(1, len(head)), title=f"{len(self.requests)} requests")
        return shown + "".join(paragraph(text) for text in self.facts())


def _shown(found: Percentile) -> str:
    if found.value is None or found.low is None or found.high is None:
        return "–"
    return f"{found.value * 1e3:.4g} [{found.low * 1e3:.4g}, {found.high * 1e3:.4g}]"


def streams_needed(tok_s: float, seconds_a_token: float) -> float:
    """Streams that a rate needs by Little's law, L = λ W: tokens a second times seconds a token. More than were in
    flight is impossible (detector 6). ParameterError for what is not above 0."""
    if not (tok_s > 0 and seconds_a_token > 0):
        raise ParameterError(f"{tok_s:g} tok/s at {seconds_a_token:g} s a token: give both above 0")
    return tok_s * seconds_a_token
