"""The scope of a run: what its verdict holds for, read from its record and its plan."""

import json
from collections.abc import Mapping
from typing import Any

from labkit.lab.events import Scope, digest, shape_words
from labkit.lab.plan import Plan
from labkit.lab.record import RunRecord

# Parameters that say what is believed, how often it is tried, or what the record knows better: no part of the shape.
NOT_SHAPE = frozenset(
    {"belief", "believed_because", "question", "refuted_if", "threshold", "margin", "repetitions", "blocks"}
    | {"device", "seed", "kind"}
)
UNKNOWN = "not described"


def scope_of(record: RunRecord, plan: Plan) -> Scope:
    """The scope of a run. What the record does not describe is `not described`, and so differs from what it does."""
    return Scope(
        experiment=plan.experiment,
        rule=plan.rule.essence(),
        device=device_words(record),
        uuid=str((record.device or {}).get("uuid") or UNKNOWN),
        driver=driver_words(record.device),
        build=build_words(record),
        model=model_words(record.model),
        shape=shape_words(plan.shape if plan.shape is not None else shape_of(record)),
        retrospective=record.retrospective,
    )


def device_words(record: RunRecord) -> str:
    """The device by name; a software device also by the processor it runs on."""
    device = record.device
    if not device:
        return UNKNOWN
    words = str(device.get("name") or UNKNOWN)
    if "cpu" in str(device.get("type", "")).lower():
        words += f" on {record.host.cpu}, {record.host.cores} cores"
    return words


def driver_words(device: Mapping[str, Any] | None) -> str:
    """The driver by name, build and API version, as it reports them."""
    known = device or {}
    parts = [str(known[name]) for name in ("driver_name", "driver_info", "driver_version") if known.get(name)]
    if known.get("api_version"):
        parts.append(f"Vulkan {known['api_version']}")
    return " ".join(parts) or UNKNOWN


def build_words(record: RunRecord) -> str:
    """What was executed: a hash of the shaders and the programs' fingerprints, with labkit's version."""
    executed = json.dumps([record.shaders, record.program_fingerprints], sort_keys=True)
    version = record.packages.get("labkit", "")
    return f"{f'labkit {version}, ' if version else ''}kernels {digest(executed)[:12]}"


def model_words(model: Mapping[str, Any] | None) -> str:
    """The model by name and the start of its file's SHA-256."""
    if not model:
        return UNKNOWN
    sha = str(model.get("sha256") or "")
    return str(model.get("name") or UNKNOWN) + (f" (SHA-256 {sha[:12]})" if sha else "")


def shape_of(record: RunRecord) -> dict[str, Any]:
    """The parameters that shape the work; the model's only where the record does not describe it."""
    left_out = NOT_SHAPE | ({"model"} if record.model else set())
    return {name: value for name, value in record.parameters.items() if name not in left_out}
