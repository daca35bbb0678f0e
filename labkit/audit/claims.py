"""Published claims: the rows of a CSV as evidence, each in its metric's own unit, what it does not say left unknown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.audit.claims_file import Places, half_digit, number_of, read_table
from labkit.audit.devices import Limits, find_device, read_devices
from labkit.audit.evidence import Cache, Evidence, Observation, Phase
from labkit.audit.units import factor_to, unit_of
from labkit.errors import ParameterError
from labkit.measure.metrics import METRICS

MOST_ID = 200
TOKENS = {"tok": 1.0, "token": 1.0, "tokens": 1.0, "k": 1e3}
COUNTS = {"b": 1e9, "m": 1e6, "bn": 1e9}
# Columns that hold a number, with the units it may be followed by; the first of `COLUMNS` that are needed.
NUMBERS: dict[str, dict[str, float]] = {
    "bytes_per_weight": {"b": 1.0, "bytes": 1.0},
    "active_params": COUNTS,
    "streams": {"streams": 1.0, "stream": 1.0, "users": 1.0, "requests": 1.0, "columns": 1.0},
    "slots": {"slots": 1.0, "slot": 1.0},
    "tokens_per_pass_max": TOKENS,
    "depth": TOKENS,
    "output_tokens": TOKENS,
    "memory_mhz": {"mhz": 1.0, "ghz": 1e3},
    "power_cap_w": {"w": 1.0},
    "repetitions": {"x": 1.0},
    "prompt_tokens": TOKENS,
    "power_w": {"w": 1.0},
}
LEAST_PARAMS = 1e5
UNSTATED = "leave it empty where it is not known"
NEVER_0 = {
    "streams": f"a count; {UNSTATED}",
    "tokens_per_pass_max": f"a count; {UNSTATED}",
    "slots": f"a count; {UNSTATED}",
    "bytes_per_weight": f"a size; write 2 for FP16, 0.5 for 4 bits, or {UNSTATED}",
    "active_params": f"a count of weights; write 7e9 or 7B, or {UNSTATED}",
    "memory_mhz": f"a clock; {UNSTATED}",
    "power_cap_w": f"a cap; {UNSTATED}",
}
REQUIRED = {  # columns that each file has, and what they say
    "source": "who published it, and where",
    "date": "when, as 2026-08-03",
    "device": "the card, by a name of data/devices.toml",
    "model": "the model",
    "quantisation": "the type of its weights: FP16, Q4_K_M, W4A8",
    "bytes_per_weight": "bytes a weight takes in memory: 2 for FP16, 0.5 for 4 bits",
    "active_params": "weights that a token passes through: active experts only, an embedding that is looked up left out",
    "backend": "the program that ran it",
    "metric": "the id of a registered metric, or a usual name of one",
    "streams": "requests worked on at once",
    "slots": "places that the server had for them",
    "tokens_per_pass_max": "the most tokens that one pass over the weights gives a stream: 1 without drafts",
    "depth": "tokens in the cache before what was measured; of a prefill the prompt's length",
    "output_tokens": "tokens each stream emitted",
    "cache": "whether the prompt was found in a cache (warm) or read (cold)",
    "memory_mhz": "the memory's clock",
    "power_cap_w": "the cap of power",
    "repetitions": "how often it was measured",
    "value": "the number",
    "unit": "its unit",
}
OPTIONAL = {
    "id": "a name of the row, its own",
    "group": "the sweep that it is a rung of",
    "prompt_tokens": "tokens of the prompt",
    "power_w": "power while it was measured",
    "settings": "what else was set, as ub=512; draft=mtp",
    "note": "what the source says beside it; arithmetic in it is checked",
}
SAME_COLUMN = {
    "quant": "quantisation", "quantization": "quantisation", "active_parameters": "active_params", "batch": "streams",
    "concurrency": "streams", "n_streams": "streams", "n_slots": "slots", "tokens_per_pass": "tokens_per_pass_max",
    "max_tokens_per_pass": "tokens_per_pass_max", "depth_prompt": "depth", "depth_tokens": "depth",
    "output_length": "output_tokens", "output_len": "output_tokens", "output": "output_tokens", "cache_state": "cache",
    "memory_clock": "memory_mhz", "memory_clock_mhz": "memory_mhz", "mclk": "memory_mhz", "mclk_mhz": "memory_mhz",
    "power_cap": "power_cap_w", "cap_w": "power_cap_w", "reps": "repetitions", "axis": "metric", "notes": "note",
    "conditions": "note", "text": "note", "kind": "group", "sweep": "group", "prompt": "prompt_tokens",
    "prompt_length": "prompt_tokens", "bytes_weight": "bytes_per_weight", "params_active": "active_params",
}  # fmt: skip
SAME_METRIC = {
    "decode": "decode_tok_s", "decode_aggregate": "decode_tok_s", "aggregate": "decode_tok_s", "tg": "decode_tok_s",
    "aggregate_tok_s": "decode_tok_s", "throughput": "decode_tok_s", "generation": "decode_tok_s",
    "output_tok_s": "decode_tok_s", "per_stream": "stream_tok_s", "decode_per_stream": "stream_tok_s",
    "per_stream_tok_s": "stream_tok_s", "per_stream_min": "stream_min_tok_s", "per_stream_max": "stream_max_tok_s",
    "prefill": "prefill_tok_s", "pp": "prefill_tok_s", "prompt_processing": "prefill_tok_s", "ttft": "ttft_s",
    "tpot": "tpot_s", "itl": "itl_s", "e2e": "e2e_s", "latency": "e2e_s", "wall": "makespan_s", "wall_s": "makespan_s",
    "makespan": "makespan_s", "step": "step_ms", "ms_per_step": "step_ms", "bandwidth": "achieved_gb_s",
    "matvec_bandwidth": "achieved_gb_s", "gemm_rate": "achieved_gflop_s", "matrix_rate": "achieved_gflop_s",
    "flops": "achieved_gflop_s", "power": "power_w", "tok_per_step": "tokens_per_step", "accept": "acceptance",
    "server_decode": "server_decode_tok_s", "server_prefill": "server_prefill_tok_s", "total": "total_tok_s",
}  # fmt: skip
NUMBERED = re.compile(r"(pp|tg)\d+")
PHASES: dict[str, Phase] = {
    "decode_tok_s": "decode", "stream_tok_s": "decode", "stream_min_tok_s": "decode", "stream_max_tok_s": "decode",
    "server_decode_tok_s": "decode", "tpot_s": "decode", "itl_s": "decode", "step_ms": "decode", "total_tok_s": "mixed",
    "makespan_s": "mixed",
    "prefill_tok_s": "prefill", "server_prefill_tok_s": "prefill", "ttft_s": "prefill", "achieved_gb_s": "operation",
    "achieved_gflop_s": "operation",
}  # fmt: skip
# Metrics that people mean differently, with what a claim would have to say: tools count prompts in a total, or do not.
UNCLEAR = {"total_tok_s": "which tokens are counted (decode_tok_s counts output alone)"}
# Bytes a weight of a format takes at the least, by the format's own definition.
FORMATS = {
    "f32": 4.0, "fp32": 4.0, "f16": 2.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "q8_0": 34 / 32,
    "q6_k": 210 / 256, "q5_k": 176 / 256, "q4_k": 144 / 256, "q5_0": 22 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32,
    "mxfp4": 17 / 32,
}  # fmt: skip
ACTIVATIONS = re.compile(r"w\d+a(\d+)", re.IGNORECASE)
WEIGHTS_ALONE = re.compile(r"\b(i?q\d|awq|gptq|exl\d|hqq|nf4)", re.IGNORECASE)  # formats that leave activations wider
WARM = re.compile(r"\b(warm|hit|hits|shared|cached|reused)\b", re.IGNORECASE)
COLD = re.compile(r"\b(cold|empty|miss|off|disabled|none|no|fresh|unique)\b", re.IGNORECASE)
UNSAID = re.compile(r"|[-–?]|unknown|n/?a|(prefix )?(cache|caching )?(on|enabled)", re.IGNORECASE)
SUFFIX = re.compile(r"_(ms|s|us|tok_s|t_s|tps|tokens_s|gb_s|tflops?|tflop_s|gflop_s|w)$")
PER_STREAM = re.compile(r"\s*(/|per|a)\s*(stream|user|request|req|sequence|seq)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Claim:
    """One row: its texts by column, its numbers (None where not known), and its value in its metric's own unit."""

    id: str
    row: int
    texts: Mapping[str, str]
    numbers: Mapping[str, float | None]
    metric: str
    value: float
    rounding: float
    cache: Cache | None

    @property
    def group(self) -> str:
        """The sweep it is a rung of: as named, else all of one source, device, model, weights and backend."""
        named = self.texts.get("group", "")
        return named or " | ".join(
            self.texts.get(name, "") for name in ("source", "date", "device", "model", "quantisation", "backend")
        )

    def observation(self, devices: Mapping[str, Limits]) -> Observation:
        """The row as evidence."""
        known = {name: value for name, value in self.numbers.items() if value is not None}
        phase = PHASES.get(self.metric)
        depth, prompt = known.get("depth"), known.get("prompt_tokens")
        if phase == "prefill" and prompt is None:
            depth, prompt = None, depth  # of a prompt, the depth is its length
        words = {name: self.texts.get(name) or None for name in ("device", "model", "quantisation", "backend")}
        repetitions = known.get("repetitions")
        return Observation(
            subject=self.id,
            group=self.group,
            metrics={self.metric: self.value},
            rounding={self.metric: self.rounding},
            phase=phase,
            device=find_device(words["device"], devices),
            device_name=words["device"],
            model=words["model"],
            quantisation=words["quantisation"],
            bytes_per_weight=known.get("bytes_per_weight", format_bytes(words["quantisation"])),
            active_params=known.get("active_params"),
            operand_bits=operand_bits(words["quantisation"]),
            backend=words["backend"],
            streams=known.get("streams"),
            slots=known.get("slots"),
            tokens_per_pass_max=known.get("tokens_per_pass_max"),
            depth=depth,
            prompt_tokens=prompt,
            output_tokens=known.get("output_tokens"),
            cache=self.cache,
            memory_mhz=known.get("memory_mhz"),
            power_cap_w=known.get("power_cap_w"),
            power_w=known.get("power_w", self.value if self.metric == "power_w" else None),
            repetitions=None if repetitions is None else int(repetitions),
            settings=settings_of(self.texts.get("settings", "")),
            unclear={name: lack for name, lack in UNCLEAR.items() if name == self.metric},
            text=self.texts.get("note", ""),
            source=self.texts["source"],
            date=self.texts["date"],
        )


