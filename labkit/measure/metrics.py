"""The metrics a measurement may carry: one registry of id, unit, definition, formula and better direction."""

import difflib
from dataclasses import dataclass
from typing import Literal

from labkit.errors import ParameterError

Better = Literal["higher", "lower", "none"]


@dataclass(frozen=True)
class Metric:
    """A quantity that is measured.

    `id` is its name in `measurements.csv` and in rules, `unit` what its values are in ("1" for a share or a count),
    `better` the direction an improvement goes, `name` what the field calls it where that is another name. `timed`
    metrics come from a clock: they are worth nothing where a correctness check failed."""

    id: str
    unit: str
    better: Better
    definition: str
    formula: str
    timed: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower", "none"):
            raise ParameterError(f"metric {self.id}: better is {self.better!r}; use higher, lower or none")
        if not self.id.isidentifier():
            raise ParameterError(f"{self.id!r} cannot be a metric: run.measure takes it as a keyword")

    def _repr_html_(self) -> str:
        from labkit.show.pieces import table

        return table(("metric", "unit", "better", "definition", "formula"), [self.row()])

    def row(self) -> tuple[str, ...]:
        """Id, unit, better direction, definition with the field's name for it, formula."""
        definition = f"{self.name}: {self.definition}" if self.name else self.definition
        return (self.id, self.unit, self.better, definition, self.formula)


METRICS: dict[str, Metric] = {}


def define(
    id: str,
    unit: str,
    better: Better,
    definition: str,
    formula: str,
    *,
    timed: bool = False,
    name: str = "",
) -> Metric:
    """Registers a metric. ParameterError when the id is taken: one name never means two things."""
    if id in METRICS:
        raise ParameterError(f"the metric {id} is defined already: {METRICS[id].definition}")
    METRICS[id] = Metric(id, unit, better, definition, formula, timed, name)
    return METRICS[id]


def metric(id: str) -> Metric:
    """The registered metric. ParameterError, with the nearest names, for an unknown one."""
    if id in METRICS:
        return METRICS[id]
    near = [known.id for known in METRICS.values() if known.name and known.name.lower() == str(id).lower()]
    near += [name for name in difflib.get_close_matches(str(id), METRICS, n=3, cutoff=0.5) if name not in near]
    near += [name for name in sorted(METRICS) if str(id) and str(id) in name and name not in near]
    advice = f"did you mean {', '.join(near[:3])}?" if near else f"there are: {', '.join(sorted(METRICS))}"
    raise ParameterError(f"{id!r} is not a registered metric; {advice}")


# Throughput. Aggregate rates count emitted token ids over wall time; never one stream's rate times the batch.
define(
    "decode_tok_s", "tok/s", "higher",
    "token ids emitted by all streams a second of wall time, while every stream decodes",
    "emitted tokens in the window / seconds of the window", timed=True, name="decode throughput",
)  # fmt: skip
define(
    "stream_tok_s", "tok/s", "higher",
    "token ids one stream receives a second while it decodes",
    "(completion tokens - 1) / (last token time - first token time), mean over streams", timed=True,
)  # fmt: skip
define(
    "prefill_tok_s", "tok/s", "higher",
    "prompt tokens processed a second of wall time, cached tokens not counted",
    "prompt tokens computed / seconds from the first chunk's submit to its last row done", timed=True, name="prefill throughput",
)  # fmt: skip
define(
    "total_tok_s", "tok/s", "higher",
    "token ids emitted by all requests a second of the whole run, prefill and waiting included",
    "completion tokens of all requests / makespan_s", timed=True,
)  # fmt: skip
define(
    "request_s", "req/s", "higher", "requests completed a second of wall time",
    "completed requests / makespan_s", timed=True,
)  # fmt: skip
define(
    "goodput_req_s", "req/s", "higher", "requests a second that met all declared limits (ttft, tpot, e2e) at once",
    "requests within every limit / makespan_s", timed=True, name="goodput",
)  # fmt: skip

define(
    "goodput_tok_s", "tok/s", "higher", "token ids a second of the requests that met all declared limits at once",
    "completion tokens of requests within every limit / makespan_s", timed=True, name="token goodput",
)  # fmt: skip

