"""What a rate implies: the least bytes and operations behind it, with the arithmetic in words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from labkit.audit.evidence import Observation

CACHE_FACTOR = 4  # a working set below this many times the cache may have been read from the cache
SURE_P = 1e-4  # how unlikely an honest record must be for a statistical detector to fail it
THROUGHPUTS = ("decode_tok_s", "total_tok_s")  # of all streams together
STREAM_RATES = ("stream_tok_s", "stream_max_tok_s", "server_decode_tok_s")  # of one stream
PREFILL_RATES = ("prefill_tok_s", "server_prefill_tok_s")


@dataclass(frozen=True)
class Implied:
    """A number that follows from an observation, with the lines that lead to it; None and what is missing where it does
    not follow. `sure` is the share of it that is left when the observed value was rounded up."""

    value: float | None
    lines: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    sure: float = 1.0

    def __bool__(self) -> bool:
        return self.value is not None


def bounds(one: Observation, metric: str) -> tuple[float, float] | None:
    """The least and the most a metric was, sure at p = 1e-4: a published value by half of its last digit, repetitions by
    the error of their median. None where it was not measured."""
    low, high = one.low(metric), one.high(metric)
    if low is None or high is None:
        return None
    series = one.series(metric)
    if len(series) < 2:
        return low, high
    from scipy.special import stdtrit

    half = float(stdtrit(len(series) - 1, 1 - SURE_P)) * 1.2533 * spread(series) / math.sqrt(len(series))
    return low - half, high + half


def spread(series: Sequence[float]) -> float:
    """The standard deviation of repetitions, robustly: 1.4826 times the median distance from their median, but at the
    least what their range allows."""
    centre = median(series)
    robust = 1.4826 * median(abs(value - centre) for value in series)
    return max(robust, (max(series) - min(series)) / (2 * math.sqrt(len(series))))


def passes_per_second(one: Observation) -> Implied:
    """Passes over the weights a second: the most that any of its rates and times gives. A pass gives every
    resident stream at most `tokens_per_pass_max` tokens."""
    found = [implied for implied in pass_rates(one) if implied]
    if found:
        return max(found, key=lambda implied: (implied.value or 0.0) * implied.sure)
    missing = dict.fromkeys(part for implied in pass_rates(one) for part in implied.missing)
    return Implied(None, (), tuple(missing) or ("a rate of tokens",))


def pass_rates(one: Observation) -> Iterator[Implied]:
    """Passes a second by each rate and time that was measured."""
    tokens = one.tokens_per_pass_max
    no_tokens = () if tokens else ("the most tokens a stream gets from one pass",)
    said = f" / {counted(tokens, 'token')} a pass" if tokens and tokens != 1 else ""
    if step := one.value("step_ms"):
        line = f"1,000 / {number(step)} ms = {number(1e3 / step)} passes/s"
        yield Implied(1e3 / step, (line,), sure=step / (one.high("step_ms") or step))
    if "makespan_s" in one.metrics and not one.samples:  # of a run, its requests tell what was emitted
        yield batch_passes(one, no_tokens)
    for name in (*THROUGHPUTS, *STREAM_RATES, "tpot_s", "itl_s"):
        if name not in one.metrics:
            continue
        if name in one.unclear:
            yield Implied(None, (), (one.unclear[name],))
            continue
        streams = resident(one) if name in THROUGHPUTS else 1.0
        if streams is None or not tokens:
            yield Implied(None, (), (*no_tokens, *(() if streams else ("the number of streams",))))
            continue
        if name in ("tpot_s", "itl_s"):
            time = one.metrics[name] or math.inf
            line = f"1 / {number(time)} s{said} = {number(1 / time / tokens)} passes/s"
            yield Implied(1 / time / tokens, (line,), sure=time / (one.high(name) or time))
            continue
        rate = one.metrics[name]
        among = f" / {counted(streams, 'stream')}" if name in THROUGHPUTS else ""
        passes = rate / streams / tokens
        line = f"{number(rate)} tok/s{among}{said} = {number(passes)} passes/s"
        yield Implied(passes, (line,), sure=share_left(one, name))


def batch_passes(one: Observation, lacks: tuple[str, ...]) -> Implied:
    """Passes a second behind the time of a whole batch: its output tokens over its time, as a rate of all streams."""
    streams, output, time = one.streams, one.output_tokens, one.metrics["makespan_s"]
    tokens, together = one.tokens_per_pass_max, resident(one)
    if not streams or not output or not tokens or not together or not time:
        known = {"the number of streams": streams, "the output tokens of a stream": output, "a time": time}
        return Implied(None, (), (*lacks, *(name for name, value in known.items() if not value)))
    rate = streams * output / time
    passes = rate / together / tokens
    each = f" / {counted(tokens, 'token')} a pass" if tokens != 1 else ""
    lines = (
        f"{counted(streams, 'stream')} × {counted(output, 'token')} / {number(time)} s = {number(rate)} tok/s",
        f"{number(rate)} tok/s / {counted(together, 'stream')}{each} = {number(passes)} passes/s",
    )
    return Implied(passes, lines, sure=time / (one.high("makespan_s") or time))


def resident(one: Observation) -> float | None:
    """The most streams that can have decoded at once: no more than there are slots."""
    if one.streams is None:
        return None
    return min(one.streams, one.slots) if one.slots else one.streams


def pass_bytes(one: Observation) -> Implied:
    """The bytes that one pass over the weights must at least read: of one token's active weights."""
    if one.pass_bytes is not None:
        return Implied(one.pass_bytes, (f"{number(one.pass_bytes / 1e9)} GB a pass, as recorded",))
    if one.active_params is None or one.bytes_per_weight is None:
        known = {"the active parameters": one.active_params, "the bytes of a weight": one.bytes_per_weight}
        return Implied(None, (), tuple(name for name, value in known.items() if value is None))
    found = one.active_params * one.bytes_per_weight
    line = f"{number(one.active_params / 1e9)} × 10⁹ active weights × {one.bytes_per_weight:.6g} bytes"
    return Implied(found, (f"{line} = {number(found / 1e9)} GB a pass",))