@dataclass(frozen=True)
class Claims:
    """A file of claims; `unread` are columns that nothing here knows."""

    path: Path
    rows: tuple[Claim, ...]
    unread: tuple[str, ...]

    def evidence(self, root: Path | None = None) -> Evidence:
        """All rows as evidence, their devices' limits from labkit's file and the lab's own."""
        devices = read_devices(root)
        return Evidence(
            kind="claims",
            name=self.path.name,
            observations=tuple(row.observation(devices) for row in self.rows),
            texts=tuple((row.id, row.texts["note"]) for row in self.rows if row.texts.get("note")),
        )


def read_claims(path: Path) -> Claims:
    """The claims in a CSV. ParameterError, one line that names row and column, for a file with missing columns, a value
    that is not a number, an unknown unit, an id that is there twice; nothing is changed."""
    header, table = read_table(path)
    places = Places(path)
    places.columns = header
    names = [SAME_COLUMN.get(plain := column_name(written), plain) for written in header]
    if repeated := next((name for index, name in enumerate(names) if name in names[:index]), None):
        both = " and ".join(written for written, name in zip(header, names, strict=True) if name == repeated)
        raise places.fault(0, 1, both, f"they mean the same, {repeated}; keep one of them")
    if missing := [name for name in REQUIRED if name not in names]:
        raise places.fault(
            0, 1, ", ".join(missing), f"missing; the columns are {', '.join((*list(OPTIONAL)[:2], *REQUIRED))}"
        )
    claims: list[Claim] = []
    seen: dict[str, int] = {}
    for number, (line, cells) in enumerate(table, 1):
        claim = claim_of(
            places, number, line, dict(zip(names, cells, strict=True)), dict(zip(names, header, strict=True))
        )
        if len(claim.id) > MOST_ID:
            raise places.fault(number, line, "id", f"the id has {len(claim.id)} characters, of {MOST_ID} at the most")
        if claim.id in seen:
            what = f"{claim.id!r} is the id of row {seen[claim.id]} already"
            raise places.fault(number, line, "id", what)
        seen[claim.id] = number
        claims.append(claim)
    unread = tuple(w for w, name in zip(header, names, strict=True) if name not in (*REQUIRED, *OPTIONAL))
    return Claims(path, tuple(claims), unread)


