"""Simulated honest records: runs and claims whose numbers come from a physical model of a device, with noise.

The truth is: a step reads its weights once and each stream's cache, at a share of the memory's rate, and multiplies at a
share of a unit's; a clock adds noise, a session may drift, and nothing else happens.
"""

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.lab.measurements import COLUMNS
from labkit.lab.plan import Plan, Rule
from labkit.lab.record import RunRecord, canonical_cell
from labkit.measure.telemetry import COLUMNS as TELEMETRY

# name, PCI numbers, GB/s, 10^12 operations a second of the unit used, W, memory MHz
CARDS = (
    ("AMD Radeon AI PRO R9700 (RADV GFX1201)", 0x1002, 0x7551, 640.0, 191.0, 300.0, 1258.0),
    ("AMD Radeon RX 9070 XT (RADV GFX1201)", 0x1002, 0x7550, 640.0, 195.0, 304.0, 1258.0),
    ("NVIDIA H200", 0x10DE, 0x2335, 4800.0, 989.5, 700.0, 3201.0),
    ("A card nobody declared", 0x8086, 0x0001, 456.0, 100.0, 190.0, 1187.0),
)
WORDS = (
    "sea",
    "rain",
    "the",
    "of",
    "a",
    "light",
    "stone",
    "under",
    "every",
    "house",
    "slow",
    "river",
    "and",
    "it",
    "was",
)


@dataclass(frozen=True)
class Truth:
    """What a simulated record is of: the card, the model, how well the software uses both, and how noisy the clock is."""

    card: tuple[Any, ...]
    weights: float  # parameters a token multiplies
    bytes_per_weight: float
    cache_bytes: float  # bytes of cache a position holds
    memory_share: float
    rate_share: float
    overhead_s: float
    row_s: float  # a step's time for each further stream, beyond its cache
    noise: float
    drift: float  # over the session
    prompt: int
    tokens: int

    def step_s(self, streams: int, depth: float) -> float:
        """Seconds of a step of `streams` streams at `depth` positions."""
        read = self.weights * self.bytes_per_weight + streams * depth * self.cache_bytes
        multiplied = 2 * self.weights * streams / (self.rate_share * self.card[4] * 1e12)
        return max(read / (self.memory_share * self.card[3] * 1e9), multiplied) + self.overhead_s + streams * self.row_s

    def prompt_s(self, tokens: int) -> float:
        """Seconds to read a prompt: the products, attention that grows with its square, and what it costs to begin."""
        products = 2 * self.weights * tokens + 4.0e5 * tokens * tokens / 2
        return products / (self.rate_share * self.card[4] * 1e12) + 20 * self.overhead_s


def draw_truth(rng: np.random.Generator) -> Truth:
    """A card, a model of 1 to 30 10⁹ weights, and software from poor to excellent."""
    return Truth(
        card=CARDS[rng.integers(len(CARDS))],
        weights=float(10 ** rng.uniform(9.0, 10.4)),
        bytes_per_weight=float(rng.choice([2.0, 34 / 32, 18 / 32])),
        cache_bytes=float(rng.choice([16_384, 65_536, 131_072])),
        memory_share=float(rng.uniform(0.15, 0.94)),
        rate_share=float(rng.uniform(0.05, 0.70)),
        overhead_s=float(10 ** rng.uniform(-4.5, -3)),
        row_s=float(10 ** rng.uniform(-6, -4)),
        noise=float(rng.choice([0.002, 0.01, 0.03])),
        drift=float(rng.choice([0.0, 0.0, 0.03, -0.03])),
        prompt=int(rng.choice([16, 128, 512])),
        tokens=int(rng.choice([32, 64, 128])),
    )


