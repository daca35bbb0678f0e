"""A run folder as evidence: its cells with their repetitions, requests and telemetry, and what its device was measured at."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from labkit.audit.claims import format_bytes, operand_bits
from labkit.audit.devices import Limits, find_device, read_devices
from labkit.audit.evidence import Cache, Evidence, Observation, Phase, Request, Sample
from labkit.audit.run_files import read_lines, read_telemetry, read_texts
from labkit.errors import RunError
from labkit.lab.lever_checks import witness_of
from labkit.lab.levers import known_levers
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import cell_words, read_plan
from labkit.lab.record import IMPORTED, RunRecord, canonical_cell, read_record

STREAMS = ("streams", "width", "batch", "concurrency")
PROMPTS, DEPTHS, OUTPUTS = ("prompt", "prompt_tokens"), ("depth",), ("generate", "tokens", "max_tokens")
BACKENDS, QUANTS = ("runtime", "backend"), ("quant", "quantisation")
TAKEN = (*STREAMS, *PROMPTS, *DEPTHS, *OUTPUTS, *BACKENDS, *QUANTS, "phase", "slots", "model")
READS = re.compile(r"(?:read_bandwidth:|reads) (\d+(?:\.\d+)?) GB/s")
MULTIPLIES = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?) TFLOP/s (float16|float32|int8)")


def read_run(folder: Path, root: Path | None = None) -> Evidence:
    """The run in `folder` as evidence. `root` is the lab whose own devices count too. RunError, or another LabError, for
    a folder that holds no readable run."""
    record = read_record(folder)
    rows = read_rows(folder / "measurements.csv")
    plan = read_plan(folder / "plan.json") if (folder / "plan.json").is_file() else None
    requests = tuple(read_requests(folder / "requests.jsonl"))
    device = run_device(record, read_devices(root))
    measured = measured_rates(record)
    by_cell: dict[str, list[Measurement]] = {}
    for row in rows:
        if not math.isfinite(row.value):
            raise RunError(f"measurements.csv has {row.metric} = {row.value} at {row.cell[:60]}: a sample is finite")
        by_cell.setdefault(row.cell, []).append(row)
    asked: dict[str, list[Request]] = {}
    for one in requests:
        asked.setdefault(one.subject, []).append(one)
    varied = set(plan.knobs) if plan else {name for cell in by_cell for name in load_cell(cell)}
    levers = known_levers(root)
    witnesses = {name: witness_of(name, record, folder, levers) for name in sorted(varied)}
    observations = tuple(
        replace(
            observe(record, cell, found, tuple(asked.get(subject_of(cell), ())), device, measured),
            witness={name: reading.get(cell) for name, reading in witnesses.items() if by_cells(reading, by_cell)},
        )
        for cell, found in by_cell.items()
    )
    return Evidence(
        kind="run",
        name=record.id,
        observations=observations,
        texts=tuple(read_texts(folder)),
        record=record,
        plan=plan,
        folder=folder,
        requests=requests,
        telemetry=tuple(read_telemetry(folder / "telemetry.csv")),
        operations=tuple(read_lines(folder / "ops.jsonl")),
        levers=tuple(sorted(varied)),
        witnesses=witnesses,
    )


def by_cells(reading: Any, cells: Mapping[str, Any]) -> bool:
    """Whether a witness was read cell by cell."""
    return isinstance(reading, Mapping) and bool(reading) and set(reading) <= set(cells)


def observe(
    record: RunRecord, cell: str, rows: list[Measurement], requests: tuple[Request, ...], device: Limits | None,
    measured: tuple[float | None, Mapping[str, float]],
) -> Observation:  # fmt: skip
    """One cell of a run as evidence."""
    knobs = load_cell(cell)
    samples: dict[str, list[Sample]] = {}
    for row in rows:
        samples.setdefault(row.metric, []).append(Sample(row.block, row.order, row.value))
    metrics = {name: median(sample.value for sample in found) for name, found in samples.items()}
    quantisation = text_of(knobs, QUANTS, record.parameters) or only_type(record.model)
    settings = {name: value for name, value in knobs.items() if name not in TAKEN}
    card = (record.device or {}).get("card")
    theirs = record.experiment == IMPORTED  # of another tool: what its file and its importer do not say is not known
    told = record.parameters | knobs if theirs else knobs
    cap = number_in(card, ("power_limit_w",)) if isinstance(card, Mapping) else None
    return Observation(
        subject=cell_words(knobs),
        group=record.id,
        metrics=metrics,
        samples={name: tuple(found) for name, found in samples.items()},
        phase=phase_of(told, metrics),
        device=device,
        device_name=str((record.device or {}).get("name") or "") or None,
        model=text_of(knobs, ("model",), {}) or (record.model or {}).get("name"),
        quantisation=quantisation,
        bytes_per_weight=format_bytes(quantisation),
        active_params=number_in(told, ("active_params",)),
        pass_bytes=pass_bytes_of(samples),
        flops_per_token=flops_per_token_of(samples),
        operand_bits=operand_bits(quantisation),
        backend=text_of(told, BACKENDS, {}) or (None if theirs else "labkit"),
        streams=number_in(told, STREAMS) or (None if theirs else counted_streams(requests)),
        slots=number_in(knobs, ("slots",)) or number_in(record.parameters, ("slots",)),
        tokens_per_pass_max=tokens_per_pass(record, knobs),
        depth=number_in(told, DEPTHS),
        prompt_tokens=number_in(told, PROMPTS),
        output_tokens=number_in(knobs, OUTPUTS) or number_in(record.parameters, OUTPUTS),
        cache=cache_of(requests, text_of(knobs, ("cache",), record.parameters)),
        memory_mhz=metrics.get("memory_mhz"),
        core_mhz=metrics.get("core_mhz"),
        power_cap_w=number_in(told, ("power_cap_w",)) if cap is None else cap,
        power_w=metrics.get("power_w"),
        measured_gb_s=measured[0],
        measured_tflop_s=fitting_rates(measured[1], operand_bits(quantisation)),
        repetitions=max((len(found) for found in samples.values()), default=0),
        settings=settings,
        knobs=knobs,
        requests=requests,
        source=str(record.parameters.get("format") or IMPORTED) if theirs else "this lab",
        date=record.started,
    )


def subject_of(cell: str) -> str:
    """How notices name a cell: its knobs in words, in the order of its canonical JSON."""
    return cell_words(load_cell(cell))


def load_cell(cell: str) -> dict[str, Any]:
    """A cell's knobs. RunError when its text is not a JSON object."""
    try:
        found = json.loads(cell)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunError(f"measurements.csv has the cell {cell[:60]!r}, which is not a JSON object")
    return found