def implied_bandwidth(one: Observation) -> Implied:
    """GB/s that a decode rate must at least have read the weights with."""
    passes, size = passes_per_second(one), pass_bytes(one)
    if passes.value is None or size.value is None:
        return Implied(None, (), (*passes.missing, *size.missing))
    found = passes.value * size.value / 1e9
    last = f"{number(passes.value)} passes/s × {number(size.value / 1e9)} GB = {number(found)} GB/s"
    return Implied(found, (*passes.lines, *size.lines, last), sure=passes.sure)


def operations_per_token(one: Observation) -> Implied:
    """Operations that one token must at least take: a multiplication and an addition for each active weight."""
    if one.flops_per_token is not None:
        return Implied(one.flops_per_token, (f"{number(one.flops_per_token / 1e9)} GFLOP a token, as recorded",))
    if one.active_params is None:
        return Implied(None, (), ("the active parameters",))
    found = 2 * one.active_params
    line = f"2 × {number(one.active_params / 1e9)} × 10⁹ active weights = {number(found / 1e9)} GFLOP a token"
    return Implied(found, (line,))


def token_rate(one: Observation) -> Implied:
    """Tokens a second that the device worked on, whatever the phase."""
    for name in (*PREFILL_RATES, *THROUGHPUTS, "stream_tok_s"):
        if (rate := one.value(name)) is not None and name not in one.unclear:
            of = " of one stream" if name == "stream_tok_s" else ""
            return Implied(rate, (f"{number(rate)} tok/s{of}",), sure=share_left(one, name))
    if (time := one.value("ttft_s")) and one.prompt_tokens:
        found = one.prompt_tokens / time
        line = f"{number(one.prompt_tokens)} tokens / {number(time)} s = {number(found)} tok/s"
        return Implied(found, (line,), sure=time / (one.high("ttft_s") or time))
    return Implied(None, (), ("a rate of tokens",))


def share_left(one: Observation, metric: str) -> float:
    """The share of a value that is left when it was rounded up to its last digit."""
    value, low = one.value(metric), one.low(metric)
    return max(low, 0.0) / value if value and low is not None else 1.0


def implied_rate(one: Observation) -> Implied:
    """TFLOP/s that a rate of tokens takes at the least."""
    rate, each = token_rate(one), operations_per_token(one)
    if rate.value is None or each.value is None:
        return Implied(None, (), (*rate.missing, *each.missing))
    found = rate.value * each.value / 1e12
    last = f"{number(rate.value)} tok/s × {number(each.value / 1e9)} GFLOP = {number(found)} TFLOP/s"
    return Implied(found, (*each.lines, last), sure=rate.sure)


def counted(value: float, noun: str) -> str:
    """A number with its noun: `1 stream`, `32 streams`."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def number(value: float) -> str:
    """A number as a line of arithmetic has it: four digits, thousands with commas."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e12:
        return f"{value:.4g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    places = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
