"""Evidence for the audit's tests: observations and claims whose figures come from the published record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.audit.claims import PHASES, REQUIRED, Claims, read_claims
from labkit.audit.devices import find_device, read_devices
from labkit.audit.evidence import Evidence, Observation, Sample
from labkit.audit.notice import Notice
from labkit.audit.registry import detectors

# Mistral 7B in FP16: 7.248e9 parameters, of which the embedding (32,000 × 4,096) is gathered, not read.
MISTRAL_7B = {"model": "Mistral-7B", "quantisation": "FP16", "bytes_per_weight": 2.0, "active_params": 7.117e9}
# Qwen3.8 27B of W4A8: 23.4e9 weights multiplied for each token of a prompt.
QWEN_27B = {"model": "Qwen3.8-27B", "quantisation": "MXFP4 W4A8", "active_params": 23.5e9}


def observed(metric: str, value: float, subject: str = "", device: str = "R9700", **fields: Any) -> Observation:
    """One published value as an observation, on the R9700 unless said otherwise."""
    known: dict[str, Any] = {
        "subject": subject or f"{metric} {value:g}",
        "group": "one sweep",
        "metrics": {metric: value},
        "phase": PHASES.get(metric),
        "device": find_device(device, read_devices()),
        "device_name": device,
        "tokens_per_pass_max": 1.0,
    }
    return Observation(**known | fields)


def measured(cells: Mapping[float, Mapping[str, Sequence[float]]], **fields: Any) -> list[Observation]:
    """Cells of a run by number of streams, with their repetitions by metric."""
    return [
        observed("decode_tok_s", 1.0, f"width={streams:g}", streams=streams, **fields | {
            "metrics": {name: sorted(values)[len(values) // 2] for name, values in metrics.items()},
            "samples": {
                name: tuple(Sample(block, block, value) for block, value in enumerate(values))
                for name, values in metrics.items()
            },
        })
        for streams, metrics in cells.items()
    ]  # fmt: skip


def claims_of(*observations: Observation, texts: Sequence[tuple[str, str]] = ()) -> Evidence:
    """Observations as the evidence of a file of claims."""
    return Evidence("claims", "claims.csv", observations, tuple(texts))


def notices(detector: str, evidence: Evidence) -> list[Notice]:
    """What one detector says of the evidence."""
    return list(detectors()[detector].notices(evidence))


def write_claims(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A CSV of claims with every column that is needed, `rows` over the defaults of a decode rate on an R9700."""
    names = ["id", "group", "prompt_tokens", *REQUIRED, "note"]
    known = {"source": "a test", "date": "2026-09", "device": "R9700", "metric": "decode_tok_s", "unit": "tok/s"}
    lines = [",".join(names)]
    for number, row in enumerate(rows, 1):
        full = {"id": f"C{number}", "value": "1", **known, **row}
        lines.append(",".join(f'"{full.get(name, "")}"' for name in names))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def claimed(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Claims:
    """The rows written and read again."""
    return read_claims(write_claims(folder / "claims.csv", rows))