def write_honest_run(root: Path, seed: int) -> Path:
    """Writes an honest run into the lab at `root`: a ladder of streams, a ladder of prompts, requests, telemetry."""
    rng = np.random.default_rng(seed)
    truth = draw_truth(rng)
    blocks = int(rng.choice([3, 5, 10, 12]))
    streams = (1, 2, 4, 8, 16)[: int(rng.integers(2, 6))]
    cells: list[dict[str, Any]] = [{"phase": "decode", "streams": n} for n in streams]
    cells += [{"phase": "prefill", "prompt": p, "streams": 1} for p in (512, 2048, 4096)]
    more = np.random.default_rng([seed, 1])  # of what was added later: the rest stays as it was
    drafting: list[dict[str, Any]] = [{"phase": "decode", "streams": 1, "draft": k} for k in (2, 4)] * (seed % 2)
    rows: list[tuple[Any, ...]] = []
    requests: list[dict[str, Any]] = []
    windows: list[tuple[float, float, float]] = []
    now, order = 5.0, 0
    for block in range(blocks):
        for at in rng.permutation(len(cells)):
            cell = cells[at]
            slow = float(np.exp(rng.normal(0, truth.noise))) * (1 + truth.drift * block / blocks)
            made = prefill if cell["phase"] == "prefill" else decode
            metrics, asked, lasted, watts = made(truth, cell, slow, now, rng)
            rows += [
                (block, order, canonical_cell(cell), name, repr(float(value)), utc(now))
                for name, value in metrics.items()
            ]
            requests += [{"block": block, "cell": cell, **one} for one in asked]
            windows.append((now, now + lasted, watts))
            now, order = now + lasted + 0.2, order + 1
        for cell in drafting:
            metrics, asked, lasted, watts = speculate(truth, cell, now, more)
            rows += [
                (block, order, canonical_cell(cell), name, repr(value), utc(now)) for name, value in metrics.items()
            ]
            requests += [{"block": block, "cell": cell, **one} for one in asked]
            windows.append((now, now + lasted, watts))
            now, order = now + lasted + 0.2, order + 1
    folder = root / "data" / "runs" / f"20261201T000000Z-honest-{seed:08x}"
    folder.mkdir(parents=True)
    write_csv(folder / "measurements.csv", COLUMNS, rows)
    lines = (json.dumps(one) + "\n" for one in requests)
    (folder / "requests.jsonl").write_text("".join(lines), encoding="utf-8")
    write_csv(folder / "telemetry.csv", TELEMETRY, list(telemetry(truth, windows, rng)))
    plan = plan_of(cells, blocks)
    (folder / "plan.json").write_text(json.dumps(plan.model_dump(mode="json")), encoding="utf-8")
    conclusion = {"claims": ["more streams, more tokens"], "should_not_claim": [], "utc": utc(now)}
    (folder / "conclusion.json").write_text(json.dumps(conclusion), encoding="utf-8")
    (folder / "run.json").write_text(record_of(truth, folder.name, plan, streams, more).to_json(), encoding="utf-8")
    return folder


def decode(truth: Truth, cell: dict[str, Any], slow: float, now: float, rng: np.random.Generator) -> tuple[Any, ...]:
    """(metrics, requests, seconds, W) of a cell that decodes: every stream prefilled in turn, then all step together."""
    n, tokens = cell["streams"], truth.tokens
    step = truth.step_s(n, truth.prompt + tokens / 2) * slow
    read = truth.weights * truth.bytes_per_weight + n * (truth.prompt + tokens / 2) * truth.cache_bytes
    submits = [now + 1e-4 * i + float(rng.exponential(1e-4)) for i in range(n)]
    first = max(submits) + n * truth.prompt_s(truth.prompt) * slow
    end = first + step * (tokens - 1)
    asked = []
    for slot in range(n):
        text = " ".join(rng.choice(WORDS, tokens))
        asked.append({
            "slot": slot, "prompt_sha256": digest(f"prompt {rng.integers(1 << 60)}"), "prompt_tokens": truth.prompt,
            "cached_tokens": 0, "completion_tokens": tokens, "completion_sha256": digest(text), "text": text,
            "submit_s": submits[slot], "start_s": submits[slot] + 2e-4, "first_token_s": first,
            "last_token_s": end, "finish": "length",
            "server": {
                "prompt_ms": 1e3 * (first - max(submits)) * 0.98, "predicted_ms": 1e3 * (end - first) * 0.999,
                "prompt_n": truth.prompt, "predicted_n": tokens,
            },
        })  # fmt: skip
    bandwidth = read / step / 1e9
    watts = truth.card[5] * (0.25 + 0.6 * min(bandwidth / truth.card[3], 1.0)) * float(np.exp(rng.normal(0, 0.02)))
    metrics = {
        "decode_tok_s": n / step, "step_ms": 1e3 * step, "achieved_gb_s": bandwidth, "tpot_s": (end - first) / (tokens - 1),
        "gpu_ms_step": 1e3 * step * 0.985, "ttft_s": first - submits[0], "power_w": watts, "memory_mhz": truth.card[6],
    }  # fmt: skip
    return metrics, asked, end - now, watts


