"""aiperf: records of requests (`profile_export.jsonl`), or the summary over them (`profile_export_aiperf.json`)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from labkit.lab.importers.document import Document, Node
from labkit.lab.importers.registry import Contents, Measured, importer
from labkit.lab.importers.serving import serving_knobs
from labkit.lab.importers.times import MOST_EPOCH, epoch_time, iso_time
from labkit.measure.serving.requests import request_metrics, request_row

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
# Of the summary: its name, the statistic, our metric. Its inter-token latency is a request's mean gap after the first
# token, which is our TPOT.
SUMMARY = (
    ("time_to_first_token", "p50", "ttft_s"), ("inter_token_latency", "p50", "tpot_s"),
    ("request_latency", "p50", "e2e_s"), ("benchmark_duration", "avg", "makespan_s"),
)  # fmt: skip
COUNTED = (
    ("request_throughput", "request_s"), ("output_token_throughput", "total_tok_s"), ("goodput", "goodput_req_s"),
    ("input_sequence_length", "prompt_tokens"), ("output_sequence_length", "completion_tokens"),
)  # fmt: skip
TOTALS = (("request_count", "request_s"), ("total_output_tokens", "total_tok_s"), ("total_osl", "total_tok_s"))
CACHED = ("usage_prompt_cache_read_tokens",)


def is_aiperf(document: Document) -> bool:
    """Whether it is a record of a request, or a summary with units."""
    if not document.rows:
        return False
    row = document.rows[0]
    if row.has("metadata", "metrics"):
        return isinstance(row.value["metadata"], dict) and "request_start_ns" in row.value["metadata"]
    latency = row.value.get("request_latency") if isinstance(row.value, dict) else None
    return isinstance(latency, dict) and "unit" in latency


@importer("aiperf", "profile_export.jsonl or profile_export_aiperf.json", is_aiperf)
def read(document: Document) -> Contents:
    """The file is one cell with one repetition."""
    return of_records(document) if document.rows[0].has("metadata", "metrics") else of_summary(document.root)


# Records


def of_records(document: Document) -> Contents:
    """Each line is a request; those of the warm-up count for nothing."""
    rows = [row for row in document.rows if row.at("metadata", "benchmark_phase").text() != "warmup"]
    starts = [nanoseconds(row, "request_start_ns") for row in rows]
    if not rows:
        raise document.fault("holds no request but those of the warm-up")
    begin = min(starts)
    requests = [
        request_of(i, row, (start - begin) / 1e9) for i, (row, start) in enumerate(zip(rows, starts, strict=True))
    ]  # fmt: skip
    good = [row for row in requests if "error" not in row]
    if not good:
        raise document.fault("holds no request that succeeded")
    span = max(row["last_token_s"] for row in good) - min(row["submit_s"] for row in good)
    metrics = request_metrics(requests)
    if span > 0:
        metrics |= {"makespan_s": span, "request_s": len(good) / span}
        if all("completion_tokens" in row for row in good):
            metrics["total_tok_s"] = sum(row["completion_tokens"] for row in good) / span
    started = epoch_time(rows[starts.index(begin)].at("metadata", "request_start_ns"), 1e9)
    measured = Measured(serving_knobs(requests, None), metrics, requests, started)
    return Contents(measured=[measured], started=started, seconds=span)


def request_of(number: int, row: Node, submit_s: float) -> dict[str, Any]:
    """A request as requests.jsonl has it."""
    begin, end = nanoseconds(row, "request_start_ns"), nanoseconds(row, "request_end_ns")
    if end < begin:
        raise row.at("metadata", "request_end_ns").fault("lies before request_start_ns")
    metrics = row.at("metrics")
    prompt = count_of(metrics, "input_sequence_length")
    error = row.at("error")
    if not error.missing or row.at("metadata", "was_cancelled").value is True:
        said = error.value.get("message") if isinstance(error.value, dict) else error.value
        return request_row(
            number,
            prompt=prompt,
            submit_s=submit_s,
            error=(str(said or "cancelled").splitlines() or ["error"])[0][:200],
        )
    output = count_of(metrics, "output_sequence_length")
    latency = seconds_of(metrics, "request_latency")
    cached = next((count for name in CACHED if (count := count_of(metrics, name)) is not None), None)
    return request_row(
        number, prompt=prompt, completion=output, submit_s=submit_s, ttft_s=seconds_of(metrics, "time_to_first_token"),
        e2e_s=(end - begin) / 1e9 if latency is None else latency, gaps_s=gaps_of(metrics, output), cached=cached,
    )  # fmt: skip


def nanoseconds(row: Node, name: str) -> int:
    """A time of a record, in nanoseconds since 1970. RunError where it is missing."""
    place = row.at("metadata", name)
    place.needed(0.0, MOST_EPOCH * 1e9)
    return place.whole(0, MOST_EPOCH * 1e9) or 0


def gaps_of(metrics: Node, output: int | None) -> Sequence[float]:
    """The gaps between its chunks, where each chunk was one token; else nothing is known of gaps between tokens."""
    place = metrics.at("inter_chunk_latency")
    entries = place.at("value").items() if not place.missing else []
    if output is None or len(entries) != output - 1:
        return ()
    scale = scale_of(place)
    return [entry.needed() * scale for entry in entries]


def count_of(metrics: Node, name: str) -> int | None:
    """A metric of a request that counts something."""
    return metrics.at(name, "value").whole()


def seconds_of(metrics: Node, name: str, statistic: str = "value") -> float | None:
    """A metric that is a time, in seconds; None where it is missing."""
    found = metrics.at(name, statistic).number()
    return None if found is None else found * scale_of(metrics.at(name))


def scale_of(place: Node) -> float:
    """How many seconds its unit has. RunError for a unit that is no time."""
    unit = place.at("unit").text()
    if unit not in SECONDS:
        raise place.at("unit").fault(f"is {unit!r}, where one of {', '.join(SECONDS)} is expected")
    return SECONDS[unit]


# The summary


def of_summary(root: Node) -> Contents:
    """The summary, from statistics over requests that it does not list."""
    metrics: dict[str, float] = {}
    for name, statistic, ours in SUMMARY:
        if value := seconds_of(root, name, statistic):
            metrics[ours] = value
    for name, ours in COUNTED:
        if value := root.at(name, "avg").number():
            metrics[ours] = value
    if not metrics:
        raise root.fault("tells nothing of requests that succeeded")
    if seconds := metrics.get("makespan_s"):  # its own rates are over a longer time, its start and end included
        for name, ours in TOTALS:
            if value := root.at(name, "avg").number():
                metrics[ours] = value / seconds
    if root.at("is_complete").value is False:
        raise root.at("is_complete").fault("is false: the benchmark ended before its requests did")
    lengths = {
        "prompt": length_of(root, "input_sequence_length"),
        "generate": length_of(root, "output_sequence_length"),
    }
    knobs = serving_knobs([], streams_of(root)) | {name: value for name, value in lengths.items() if value}
    started, ended = iso_time(root.at("start_time")), iso_time(root.at("end_time"))
    version = root.at("aiperf_version").text()
    model = model_of(root)
    return Contents(
        measured=[Measured(knobs, metrics, (), started)],
        model={"name": model} if model else None,
        started=started,
        seconds=lasting(started, ended),
        packages={"aiperf": version} if version else {},
        notes=["times: aiperf writes them without a zone, here taken as UTC"] if started else [],
    )


def lasting(started: datetime | None, ended: datetime | None) -> float | None:
    """Seconds between two moments; None where one is not known, or they are the wrong way round."""
    return (ended - started).total_seconds() if started and ended and ended >= started else None


def length_of(root: Node, name: str) -> int | None:
    """The length that all requests had: the least where it is also the most."""
    least, most = root.at(name, "min").number(), root.at(name, "max").number()
    return int(least) if least is not None and least == most and least == int(least) else None


def phase_of(root: Node) -> Mapping[str, Any]:
    """The phase that was measured, as the configuration in the summary has it: the only one that is no warm-up."""
    config = root.at("input_config").value
    found = config.get("phases") if isinstance(config, dict) else None
    measured = (
        [one for one in found if isinstance(one, dict) and one.get("name") != "warmup"]
        if isinstance(found, list)
        else []
    )
    return measured[0] if len(measured) == 1 else {}


def streams_of(root: Node) -> int | None:
    """How many requests were kept going: of a phase driven by concurrency alone."""
    phase = phase_of(root)
    if phase.get("type") != "concurrency":
        return None
    return Node(root.file, "input_config: concurrency", phase.get("concurrency")).whole(1)


def model_of(root: Node) -> str | None:
    """The one model it asked."""
    config = root.at("input_config").value
    if not isinstance(config, dict):
        return None
    found = config.get("model") or config.get("models")
    items = found.get("items") if isinstance(found, dict) else found
    names = [items] if isinstance(items, str) else items if isinstance(items, list) else []
    plain = [one.get("name") if isinstance(one, dict) else one for one in names]
    return Node(root.file, "input_config.models", plain[0]).text() if len(plain) == 1 else None
