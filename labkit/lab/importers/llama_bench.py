"""llama-bench: rows of one test each, as JSON or as JSON lines; its raw samples become the repetitions."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from statistics import fmean
from typing import Any

from labkit.lab.importers.document import Document, Node
from labkit.lab.importers.registry import Contents, Measured, importer
from labkit.lab.importers.shared import common, split
from labkit.lab.importers.times import iso_time

NAME = "llama.cpp"
# What a row says of its test and of how it came out; all else is a setting.
TEST = (
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
    "samples_ns",
    "samples_ts",
)
BUILD = ("build_commit", "build_number")
MACHINE = ("cpu_info", "gpu_info", "backends")
MODEL = ("model_filename", "model_type", "model_size", "model_n_params")
RATES_AGREE = 0.005
WEIGHTS = re.compile(r"(?:^| )(?:all )?((?:B?F(?:16|32)|I?Q\d\w*|TQ\d_\d|MXFP4)(?: MoE)?)(?: - (\S+)(?: bpw)?)?$")
SIZES = {"small": "_s", "medium": "_m", "large": "_l"}


def is_llama_bench(document: Document) -> bool:
    """Whether the first row is a test of llama-bench."""
    records = document.records() if document.kind != "text" and not is_empty(document) else ()
    return bool(records) and records[0].has("n_prompt", "n_gen") and "samples_ns" in records[0].value


def is_empty(document: Document) -> bool:
    """Whether a JSON file holds neither an object nor a list."""
    return document.kind == "json" and not isinstance(document.root.value, dict | list)


@importer("llama-bench", "-o json or -o jsonl", is_llama_bench)
def read(document: Document) -> Contents:
    """Each row is a cell: prefill where it reads a prompt, decode where it emits. One sequence at a time: `n_batch` is
    how many rows of a prompt are handed over at once, and says nothing of streams."""
    rows = document.records()
    settings = [settings_of(row) for row in rows]
    shared, varied = split(settings)
    models = [model_of(row) for row in rows]
    several = any(one != models[0] for one in models)
    named = [{"model": one["name"]} if several and one and one.get("name") else {} for one in models]
    measured = [
        one for row, name, apart in zip(rows, named, varied, strict=True) for one in repetitions(row, name | apart)
    ]
    times = [time for row in rows if (time := iso_time(row.at("test_time"))) is not None]
    last = rows[-1].at("samples_ns").numbers(1.0)
    begin = min(times) if times else None
    seconds = (max(times) - begin).total_seconds() + sum(last) / 1e9 if begin is not None else None
    builds = {build_of(row) for row in rows} - {""}
    if len(builds) > 1:
        raise document.fault(
            f"holds rows of {len(builds)} builds ({', '.join(sorted(builds))}): import one build at a time"
        )
    device, note = device_of(rows)
    return Contents(
        measured=measured,
        device=device,
        model=None if several else models[0],
        processor=common([row.at("cpu_info").text() for row in rows]),
        started=begin,
        seconds=seconds,
        packages={NAME: builds.pop()} if builds else {},
        settings={"draft": 0, **shared},  # llama-bench has no speculation
        notes=[note] if note else [],
    )


def repetitions(row: Node, apart: Mapping[str, Any]) -> list[Measured]:
    """The samples of one row; `apart` is what tells it from other rows of the file besides its test."""
    prompt, generate = (row.at(name).whole(0, 1e9) or 0 for name in ("n_prompt", "n_gen"))
    depth = row.at("n_depth").whole(0, 1e9) or 0  # rows without it are of a time when every test began empty
    if prompt + generate == 0:
        raise row.fault("tests nothing: n_prompt and n_gen are both 0")
    times = row.at("samples_ns").numbers(1.0)
    if not times:
        raise row.at("samples_ns").fault("is empty, where a time for each repetition is expected")
    check_rates(row, prompt + generate, times)
    knobs: dict[str, Any] = {"runtime": NAME}
    if weights := weights_of(row.at("model_type").text()):
        knobs["quant"] = weights
    knobs |= {"phase": phase_of(prompt, generate), "streams": 1, "depth": depth}
    knobs |= {name: count for name, count in (("prompt", prompt), ("generate", generate)) if count}
    knobs |= apart
    at = iso_time(row.at("test_time"))
    return [Measured(knobs, metrics_of(prompt, generate, ns / 1e9), (), at) for ns in times]


def phase_of(prompt: int, generate: int) -> str:
    """What a test measures."""
    return "mixed" if prompt and generate else "prefill" if prompt else "decode"


def metrics_of(prompt: int, generate: int, seconds: float) -> dict[str, float]:
    """A repetition in our metrics; of one that reads and emits, tokens emitted over the whole."""
    if prompt and generate:
        return {"total_tok_s": generate / seconds, "makespan_s": seconds}
    if prompt:
        return {"prefill_tok_s": prompt / seconds}
    return {"decode_tok_s": generate / seconds, "step_ms": 1e3 * seconds / generate}


def check_rates(row: Node, tokens: int, times: Sequence[float]) -> None:
    """RunError where the rates a row gives are not its tokens over its times, or its averages not those of its samples."""
    rates = row.at("samples_ts").numbers()
    if rates and len(rates) != len(times):
        raise row.at("samples_ts").fault(f"has {len(rates)} rates for {len(times)} times in samples_ns")
    for i, (rate, ns) in enumerate(zip(rates, times, strict=False)):
        if not math.isclose(rate, tokens * 1e9 / ns, rel_tol=RATES_AGREE, abs_tol=1e-5):
            what = f"is {rate:g} tok/s, but {tokens} tokens in {ns:g} ns are {tokens * 1e9 / ns:g}"
            raise row.at("samples_ts").items()[i].fault(what)
    for name, values in (("avg_ns", times), ("avg_ts", [tokens * 1e9 / ns for ns in times])):
        mean, given = fmean(values), row.at(name).number()
        if given is not None and not math.isclose(given, mean, rel_tol=RATES_AGREE, abs_tol=1e-5):
            raise row.at(name).fault(f"is {given:g}, but its {len(values)} samples have a mean of {mean:g}")


def settings_of(row: Node) -> dict[str, Any]:
    """What was set for a row, in llama-bench's own names."""
    left = {*TEST, *BUILD, *MACHINE, *MODEL}
    found = {name: row.at(name) for name in row.value if name not in left} if isinstance(row.value, dict) else None
    if found is None:
        raise row.fault("is no object, where a row of llama-bench is expected")
    return {name: node.scalar() for name, node in found.items() if not isinstance(node.value, list | dict)}


