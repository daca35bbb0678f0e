"""guidellm: a report with one benchmark a rate or number of streams, and their requests."""

from collections.abc import Iterator, Sequence
from typing import Any

from labkit.lab.importers.document import Document, Node
from labkit.lab.importers.registry import Contents, Measured, importer
from labkit.lab.importers.serving import serving_knobs
from labkit.lab.importers.shared import common
from labkit.lab.importers.times import MOST_EPOCH, epoch_time
from labkit.measure.serving.requests import request_metrics, request_row

MOST_REQUESTS = 200_000
# Of its summaries (of successful requests): the member, its statistic, our metric, what makes the unit ours. Its
# inter-token latency is weighted by tokens, and its time per output token counts the first one, so neither is our TPOT:
# that comes from the requests.
SUMMARY = (
    ("time_to_first_token_ms", "median", "ttft_s", 1e-3), ("request_latency", "median", "e2e_s", 1.0),
    ("requests_per_second", "mean", "request_s", 1.0), ("output_tokens_per_second", "mean", "total_tok_s", 1.0),
    ("request_goodput", "mean", "goodput_req_s", 1.0), ("prompt_token_count", "mean", "prompt_tokens", 1.0),
    ("output_token_count", "mean", "completion_tokens", 1.0),
)  # fmt: skip


def is_guidellm(document: Document) -> bool:
    """Whether it is an object with benchmarks that have its summaries."""
    if document.kind != "json" or not document.root.has("benchmarks"):
        return False
    benchmarks = document.root.value["benchmarks"]
    return isinstance(benchmarks, list) and (
        document.root.has("metadata") or any(isinstance(one, dict) and "metrics" in one for one in benchmarks)
    )


@importer("guidellm", "benchmarks.json", is_guidellm)
def read(document: Document) -> Contents:
    """Each benchmark of the report is a cell; times count from the first request of the whole report."""
    benchmarks = document.root.at("benchmarks").items()
    if not benchmarks:
        raise document.fault("is a report without a benchmark")
    starts = [
        start for one in benchmarks for request, _ in all_requests(one) if (start := start_of(request)) is not None
    ]
    begin = min(starts, default=None)
    models = [model_of(document.root, one) for one in benchmarks]
    model = common(models)
    measured = [
        measure(one, begin, None if model else name) for one, name in zip(benchmarks, models, strict=True)
    ]  # fmt: skip
    times = [time for one in benchmarks if (time := epoch_time(one.at("start_time"))) is not None]
    ends = [time for one in benchmarks if (time := epoch_time(one.at("end_time"))) is not None]
    first = min(times, default=None)
    version = document.root.at("metadata", "guidellm_version").text()
    return Contents(
        measured=measured,
        model={"name": model} if model else None,
        started=first,
        seconds=(max(ends) - first).total_seconds() if ends and first is not None else None,
        packages={"guidellm": version} if version else {},
    )


def measure(benchmark: Node, begin: float | None, model: str | None) -> Measured:
    """One benchmark: its summaries, and what its requests tell besides where all of them were kept."""
    rows = [
        row_of(number, request, status, begin) for number, (request, status) in enumerate(all_requests(benchmark))
    ]  # fmt: skip
    totals = benchmark.at("metrics", "request_totals", "successful").whole(0, MOST_REQUESTS)
    good = [row for row in rows if "error" not in row]
    if totals == 0:
        raise benchmark.at("metrics", "request_totals", "successful").fault("is 0: no request succeeded")
    metrics: dict[str, float] = {}
    for name, statistic, ours, scale in SUMMARY:
        value = benchmark.at("metrics", name, "successful", statistic).number()
        if value:  # 0 is what it has for requests that tell nothing
            metrics[ours] = value * scale
    complete = bool(good) and len(good) == (totals if totals is not None else len(good))
    if complete:
        metrics |= {
            name: value for name, value in request_metrics(rows).items() if name == "tpot_s" or name not in metrics
        }
        if all("last_token_s" in row for row in good) and not warmed(benchmark):
            metrics["makespan_s"] = max(r["last_token_s"] for r in good) - min(r["submit_s"] for r in good)
    if not metrics:
        raise benchmark.at("metrics").fault("tells nothing of successful requests")
    lengths = rows if complete else []
    return Measured(knobs_of(benchmark, lengths, model), metrics, rows, epoch_time(benchmark.at("start_time")))


def knobs_of(benchmark: Node, rows: Sequence[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The cell: streams where so many are kept going, else the rate they arrive at."""
    strategy = benchmark.at("config", "strategy")
    kind = strategy.at("type_").text()
    streams = 1 if kind == "synchronous" else strategy.at("streams").whole(1) if kind == "concurrent" else None
    rate = strategy.at("rate").number() if kind in ("constant", "poisson", "async") else None
    arrival = kind if kind not in ("synchronous", "concurrent") else None
    return serving_knobs(rows, streams, model=model, arrival=arrival, request_rate=rate)


def warmed(benchmark: Node) -> bool:
    """Whether requests at either end were left out of the summaries."""
    return any((benchmark.at(name).number(-MOST_EPOCH) or 0.0) > 0 for name in ("warmup_duration", "cooldown_duration"))


def all_requests(benchmark: Node) -> Iterator[tuple[Node, str]]:
    """(request, what became of it)."""
    for status in ("successful", "incomplete", "errored"):
        entries = benchmark.at("requests", status).items()
        if len(entries) > MOST_REQUESTS:
            what = f"has {len(entries):,} requests, of {MOST_REQUESTS:,} at the most"
            raise benchmark.at("requests", status).fault(what)
        for entry in entries:
            yield entry, status


def start_of(request: Node) -> float | None:
    """When it was sent, in seconds since 1970."""
    found = request.at("info", "timings", "request_start").number(0.0, MOST_EPOCH)
    return request.at("request_start_time").number(0.0, MOST_EPOCH) if found is None else found


def row_of(number: int, request: Node, status: str, begin: float | None) -> dict[str, Any]:
    """A request as requests.jsonl has it."""
    start = start_of(request)
    submit = start - begin if start is not None and begin is not None else None
    prompt = request.at("prompt_tokens").whole()
    if status != "successful":
        said = request.at("info", "error").value
        return request_row(number, prompt=prompt, submit_s=submit, error=str(said or status).splitlines()[0][:200])
    output = request.at("output_tokens").whole()
    first, last = request.at("time_to_first_token_ms").number(), request.at("request_latency").number()
    seen = request.at("info", "timings", "last_token_iteration").number(0.0, MOST_EPOCH)
    if seen is not None and start is not None:
        last = seen - start
        if last < 0:
            raise request.at("info", "timings", "last_token_iteration").fault("lies before the request was sent")
    return request_row(
        number, prompt=prompt, completion=output, submit_s=submit, ttft_s=first / 1e3 if first else None, e2e_s=last,
        cached=request.at("cached_tokens").whole(),
    )  # fmt: skip


def model_of(report: Node, benchmark: Node) -> str | None:
    """The model as the report names it."""
    for place in (benchmark.at("config", "backend"), report.at("config", "backend"), report.at("args")):
        if isinstance(place.value, dict) and isinstance(place.value.get("model"), str):
            return place.at("model").text()
    return None