# Latency
define(
    "ttft_s", "s", "lower", "time to first token: from submit to the first non-empty token",
    "first token time - submit time", timed=True, name="TTFT",
)  # fmt: skip
define(
    "tpot_s", "s", "lower", "time per output token of a request after its first; every request weighs the same",
    "(e2e_s - ttft_s) / (completion tokens - 1)", timed=True, name="TPOT",
)  # fmt: skip
define(
    "itl_s", "s", "lower",
    "inter-token latency: every gap between consecutive tokens, pooled over requests; tokens of one event are one gap",
    "event time[i] - event time[i-1]", timed=True, name="ITL",
)  # fmt: skip
define(
    "e2e_s", "s", "lower", "end to end: from submit to a request's last token",
    "last token time - submit time", timed=True, name="E2EL",
)  # fmt: skip
define(
    "ttft_p95_s", "s", "lower", "95th percentile of the time to first token, over at least 72 requests",
    "95th percentile of ttft_s", timed=True, name="P95 TTFT",
)  # fmt: skip
define(
    "itl_p99_s", "s", "lower", "99th percentile of the inter-token latency, over at least 368 gaps",
    "99th percentile of itl_s", timed=True, name="P99 ITL",
)  # fmt: skip
define(
    "e2e_p95_s", "s", "lower", "95th percentile of the end-to-end time, over at least 72 requests",
    "95th percentile of e2e_s", timed=True, name="P95 E2EL",
)  # fmt: skip
define(
    "makespan_s", "s", "lower", "wall time of a fixed batch, from the first submit to the last token of all",
    "max(last token time) - min(submit time)", timed=True,
)  # fmt: skip
define(
    "load_s", "s", "lower", "from opening the model's file to the engine being ready for a request",
    "ready time - open time", timed=True,
)  # fmt: skip

define(
    "server_prefill_tok_s", "tok/s", "higher", "prompt tokens a second as a server says by its own clock, without its transport",
    "prompt tokens / the server's own prompt seconds", timed=True,
)  # fmt: skip
define(
    "server_decode_tok_s", "tok/s", "higher", "token ids a server emits to one stream a second, by its own clock and count",
    "emitted tokens / the server's own seconds of decoding", timed=True,
)  # fmt: skip
define(
    "transport_ms", "ms", "lower", "what a server's own clock leaves of the time to the first token: transport, and waiting",
    "1000 * ttft_s - the server's own prompt milliseconds, mean over requests", timed=True,
)  # fmt: skip
define(
    "stream_min_tok_s", "tok/s", "higher", "the slowest stream's rate, its wait for a slot included",
    "min over streams of completion tokens / (last token time - submit time)", timed=True,
)  # fmt: skip
define(
    "stream_max_tok_s", "tok/s", "higher", "the fastest stream's rate, its wait for a slot included",
    "max over streams of completion tokens / (last token time - submit time)", timed=True,
)  # fmt: skip

# Requests of a server
define(
    "failed_share", "1", "lower", "share of the requests sent that did not come whole; they are part of no rate",
    "failed requests / requests sent", name="error rate",
)  # fmt: skip
define(
    "resident_most", "1", "none", "most requests that decoded at the same time",
    "max over time of requests between their first and their last token",
)  # fmt: skip
define(
    "resident_mean", "1", "none", "requests that decoded at the same time, mean over the makespan",
    "sum (last token time - first token time) / makespan_s",
)  # fmt: skip
define(
    "in_flight_mean", "1", "none", "requests sent and not ended, mean over the makespan; Little's L",
    "sum e2e_s / makespan_s", name="concurrency",
)  # fmt: skip
define(
    "cached_share", "1", "none", "share of the prompts' tokens that came from a cache of prefixes",
    "cached tokens / prompt tokens", name="prefix-cache hit rate",
)  # fmt: skip

define(
    "regret", "1", "lower",
    "share by which requests took longer where a policy chose their runtime than where the best single one had them all",
    "sum of e2e_s by the policy / least sum of e2e_s by one runtime - 1", timed=True,
)  # fmt: skip

# A step and what it costs
define(
    "step_ms", "ms", "lower", "wall time of one step of the engine",
    "1000 * seconds of the window / steps in it", timed=True,
)  # fmt: skip
define(
    "gpu_ms_step", "ms", "lower", "GPU time of one step, by timestamp queries (wall time on a CPU driver)",
    "1000 * (last timestamp - first timestamp) / steps in the submit", timed=True,
)  # fmt: skip
define(
    "host_ms_step", "ms", "lower", "CPU time of the engine's thread a step, detokenising included",
    "1000 * thread CPU seconds / steps", timed=True,
)  # fmt: skip
define(
    "kernel_us", "us", "lower", "GPU time of one dispatch of a kernel",
    "1e6 * (timestamp after - timestamp before), median of repeats", timed=True,
)  # fmt: skip
define(
    "row_us", "us", "lower", "GPU time of the matrix products asked for, each once, over one activation row",
    "1e6 * seconds of the products / activation rows", timed=True,
)  # fmt: skip
define(
    "marginal_prefill_ms", "ms", "lower", "time that one more prompt token costs, between two lengths of a prompt",
    "1000 * (ttft_s at the longer - ttft_s at the shorter) / (tokens longer)", timed=True,
)  # fmt: skip
define(
    "tokens_per_step", "tok", "higher", "token ids emitted by a stream a step, accepted drafts and the model's own",
    "emitted tokens / (streams * steps)", name="tokens per step",
)  # fmt: skip
define("dispatches", "1", "lower", "dispatches recorded for one step", "length of the program's dispatch list")
define("submits", "1", "lower", "queue submissions made for the measured work", "count of vkQueueSubmit")