def build_of(row: Node) -> str:
    """`0a1b2c3 (7231)`."""
    commit, number = row.at("build_commit").text(), row.at("build_number").whole()
    return " ".join(filter(None, [commit, f"({number})" if number else ""]))


def device_of(rows: Sequence[Node]) -> tuple[dict[str, Any] | None, str]:
    """(the device of all rows, why it is not known). A row that puts no layer on the card may have used either."""
    found = {(row.at("backends").text(), row.at("gpu_info").text(), row.at("cpu_info").text()) for row in rows}
    if len(found) > 1:
        return None, f"device: the file has rows of {len(found)} devices; import each by itself"
    backends, card, processor = found.pop()
    if backends and set(backends.replace(" ", "").split(",")) <= {"CPU", "BLAS"}:
        return ({"name": processor, "type": "cpu", "backends": backends} if processor else None), ""
    if any(row.at("n_gpu_layers").number(-1e9) == 0 for row in rows):
        return None, f"device: {card or 'a card'} was there, but rows put no layer on it (n_gpu_layers 0)"
    return ({"name": card} | ({"backends": backends} if backends else {}) if card else None), ""


def model_of(row: Node) -> dict[str, Any] | None:
    """The model as a row tells it; its file by name alone."""
    path, kind = row.at("model_filename").text(), row.at("model_type").text()
    file = PureWindowsPath(path).name if path else None  # it takes both kinds of slashes
    numbers = {"size_bytes": row.at("model_size").whole(), "parameters": row.at("model_n_params").whole()}
    name = file.removesuffix(".gguf") if file else kind
    told = {"name": name, "file": file, "type": kind, **numbers}
    return {key: value for key, value in told.items() if value} or None


def weights_of(kind: str | None) -> str | None:
    """The type of the weights in `llama 7B Q4_K - Medium`: `q4_k_m`; None where it is not told."""
    found = WEIGHTS.search((kind or "").removesuffix(" (guessed)").strip())
    if not found:
        return None
    return found[1].lower().replace(" ", "_") + SIZES.get((found[2] or "").lower(), "")