def phase_of(knobs: Mapping[str, Any], metrics: Mapping[str, float]) -> Phase | None:
    """What the cell measured: as its knob says, else by its metrics."""
    if "operation" in knobs or "kernel_us" in metrics:
        return "operation"
    if knobs.get("phase") == "prefill":
        return "prefill"
    if knobs.get("phase") == "mixed":
        return "mixed"
    if knobs.get("phase") == "decode" or {"decode_tok_s", "stream_tok_s", "tpot_s"} & set(metrics):
        return "decode"
    return "prefill" if {"prefill_tok_s", "ttft_s"} & set(metrics) else None


def pass_bytes_of(samples: Mapping[str, list[Sample]]) -> float | None:
    """Bytes a step read by the engine's own account: achieved GB/s times the step's time, of the same repetition."""
    return median_product(samples, "achieved_gb_s", "step_ms", 1e6)


def flops_per_token_of(samples: Mapping[str, list[Sample]]) -> float | None:
    """Operations a token took by the engine's own account: achieved GFLOP/s over its rate, of the same repetition."""
    for rate in ("prefill_tok_s", "decode_tok_s"):
        inverse = {name: found for name, found in samples.items() if name == "achieved_gflop_s"}
        inverse[rate] = [Sample(s.block, s.order, 1 / s.value) for s in samples.get(rate, []) if s.value > 0]
        if (found := median_product(inverse, "achieved_gflop_s", rate, 1e9)) is not None:
            return found
    return None


def median_product(samples: Mapping[str, list[Sample]], one: str, other: str, scale: float) -> float | None:
    """The median over blocks of the product of two metrics; None where they are not measured together."""
    second = {(sample.block, sample.order): sample.value for sample in samples.get(other, ())}
    products = [
        sample.value * second[sample.block, sample.order] * scale
        for sample in samples.get(one, ())
        if (sample.block, sample.order) in second
    ]
    return median(products) if products else None