def speculate(truth: Truth, cell: dict[str, Any], now: float, rng: np.random.Generator) -> tuple[Any, ...]:
    """(metrics, requests, seconds, W) of a cell that drafts: each step verifies the drafts and reads the weights once."""
    k, tokens = cell["draft"], 2 * truth.tokens
    noise = float(np.exp(rng.normal(0, truth.noise)))
    step = (truth.step_s(1, truth.prompt + tokens / 2) + k * truth.overhead_s) * noise
    accepted, steps = 0, 0
    while accepted + steps < tokens:
        likely = rng.random(k) < 0.7
        accepted, steps = accepted + int(np.argmin([*likely, False])), steps + 1
    emitted, first = accepted + steps, now + truth.prompt_s(truth.prompt)
    read = truth.weights * truth.bytes_per_weight
    asked = [{
        "slot": 0, "prompt_sha256": digest(f"prompt {rng.integers(1 << 60)}"), "prompt_tokens": truth.prompt,
        "cached_tokens": 0, "completion_tokens": emitted, "text": " ".join(rng.choice(WORDS, tokens)), "content": "prose",
        "submit_s": now, "start_s": now, "first_token_s": first, "last_token_s": first + steps * step, "finish": "length",
        "drafted_tokens": k * steps, "accepted_tokens": accepted,
    }]  # fmt: skip
    metrics = {
        "decode_tok_s": emitted / (steps * step), "step_ms": 1e3 * step, "acceptance": accepted / (k * steps),
        "tokens_per_step": emitted / steps, "achieved_gb_s": read / step / 1e9,
    }  # fmt: skip
    watts = truth.card[5] * (0.25 + 0.6 * min(read / step / 1e9 / truth.card[3], 1.0))
    return metrics | {"power_w": watts}, asked, first - now + steps * step, watts


def neighbours(truth: Truth, rng: np.random.Generator) -> dict[str, Any]:
    """What a look at the device saw: a desktop on some machines, a processor that is nearly idle, nothing spilled."""
    desktop = {
        "pid": 900,
        "name": "Xorg",
        "when": ("before", "during", "after"),
        "busy": round(float(rng.uniform(0, 0.015)), 4),
    }
    return {
        "looks": 40, "sources": ("fdinfo", "NVML", "CPU load"), "processes": (desktop,) * int(rng.integers(2)),
        "throttled": {"power cap": 0.02} if rng.random() < 0.2 else {}, "spilled_bytes": 0, "memory_used_bytes": 20_000_000_000,
        "memory_total_bytes": 32_000_000_000, "cpu_others": round(float(rng.uniform(0, 0.06)), 4),
    }  # fmt: skip


def prefill(truth: Truth, cell: dict[str, Any], slow: float, now: float, rng: np.random.Generator) -> tuple[Any, ...]:
    """(metrics, requests, seconds, W) of a cell that reads a prompt."""
    tokens = cell["prompt"]
    server = truth.prompt_s(tokens) * slow
    ttft = server + 3e-4 + float(rng.exponential(3e-4))
    rate = tokens / ttft
    asked = [{
        "slot": 0, "prompt_sha256": digest(f"prompt {rng.integers(1 << 60)}"), "prompt_tokens": tokens, "cached_tokens": 0,
        "completion_tokens": 1, "submit_s": now, "start_s": now + 1e-4, "first_token_s": now + ttft,
        "last_token_s": now + ttft, "finish": "length",
    }]  # fmt: skip
    watts = truth.card[5] * (0.35 + 0.6 * truth.rate_share) * float(np.exp(rng.normal(0, 0.02)))
    metrics = {
        "prefill_tok_s": rate, "ttft_s": ttft, "server_prefill_tok_s": tokens / server,
        "achieved_gflop_s": 2 * truth.weights * rate / 1e9, "power_w": watts, "memory_mhz": truth.card[6],
    }  # fmt: skip
    return metrics, asked, ttft, watts


def telemetry(truth: Truth, windows: list[tuple[float, float, float]], rng: np.random.Generator) -> Any:
    """Readings of a card that idles between the windows and draws what each of them takes within."""
    for start, end, watts in windows:
        for at, power, busy in ((start - 0.1, truth.card[5] * 0.1, 0.0), ((start + end) / 2, watts, 0.99)):
            said = {
                "time_s": f"{at:.4f}",
                "power_w": f"{power * float(np.exp(rng.normal(0, 0.02))):.6g}",
                "core_mhz": "2400",
            }
            said |= {
                "memory_mhz": f"{truth.card[6]:g}",
                "temperature_c": "60",
                "utilisation": f"{busy:g}",
                "limited": "",
            }
            yield [said.get(name, "") for name in TELEMETRY]


