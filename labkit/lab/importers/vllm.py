"""vLLM's benchmark of a server (`vllm bench serve`, `benchmark_serving.py`): a summary, and its requests if saved."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from labkit.lab.importers.document import Document, Node
from labkit.lab.importers.registry import Contents, Measured, importer
from labkit.lab.importers.serving import serving_knobs
from labkit.lab.importers.shared import common
from labkit.lab.importers.times import moment
from labkit.measure.serving.requests import request_metrics, request_row

NEEDED = ("duration", "completed", "total_output_tokens", "request_throughput", "output_throughput")
# What the summary says, in our metrics, with what makes their unit ours. Its TPOT leaves out the first token, as ours.
SUMMARY = {
    "median_ttft_ms": ("ttft_s", 1e-3), "median_tpot_ms": ("tpot_s", 1e-3), "median_itl_ms": ("itl_s", 1e-3),
    "median_e2el_ms": ("e2e_s", 1e-3), "request_goodput": ("goodput_req_s", 1.0),
}  # fmt: skip
SETTINGS = ("endpoint_type", "label", "tokenizer_id", "burstiness", "dataset_name", "num_prompts")
AGREE = 0.01
MOST_REQUESTS = 200_000


def is_vllm(document: Document) -> bool:
    """Whether the first record has the names of its summary."""
    records = document.records() if document.rows and isinstance(document.rows[0].value, dict | list) else ()
    return bool(records) and records[0].has(*NEEDED)


@importer("vllm", "the JSON of vllm bench serve or benchmark_serving.py", is_vllm)
def read(document: Document) -> Contents:
    """Each record is a repetition of a cell; a file written with --append-result holds several."""
    records = document.records()
    times = [time_of(record) for record in records]
    known = [time for time in times if time is not None]
    begin = min(known, default=None)
    models = [record.at("model_id").text() for record in records]
    model = common(models)
    measured = [
        measure(record, time, None if model or not name else name)
        for record, time, name in zip(records, times, models, strict=True)
    ]
    lasting = [record.at("duration").needed(1e-9) for record in records]
    shared = {name: common([repr(record.at(name).scalar()) for record in records]) for name in SETTINGS}
    return Contents(
        measured=measured,
        model={"name": model} if model else None,
        started=begin,
        seconds=sum(lasting),
        settings={name: records[0].at(name).scalar() for name, text in shared.items() if text not in (None, "None")},
        notes=["times: the file gives a date without a zone, here taken as UTC"] if begin else [],
    )


def measure(record: Node, time: datetime | None, model: str | None) -> Measured:
    """One record: its summary, and its requests where the arrays are there. RunError where the two disagree."""
    duration, completed = record.at("duration").needed(1e-9), record.at("completed").whole(0, MOST_REQUESTS) or 0
    output = record.at("total_output_tokens").needed()
    if completed == 0:
        raise record.at("completed").fault("is 0: no request succeeded, so nothing was measured")
    for name, total in (("output_throughput", output), ("request_throughput", completed)):
        rate = record.at(name).needed()
        if not math.isclose(rate, total / duration, rel_tol=AGREE):
            raise record.at(name).fault(
                f"is {rate:g}, but {total:g} in {duration:g} s are {total / duration:g} a second"
            )
    requests = requests_of(record)
    if requests:
        check_totals(record, requests, completed, output)
    metrics = {"total_tok_s": output / duration, "request_s": completed / duration, "makespan_s": duration}
    for name, (ours, scale) in SUMMARY.items():
        value = record.at(name).number()
        if value:  # vLLM writes 0 for what it has no sample of, such as gaps of outputs of one token
            metrics[ours] = value * scale
    lengths = {"completion_tokens": output / completed}
    if (read := record.at("total_input_tokens").number()) is not None:
        lengths["prompt_tokens"] = read / completed
    metrics |= lengths | request_metrics(requests)
    return Measured(knobs_of(record, requests, model), metrics, requests, time)


def knobs_of(record: Node, requests: Sequence[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The cell. `streams` are known where requests are sent as soon as others end: all at once, or so many at once."""
    rate = record.at("request_rate")
    at_once = rate.missing or rate.value in ("inf", "Infinity")
    most = record.at("max_concurrency").whole(1, MOST_REQUESTS)
    sent = record.at("num_prompts").whole(1, MOST_REQUESTS) or len(requests) or None
    limits = [count for count in (most, sent) if count is not None]
    streams = min(limits) if at_once and (most or not rate.missing) and limits else None
    said = record.first("backend", "endpoint_type").text()
    runtime = said if said and not said.startswith("openai") else None  # that is a kind of API, not a program
    if at_once:
        return serving_knobs(requests, streams, runtime, model=model)
    return serving_knobs(requests, None, runtime, model=model, request_rate=rate.number(1e-9), max_concurrency=most)


def requests_of(record: Node) -> list[dict[str, Any]]:
    """The requests, where the arrays by request were saved; times of their submission only where they were too."""
    arrays = {
        name: record.at(name).items()
        for name in ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times")
    }
    count = len(arrays["output_lens"])
    if not count or not arrays["ttfts"]:
        return []
    if count > MOST_REQUESTS:
        raise record.at("output_lens").fault(f"has {count:,} requests, of {MOST_REQUESTS:,} at the most")
    for name, entries in arrays.items():
        if entries and len(entries) != count:
            raise record.at(name).fault(f"has {len(entries):,} entries, where output_lens has {count:,}")
    starts = [entry.needed(-1e15) for entry in arrays["start_times"]]
    begin = min(starts, default=0.0)
    found = []
    for i in range(count):
        entry = {name: entries[i] for name, entries in arrays.items() if entries}
        found.append(one_request(i, entry, starts[i] - begin if starts else None))
    return found


def one_request(number: int, entry: dict[str, Node], submit_s: float | None) -> dict[str, Any]:
    """A request by its entry in each array."""
    prompt = entry["input_lens"].whole() if "input_lens" in entry else None
    output, ttft = entry["output_lens"].whole() or 0, entry["ttfts"].needed()
    gaps = entry["itls"].numbers() if "itls" in entry else []
    error = entry["errors"].value if "errors" in entry else None
    if error or not output:
        said = str(error).splitlines()[0][:200] if error else "no output"
        return request_row(number, prompt=prompt, submit_s=submit_s, error=said)
    latency = ttft + sum(gaps) if gaps or output == 1 else None
    return request_row(
        number, prompt=prompt, completion=output, submit_s=submit_s, ttft_s=ttft or None, e2e_s=latency, gaps_s=gaps
    )


def check_totals(record: Node, requests: Sequence[dict[str, Any]], completed: int, output: float) -> None:
    """RunError where the arrays by request do not sum to the summary."""
    good = [row for row in requests if "error" not in row]
    if len(good) != completed:
        raise record.at("completed").fault(f"is {completed}, but {len(good)} requests have an output and no error")
    emitted = sum(row["completion_tokens"] for row in good)
    if emitted != output:
        raise record.at("total_output_tokens").fault(f"is {output:g}, but output_lens sum to {emitted:g}")


def time_of(record: Node) -> datetime | None:
    """`date`, as `20261201-100000`."""
    text = record.at("date").text()
    if text is None:
        return None
    day, _, time = text.partition("-")
    found = moment(f"{day}T{time}") if len(day) == 8 and len(time) == 6 else None
    if found is None:
        raise record.at("date").fault(f"is {text[:40]!r}, where a date such as 20261201-100000 is expected")
    return found
