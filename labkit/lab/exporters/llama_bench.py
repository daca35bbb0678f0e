"""A run as rows of llama-bench: a test each, with its raw samples."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from labkit.lab.exporters.registry import Repetition, Rows, Stored, exporter
from labkit.lab.importers.llama_bench import NAME

OWN = ("runtime", "quant", "model", "phase", "streams", "depth", "prompt", "generate")
NOT_THEIRS = ("format", "draft")
LENGTHS = ("generate", "tokens", "max_tokens")


@exporter("llama-bench")
def rows(stored: Stored) -> Rows:
    """A row a cell that reads or emits with one sequence; cells of several have no row there. What the run does not say
    is null."""
    made: list[dict[str, Any]] = []
    left_out: list[str] = []
    for cell in stored.cells():
        test = test_of(cell[0], stored.record.parameters)
        named = json.dumps(cell[0].knobs, ensure_ascii=False)
        if isinstance(test, str):
            left_out.append(f"{named}: {test}")
            continue
        prompt, generate, depth, metric = test
        counted = generate if metric in ("decode_tok_s", "total_tok_s") else prompt
        rates = [one.metrics[metric] for one in cell if one.metrics.get(metric, 0.0) > 0]
        if not rates:
            left_out.append(f"{named}: it has no rate above 0")
            continue
        made.append(row_of(stored, cell[0], (prompt, generate, depth), [round(counted / rate * 1e9) for rate in rates]))
    return made, left_out


def test_of(one: Repetition, parameters: Mapping[str, Any]) -> tuple[int, int, int, str] | str:
    """(n_prompt, n_gen, n_depth, the metric of its rate), or why it has no row."""
    streams, prompt = one.number("streams", "width", "batch", "concurrency"), one.number("prompt", "prompt_tokens")
    emitted = one.number(*LENGTHS) or next((v for name in LENGTHS if isinstance(v := parameters.get(name), int)), None)
    if streams not in (None, 1.0):
        return f"it has {streams:g} streams, and a test has one"
    if "prefill_tok_s" in one.metrics:
        return (
            (int(prompt), 0, int(one.number("depth") or 0), "prefill_tok_s")
            if prompt
            else "its prompt's length is unknown"
        )
    if "decode_tok_s" in one.metrics:
        depth = one.number("depth")
        depth = prompt or 0.0 if depth is None else depth  # a bench's prompt is what its decoding stands behind
        return (0, int(emitted), int(depth), "decode_tok_s") if emitted else "how many tokens it emitted is unknown"
    if "total_tok_s" in one.metrics and prompt and emitted and one.number("request_rate") is None and not one.requests:
        return int(prompt), int(emitted), int(one.number("depth") or 0), "total_tok_s"
    return "it has neither a rate of reading nor one of emitting"


def row_of(stored: Stored, one: Repetition, test: tuple[int, int, int], samples: Sequence[int]) -> dict[str, Any]:
    """A row in llama-bench's names."""
    record = stored.record
    device, model = record.device or {}, record.model or {}
    rates = [(test[0] + test[1]) * 1e9 / ns for ns in samples]
    is_cpu = "cpu" in str(device.get("type", "")).lower()
    commit, number = build_of(record.packages.get(NAME))
    settings = {name: value for name, value in record.parameters.items() if name not in NOT_THEIRS}
    settings |= {name: value for name, value in one.knobs.items() if name not in OWN}
    return {
        "build_commit": commit,
        "build_number": number,
        "cpu_info": record.host.cpu if record.host.cpu != "unknown" else None,
        "gpu_info": None if is_cpu else device.get("name"),
        "backends": device.get("backends"),
        "model_filename": model.get("file") or one.knobs.get("model") or model.get("name"),
        "model_type": model.get("type") or one.knobs.get("quant"),
        "model_size": model.get("size_bytes"),
        "model_n_params": model.get("parameters"),
        **{name: value for name, value in settings.items() if isinstance(value, bool | int | float | str)},
        "n_prompt": test[0],
        "n_gen": test[1],
        "n_depth": test[2],
        "test_time": one.utc or None,
        "avg_ns": round(fmean(samples)),
        "stddev_ns": round(stdev(samples)) if len(samples) > 1 else 0,
        "avg_ts": fmean(rates),
        "stddev_ts": stdev(rates) if len(rates) > 1 else 0.0,
        "samples_ns": list(samples),
        "samples_ts": rates,
    }


def build_of(version: str | None) -> tuple[str | None, int | None]:
    """`0a1b2c3 (7231)` as commit and number."""
    commit, _, number = (version or "").partition(" (")
    digits = number.rstrip(")")
    return commit or None, int(digits) if digits.isdigit() else None
