"""Cuts found fastest on a device by `lab tune`, kept in a file a device and driver; `linear_cuts.choose` asks here first.

They hold for the kernels they were timed with: once a kernel of products changes, its defaults count again until tuned."""

import functools
import hashlib
import json
import os
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from labkit.vulkan.compile import shader_root
from labkit.vulkan.device import Device

if TYPE_CHECKING:
    from labkit.ops.linear_cuts import Cut

FORMAT = 2  # of the file; another is ignored, as is a cut that no longer fits the dataclasses
KERNELS = ("matvec", "matvec_int8", "matvec_k_int8", "linear_coopmat", "linear_int8", "linear_fragments")
_known: "weakref.WeakKeyDictionary[Device, dict[str, Cut]]" = weakref.WeakKeyDictionary()


def path_of(device: Device) -> Path:
    """Where the cuts of `device` with its present driver are kept: the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "tuned"
    return root / f"{device.info.uuid}-{device.info.driver_version:08x}.json"


@functools.cache
def kernels_digest() -> str:
    """Sixteen hexadecimal digits that stand for the binaries of `KERNELS`."""
    folder, digest = shader_root() / "spv", hashlib.sha256()
    for path in sorted(path for name in KERNELS for path in folder.glob(f"{name}.*.spv")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def key_of(layout: str, rows: int, n: int, k: int) -> str:
    """What a cut is kept under: programs come in widths of powers of two."""
    return f"{layout} {rows}x{n}x{k}"


def tuned(device: Device) -> "dict[str, Cut]":
    """The kept cuts of `device` by `key_of`; none where nothing was tuned, or LABKIT_DISABLE names "tuned"."""
    if device not in _known:
        _known[device] = _read(device)
    return _known[device]


def _read(device: Device) -> "dict[str, Cut]":
    if "tuned" in os.environ.get("LABKIT_DISABLE", "").split(","):
        return {}
    try:
        document = json.loads(path_of(device).read_text())
        ours = (document["format"], document["kernels"]) == (FORMAT, kernels_digest())
        entries = dict(document["cuts"]) if ours else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # nothing tuned on this device and driver with these kernels
    return {key: cut for key, entry in entries.items() if (cut := _cut(entry)) is not None}


def _cut(entry: Any) -> "Cut | None":
    from labkit.ops import linear_cuts

    if not isinstance(entry, dict):
        return None
    kind = {kind.__name__: kind for kind in linear_cuts.TUNABLE}.get(str(entry.get("cut")))
    values = {name: value for name, value in entry.items() if name != "cut"}
    if kind is None or not all(isinstance(value, bool | int) for value in values.values()):
        return None
    try:
        return kind(**values)
    except TypeError:
        return None  # of another version


def keep(device: Device, cuts: "dict[str, Cut]") -> Path:
    """Add `cuts` to those kept for `device`, and use them from now on. Raises LabError when the cache cannot be written."""
    merged = {**tuned(device), **cuts}
    entries = {key: {"cut": type(cut).__name__, **asdict(cut)} for key, cut in sorted(merged.items())}
    path = path_of(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        document = {
            "format": FORMAT,
            "kernels": kernels_digest(),
            "device": device.name,
            "driver": device.info.driver_info,
            "cuts": entries,
        }
        aside.write_text(json.dumps(document, indent=1))
        aside.replace(path)
    except OSError as error:
        raise LabError(
            f"the cuts could not be kept in {path}: {error.strerror}; set XDG_CACHE_HOME to a folder"
        ) from None
    _known[device] = merged
    return path