def claim_of(places: Places, row: int, line: int, cells: Mapping[str, str], written: Mapping[str, str]) -> Claim:
    """One row, checked. ParameterError names it and the column that is wrong."""

    def fault(column: str, error: str) -> ParameterError:
        return places.fault(row, line, written.get(column, column), error)

    def read(column: str, units: dict[str, float]) -> float | None:
        try:
            return number_of(cells.get(column, ""), units)
        except ParameterError as error:
            raise fault(column, str(error)) from None

    for column in ("source", "metric"):
        if not cells[column]:
            raise fault(column, "it is empty; a claim says who made it and what was measured")
    numbers = {name: read(name, units) for name, units in NUMBERS.items()}
    for column, what in NEVER_0.items():
        if numbers[column] == 0:
            raise fault(column, f"0 is not {what}")
    active = numbers["active_params"]
    if active is not None and active < LEAST_PARAMS:
        meant = f"if {active:g} billion are meant, write {active:g}e9 or {active:g}B"
        raise fault("active_params", f"{cells['active_params']!r} is no model's count of weights; {meant}")
    value = read("value", {})
    if value is None:
        raise fault("value", f"{cells['value']!r} is no value; a claim without one is not a claim")
    metric, unit = metric_name(cells["metric"]), PER_STREAM.sub("", cells["unit"])
    if unit != cells["unit"] and metric == "decode_tok_s":
        metric = "stream_tok_s"
    try:
        factor = factor_to(metric, unit_of(unit))
    except ParameterError as error:
        raise fault("unit", str(error)) from None
    if value == 0 and metric in METRICS and (METRICS[metric].timed or metric == "power_w"):
        raise fault(
            "value", f"0 is no {metric}: no work takes no time or power; leave the row out where it was not measured"
        )
    try:
        state = cache_state(cells["cache"])
    except ParameterError as error:
        raise fault("cache", str(error)) from None
    return Claim(
        id=cells.get("id") or f"row {row}",
        row=row,
        texts=dict(cells),
        numbers=numbers,
        metric=metric,
        value=value * factor,
        rounding=half_digit(cells["value"]) * factor,
        cache=state,
    )