def plan_of(cells: list[dict[str, Any]], blocks: int) -> Plan:
    """A plan that compares the ends of the ladder of streams."""
    ladder = [cell for cell in cells if cell["phase"] == "decode"]
    rule = Rule(metric="decode_tok_s", cell=ladder[-1], against=ladder[0], comparison=">=", threshold=1.2)
    return Plan(
        experiment="honest", belief="More streams give more tokens", knob="streams", cells=tuple(ladder), rule=rule,
        repetitions=blocks,
    )  # fmt: skip


def record_of(truth: Truth, run_id: str, plan: Plan, streams: tuple[int, ...], rng: np.random.Generator) -> RunRecord:
    """The record of a run: its card, its model, what its programs hash to."""
    name, vendor, number, gb_s, rate, watts, _ = truth.card
    size = truth.weights * truth.bytes_per_weight
    kind = {2.0: "F16", 34 / 32: "Q8_0", 18 / 32: "Q4_0"}[truth.bytes_per_weight]
    notes = (f"ceilings: reads {0.95 * gb_s:.4g} GB/s, multiplies {0.8 * rate:.4g} TFLOP/s float16 (a cut)",)
    return RunRecord.model_validate({
        "id": run_id, "experiment": "honest", "state": "completed", "started": utc(0), "ended": utc(600),
        "parameters": {"tokens": truth.tokens, "slots": max(streams), "kv": "f16", "prompt_tokens": truth.prompt},
        "plan_hash": plan.hash, "exploratory": False,
        "device": {
            "name": name, "type": "discrete", "vendor_id": vendor, "device_id": number, "uuid": "ab" * 16,
            "driver_name": "a driver", "driver_info": "1.0", "card": {"power_limit_w": watts, "ecc": False},
        },
        "host": {"cpu": "a processor", "cores": 16, "ram_bytes": 64 << 30, "os": "Linux", "boot_id": "a boot"},
        "model": {"name": "a model", "sha256": "cd" * 32, "architecture": "llama", "bytes_by_type": {kind: int(size)}},
        "program_fingerprints": {f"decode {n}": digest(f"{run_id} {n}")[:16] for n in streams},
        "checks": [{"name": "ids equal the reference", "passed": True}], "notes": notes, "packages": {"labkit": "0.1.0"},
        "neighbours": neighbours(truth, rng),
    })  # fmt: skip


def honest_claims(seed: int) -> list[dict[str, Any]]:
    """Rows of a published ladder of the same physics, rounded as people round."""
    rng = np.random.default_rng(seed)
    truth = draw_truth(rng)
    known = {
        "source": "a simulation", "device": truth.card[0].partition(" (")[0], "model": "a model",
        "bytes_per_weight": f"{truth.bytes_per_weight:.4g}", "active_params": f"{truth.weights:.3g}", "slots": 32,
        "quantisation": {2.0: "FP16", 34 / 32: "Q8_0", 18 / 32: "Q4_0"}[truth.bytes_per_weight],
        "tokens_per_pass_max": 1, "backend": "an engine",
    }  # fmt: skip
    figures = int(rng.choice([2, 3, 4]))
    rows = []
    for n in (1, 2, 4, 8, 16, 32):
        step = truth.step_s(n, truth.prompt) * float(np.exp(rng.normal(0, truth.noise)))
        rows.append(
            known | {"metric": "decode_tok_s", "unit": "tok/s", "streams": n, "value": rounded(n / step, figures)}
        )
        rows.append(known | {"metric": "tpot_s", "unit": "ms", "streams": n, "value": rounded(1e3 * step, figures)})
    for tokens in (512, 2048, 4096, 16_384):
        rate = tokens / (truth.prompt_s(tokens) * float(np.exp(rng.normal(0, truth.noise))))
        prompt = {"metric": "prefill_tok_s", "unit": "tok/s", "streams": 1, "prompt_tokens": tokens, "cache": "cold"}
        rows.append(known | prompt | {"value": rounded(rate, figures)})
    slow, fast = truth.step_s(1, 100), truth.step_s(1, 30_000)
    change = f"{rounded(1 / slow, 3)} → {rounded(1 / fast, 3)} tok/s ({100 * (slow / fast - 1):+.1f} %)"
    return [*rows, known | {"metric": "decode_tok_s", "unit": "tok/s", "value": rounded(1 / fast, 3), "note": change}]


def rounded(value: float, figures: int) -> str:
    """A value at so many significant digits, without an exponent."""
    return f"{float(f'{value:.{figures}g}'):.10g}"


def digest(text: str) -> str:
    """A hash that stands for a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def utc(seconds: float) -> str:
    """A time of the run's day."""
    return f"2026-12-01T{int(seconds) // 3600 % 24:02}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}Z"


def write_csv(path: Path, header: Any, rows: Any) -> None:
    """A CSV as the lab writes it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