# Distance from the physical limit
define(
    "achieved_gb_s", "GB/s", "higher", "bytes a step must at least read, over its time (10^9 bytes)",
    "(weight bytes + KV bytes read) / step seconds / 1e9", timed=True,
)  # fmt: skip
define(
    "read_gb_s", "GB/s", "higher", "the device's ceiling: bandwidth of a checked stream of reads over its caches' size",
    "bytes streamed / seconds / 1e9, median of repeats", timed=True,
)  # fmt: skip
define(
    "share_of_read_bandwidth", "1", "higher", "achieved bandwidth as a share of the device's measured ceiling",
    "achieved_gb_s / read_gb_s", timed=True,
)  # fmt: skip
define(
    "achieved_gflop_s", "GFLOP/s", "higher", "floating-point operations the work needs, over its time",
    "FLOPs of the program / seconds / 1e9", timed=True,
)  # fmt: skip
define(
    "matrix_gflop_s", "GFLOP/s", "higher", "the device's ceiling: rate of a checked loop of matrix products in registers",
    "FLOPs of the loop / seconds / 1e9, median of repeats", timed=True,
)  # fmt: skip
define(
    "share_of_matrix_rate", "1", "higher", "achieved arithmetic as a share of the device's measured ceiling",
    "achieved_gflop_s / matrix_gflop_s", timed=True,
)  # fmt: skip
define(
    "device_bytes", "bytes", "lower", "device memory held by weights, KV cache and working buffers", "sum of buffers"
)

# What a compiler says of a kernel
define(
    "occupancy",
    "1",
    "higher",
    "subgroups a SIMD unit holds at once, by registers and shared memory",
    "as the driver's compiler reports it",
)
define("vgprs", "1", "lower", "vector registers an invocation takes", "as the driver's compiler reports it")
define(
    "spilled_registers", "1", "lower", "registers kept in memory for want of room",
    "spilled vector and scalar registers, as the driver's compiler reports them",
)  # fmt: skip
define("code_bytes", "bytes", "lower", "machine code of a kernel", "as the driver's compiler reports it")
define(
    "latency_cycles", "cycles", "lower", "the compiler's estimate of a subgroup's way through a kernel, alone",
    "as the driver's compiler reports it, loops counted as it guesses them",
)  # fmt: skip
define(
    "inverse_throughput_cycles", "cycles", "lower", "the compiler's estimate of the cycles a subgroup keeps its units busy",
    "as the driver's compiler reports it, loops counted as it guesses them",
)  # fmt: skip

# Speculation
define(
    "acceptance", "1", "higher", "share of drafted tokens the model accepted", "accepted drafts / drafted tokens",
    name="acceptance rate",
)  # fmt: skip
define(
    "accepted_per_step", "tok", "higher", "drafted tokens accepted a verification step, the model's own not counted",
    "accepted drafts / verification steps",
)  # fmt: skip

# Energy
define("power_w", "W", "lower", "mean power of the device during the measured window", "mean of telemetry samples")
define("core_mhz", "MHz", "none", "clock of the device's shader cores during the window", "mean of telemetry samples")
define("memory_mhz", "MHz", "none", "clock of the device's memory during the window", "mean of telemetry samples")
define("temperature_c", "°C", "none", "temperature of the device during the window", "mean of telemetry samples")
define(
    "j_per_token", "J/tok", "lower", "energy of the device a token emitted", "power_w * seconds / emitted tokens",
    name="J/token",
)  # fmt: skip
define(
    "j_per_token_above_rest", "J/tok", "lower", "energy of the device a token emitted, above what it takes at rest",
    "(power_w - power at rest) * seconds / emitted tokens",
)  # fmt: skip
define(
    "j_per_prompt_token", "J/tok", "lower", "energy of the device a prompt token read",
    "power_w * seconds / prompt tokens computed",
)  # fmt: skip
define(
    "j_per_prompt_token_above_rest", "J/tok", "lower", "energy of the device a prompt token read, above what it takes at rest",
    "(power_w - power at rest) * seconds / prompt tokens computed",
)  # fmt: skip

# Quality and correctness
define(
    "logprob_gap", "nat", "lower", "largest difference of log-probability to the reference over the compared tokens",
    "max |log p - log p_reference|",
)  # fmt: skip
define(
    "nmse", "1", "lower", "normalised mean squared error to the reference",
    "sum (x - x_reference)^2 / sum x_reference^2",
)  # fmt: skip
define("perplexity", "1", "lower", "exponential of the mean negative log-probability of a text", "exp(-mean log p)")
define(
    "ids_equal", "1", "higher", "share of greedy token ids equal to the reference's, up to the first that parts",
    "equal leading ids / compared ids",
)  # fmt: skip
define("prompt_tokens", "tok", "none", "tokens of a prompt, special tokens included", "length of the prompt's ids")
define("completion_tokens", "tok", "none", "token ids emitted for a request", "length of the completion's ids")
