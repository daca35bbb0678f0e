"""Prefill and decode of any runtime in numbers, from the answers it gave: its rates by our clock, and by its own beside."""

from collections.abc import Sequence
from statistics import fmean

from labkit.measure.bench.costs import Costs
from labkit.measure.bench.sides import decode_metrics, prefill_metrics
from labkit.measure.bench.streams import Arrivals
from labkit.measure.serving.requests import Timed
from labkit.measure.serving.served import Served
from labkit.runtimes.runtime import Answer

MOST_CACHED = 0.01  # of the prompts' tokens: beyond it a rate of reading is none
LEAST_MS = 1000.0  # of a server's decoding: a busy client reads a token up to 10 ms late, 1 % of this


def prefill_of(answers: Sequence[Answer], costs: Costs) -> dict[str, float]:
    """Metrics of prompts of one length, read one after the other, by requests of one token.

    Of those that came whole: the mean time to the first token, its rate, and where every one of them tells it, the
    server's own rate and what its clock leaves of the time (`transport_ms`). Where none came whole, or a prompt came from
    a cache, there is only how many failed."""
    timed = [(answer, Timed.of(answer)) for answer in answers]
    good = [(answer, one) for answer, one in timed if one.good and one.prompt_tokens]
    failed = {"failed_share": 1 - len(good) / len(answers)}
    read = sum(one.prompt_tokens or 0 for _, one in good)
    cached = sum(one.cached_tokens or 0 for _, one in good)
    if not good or cached > MOST_CACHED * read:
        return failed
    ttft_s = fmean(one.ttft_s or 0.0 for _, one in good)
    found = prefill_metrics(round(read / len(good)), ttft_s, costs)
    own = [answer.timings.get("prompt_ms", 0.0) for answer, _ in good]
    if min(own) > 0:
        found |= {"server_prefill_tok_s": read / sum(own) * 1e3, "transport_ms": ttft_s * 1e3 - fmean(own)}
    return found | failed


def decode_of(answers: Sequence[Answer], costs: Costs) -> tuple[dict[str, float], str]:
    """Metrics of streams that decode at once, from when their tokens came; and why there is no rate, where there is none.
    A server's own rate stands beside it where it decoded for at least a second by its clock."""
    served = Served.of(answers)
    failed = {"failed_share": served.failed_share}
    window, why = served.window
    if window is None:
        return failed, why
    streams = [Arrivals(one.prompt_tokens or 0, one.submit_s or 0.0, one.times) for one in served.good]
    metrics, _ = decode_metrics(streams, costs)
    own = [answer.timings for answer in answers]
    if all(one.get("predicted_ms", 0) >= LEAST_MS and one.get("predicted_n", 0) > 1 for one in own):
        metrics["server_decode_tok_s"] = fmean((one["predicted_n"] - 1) / one["predicted_ms"] * 1e3 for one in own)
    return metrics | failed, ""