def run_device(record: RunRecord, devices: Mapping[str, Limits]) -> Limits | None:
    """The limits of the device a run was made on; a software device's are its processor's."""
    device = record.device or {}
    vendor, model = device.get("vendor_id"), device.get("device_id")
    if "cpu" in str(device.get("type", "")).lower():
        return find_device(record.host.cpu, devices)
    numbers = (vendor, model) if isinstance(vendor, int) and isinstance(model, int) else (None, None)
    return find_device(str(device.get("name") or ""), devices, *numbers)


def measured_rates(record: RunRecord) -> tuple[float | None, dict[str, float]]:
    """The device's own ceilings as the run noted them: GB/s of reads, and TFLOP/s by kind of product."""
    reads: float | None = None
    rates: dict[str, float] = {}
    for note in record.notes:
        if note.startswith(("read_bandwidth:", "ceilings:")):
            found = READS.search(note)
            reads = float(found[1]) if found else reads
            rates |= {kind: float(rate) for rate, kind in MULTIPLIES.findall(note)}
    return reads, rates


def fitting_rates(rates: Mapping[str, float], operand_bits: int | None) -> dict[str, float]:
    """The measured rates of units whose operands are wide enough."""
    bits = {"float32": 32, "float16": 16, "int8": 8}
    return {kind: rate for kind, rate in rates.items() if bits[kind] >= (operand_bits or 0)}


def tokens_per_pass(record: RunRecord, knobs: Mapping[str, Any]) -> float | None:
    """Most tokens a stream gets from one pass: one more than are drafted; one where nothing says that any are, but not of
    an imported run, whose tool may have drafted without saying so."""
    names = ("draft", "drafts", "k", "speculation")
    given = [value for name in names for value in (knobs.get(name), record.parameters.get(name)) if value is not None]
    if not given:
        return None if record.experiment == IMPORTED else 1.0
    numbers = [float(value) for value in given if isinstance(value, int | float) and not isinstance(value, bool)]
    return max(numbers) + 1 if numbers and len(numbers) == len(given) else None


def cache_of(requests: tuple[Request, ...], stated: str | None = None) -> Cache | None:
    """Whether a cell, its run (`stated`) or its requests declare it warm or cold; None where nothing is declared."""
    declared = {stated} if stated in ("warm", "cold") else {one.text("cache") for one in requests}
    return "warm" if declared == {"warm"} else "cold" if declared == {"cold"} else None


def counted_streams(requests: tuple[Request, ...]) -> float | None:
    """Requests of a cell in one block; None where blocks differ, and of an open load, which sends its requests at moments
    of its own (`due_s`), whatever is open then."""
    if any(one.number("due_s") is not None for one in requests):
        return None
    by_block: dict[int, int] = {}
    for one in requests:
        by_block[one.block] = by_block.get(one.block, 0) + 1
    counts = set(by_block.values())
    return float(counts.pop()) if len(counts) == 1 else None


def only_type(model: Mapping[str, Any] | None) -> str | None:
    """The one type of a model's weights, small float32 vectors left out; None for a mixture."""
    types = (model or {}).get("bytes_by_type")
    if not isinstance(types, Mapping):
        return None
    sizes = {str(name): size for name, size in types.items() if isinstance(size, int | float)}
    large = [name for name, size in sizes.items() if size > 0.01 * sum(sizes.values())]
    return large[0] if len(large) == 1 else None


def text_of(knobs: Mapping[str, Any], names: tuple[str, ...], parameters: Mapping[str, Any]) -> str | None:
    """A text by one of its names, in the cell or else in the parameters."""
    values = [where.get(name) for where in (knobs, parameters) for name in names]
    return next((value for value in values if isinstance(value, str) and value), None)


def number_in(knobs: Any, names: tuple[str, ...]) -> float | None:
    """A number by one of its names."""
    values = [knobs.get(name) for name in names]
    return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


def read_requests(path: Path) -> Iterator[Request]:
    """The rows of requests.jsonl with the cell they belong to."""
    for row in read_lines(path):
        cell, block = row.get("cell"), row.get("block")
        if isinstance(cell, dict) and isinstance(block, int):
            yield Request(subject_of(canonical_cell(cell)), block, row)