def column_name(written: str) -> str:
    """A column's name in small letters, words joined by `_`, without a unit in brackets."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"[(\[].*?[)\]]", "", written.lower())).strip("_")


def metric_name(written: str) -> str:
    """The registered metric that a name stands for, or the name itself where none does."""
    name = re.sub(r"[^a-z0-9]+", "_", written.lower()).strip("_")
    if numbered := NUMBERED.fullmatch(name):
        return SAME_METRIC[numbered[1]]
    if name.startswith("decode_spec"):
        return "decode_tok_s"
    if name in METRICS or name in SAME_METRIC:
        return SAME_METRIC.get(name, name)
    return SAME_METRIC.get(SUFFIX.sub("", name), name)


def cache_state(written: str) -> Cache | None:
    """Whether a prompt was read anew or found in a cache; None where it is not said. That a cache is on says nothing of
    what it held. ParameterError for words that are no state."""
    if UNSAID.fullmatch(written.strip()):
        return None
    warm, cold = WARM.search(written), COLD.search(written)
    if bool(warm) == bool(cold):
        raise ParameterError(f"{written[:40]!r} is not a state of a cache; use cold or warm, or leave it empty")
    return "warm" if warm else "cold"


def format_bytes(quantisation: str | None) -> float | None:
    """Bytes a weight takes at the least by its format's definition; None for a mixture, or a name that is no format."""
    name = (quantisation or "").lower().replace("-", "_").removesuffix("_m").removesuffix("_s")
    return FORMATS.get(name)


def operand_bits(quantisation: str | None) -> int | None:
    """How many bits the operands of the products have at the least: as `W4A8` says of the activations, 8 for formats of
    weights alone (whose activations are int8 at the narrowest), else as wide as weights of 16 and 8 bits are; None where
    it is not known."""
    name = (quantisation or "").lower()
    if stated := ACTIVATIONS.search(name):
        return int(stated[1])
    each = format_bytes(quantisation)
    if each is not None and each >= 1:
        return 16 if each >= 2 else 8
    return 8 if WEIGHTS_ALONE.search(name) else None


def settings_of(text: str) -> dict[str, Any]:
    """Settings written as `ub=512; draft=mtp`."""
    pairs = [part.partition("=") for part in text.split(";") if "=" in part]
    return {name.strip(): value.strip() for name, _, value in pairs}
