"""A run in the names of vLLM's benchmark of a server: a record each cell and repetition that has requests."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import fmean, median, pstdev
from typing import Any

from labkit.lab.exporters.registry import Repetition, Rows, Stored, exporter
from labkit.measure.serving.percentiles import percentile
from labkit.measure.serving.requests import tpot

# The medians a run may hold without its requests, in our metrics.
KEPT = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
SETTINGS = ("endpoint_type", "label", "tokenizer_id", "burstiness", "dataset_name", "num_prompts")
Timed = dict[str, Any]


@exporter("vllm")
def rows(stored: Stored) -> Rows:
    """A record a repetition. Percentiles that its requests cannot bear, and what the run does not say, are null."""
    made: list[dict[str, Any]] = []
    left_out: list[str] = []
    for one in stored.repetitions:
        timed = [timed_request(row) for row in one.requests]
        good = [row for row in timed if row["error"] == "" and row["output"]]
        whole = duration_of(one, good)
        output = sum(row["output"] for row in good) if good else counted(one, "total_tok_s", whole)
        completed = len(good) if good else counted(one, "request_s", whole)
        if whole is None or not output or not completed:
            named = json.dumps(one.knobs, ensure_ascii=False)
            left_out.append(f"{named}: neither requests with their times nor their totals are kept")
            continue
        made.append(record_of(stored, one, timed, whole, int(output), int(completed)))
    return made, left_out


def timed_request(row: Mapping[str, Any]) -> Timed:
    """A request's lengths and times, however its run has them."""
    submit, first, last = (plain(row.get(name)) for name in ("submit_s", "first_token_s", "last_token_s"))
    ttft, e2e = plain(row.get("ttft_s")), plain(row.get("e2e_s"))
    gaps = row.get("gaps_s")
    return {
        "prompt": plain(row.get("prompt_tokens")),
        "output": int(plain(row.get("completion_tokens")) or 0),
        "submit": submit,
        "last": last,
        "ttft": first - submit if ttft is None and first is not None and submit is not None else ttft,
        "e2e": last - submit if e2e is None and last is not None and submit is not None else e2e,
        "gaps": gaps if isinstance(gaps, list) else [],
        "error": str(row.get("error") or ""),
    }


def plain(value: Any) -> float | None:
    """A finite number, None for what is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def duration_of(one: Repetition, good: Sequence[Timed]) -> float | None:
    """How long the repetition took: as kept, else from the first submit to the last token."""
    if one.metrics.get("makespan_s", 0.0) > 0:
        return one.metrics["makespan_s"]
    if not good or any(row["submit"] is None or row["last"] is None for row in good):
        return None
    found = max(row["last"] for row in good) - min(row["submit"] for row in good)
    return float(found) if found > 0 else None


def counted(one: Repetition, rate: str, seconds: float | None) -> int | None:
    """What a rate comes to in that time."""
    return round(one.metrics[rate] * seconds) if seconds is not None and rate in one.metrics else None


def record_of(
    stored: Stored, one: Repetition, timed: Sequence[Timed], seconds: float, output: int, completed: int
) -> dict[str, Any]:
    """A record in vLLM's names."""
    record, streams = stored.record, one.number("streams", "width", "batch", "concurrency")
    good = [row for row in timed if row["error"] == "" and row["output"]]
    prompts = [row["prompt"] for row in good]
    known = bool(prompts) and all(prompt is not None for prompt in prompts)
    read = round(sum(prompts)) if known else None
    if not good and "prompt_tokens" in one.metrics:
        read = round(one.metrics["prompt_tokens"] * completed)
    values = {
        "ttft": [row["ttft"] for row in good if row["ttft"] is not None],
        "tpot": [t for row in good if (t := tpot(row["output"], row["ttft"], row["e2e"])) is not None],
        "itl": [gap for row in good for gap in row["gaps"]],
        "e2el": [row["e2e"] for row in good if row["e2e"] is not None],
    }
    found: dict[str, Any] = {
        "date": date_of(one.utc),
        "backend": one.knobs.get("runtime") or record.parameters.get("runtime"),
        **{name: record.parameters[name] for name in SETTINGS if name in record.parameters},
        "model_id": one.knobs.get("model") or (record.model or {}).get("name"),
        "num_prompts": record.parameters.get("num_prompts") or len(timed) or None,
        "request_rate": one.knobs.get("request_rate") or ("inf" if streams else None),
        "max_concurrency": int(streams) if streams else one.knobs.get("max_concurrency"),
        "duration": seconds,
        "completed": completed,
        "failed": len(timed) - len(good) if timed else None,
        "total_input_tokens": read,
        "total_output_tokens": output,
        "request_throughput": completed / seconds,
        "request_goodput": one.metrics.get("goodput_req_s"),
        "output_throughput": output / seconds,
        "total_token_throughput": (read + output) / seconds if read is not None else None,
    }
    for name, metric in KEPT.items():
        found |= summary(name, values[name], one.metrics.get(metric))
    return found | (arrays(timed) if timed and all(row["ttft"] is not None for row in good) else {})


def summary(name: str, values: Sequence[float], kept: float | None) -> dict[str, float | None]:
    """Mean, median, spread and 99th percentile in milliseconds; without values, the median that was kept."""
    if not values:
        return {f"mean_{name}_ms": None, f"median_{name}_ms": None if kept is None else kept * 1e3}
    top = percentile(values, 0.99).value
    return {
        f"mean_{name}_ms": fmean(values) * 1e3,
        f"median_{name}_ms": median(values) * 1e3,
        f"std_{name}_ms": pstdev(values) * 1e3,
        f"p99_{name}_ms": None if top is None else top * 1e3,
    }


def arrays(timed: Sequence[Timed]) -> dict[str, list[Any]]:
    """The arrays by request; those that any request does not tell are left out."""
    found: dict[str, list[Any]] = {
        "output_lens": [row["output"] for row in timed],
        "ttfts": [row["ttft"] or 0.0 for row in timed],
    }
    if all(row["prompt"] is not None for row in timed):
        found["input_lens"] = [int(row["prompt"]) for row in timed]
    if all(row["gaps"] or row["output"] < 2 for row in timed):
        found["itls"] = [row["gaps"] for row in timed]
    if all(row["submit"] is not None for row in timed):
        found["start_times"] = [row["submit"] for row in timed]
    return found | {"errors": [row["error"] for row in timed]}


def date_of(utc: str) -> str | None:
    """A time as vLLM writes it, `20261201-100000`."""
    try:
        return f"{datetime.fromisoformat(utc):%Y%m%d-%H%M%S}"
    except ValueError:
        return None
