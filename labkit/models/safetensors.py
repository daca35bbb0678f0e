"""A bounds-checked, memory-mapped reader of one .safetensors file.

Layout (huggingface/safetensors, "Format"): the header's length in 8 bytes, the header as JSON {name: {dtype, shape,
data_offsets}}, the tensors' bytes without a gap. Everything is compared with the size of the file before it is used, so a
damaged or hostile file ends in one ModelError and allocates nothing but its own header.
"""

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from labkit.errors import ModelError
from labkit.models.gguf import Tensor, map_file
from labkit.models.tensor_types import tensor_type

MAX_HEADER = 100_000_000  # bytes, as in the reference implementation
MAX_TENSORS = 1 << 17
MAX_NAME = 1 << 12  # characters
_TYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}  # those labkit runs, by the file's word
_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class SafetensorsFile:
    """The tensors of one file, by their own names; `raw` gives a tensor's bytes as a view of the file.

    Raises ModelError, in one line, for anything that is not a whole and consistent file of tensors labkit runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mapped, buffer = map_file(path)
        size = len(buffer)
        length = int.from_bytes(buffer[:8], "little")
        if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
            raise self._bad(f"its header claims {length} bytes and the file has {size}; it is cut short or damaged")
        header = parse_json(bytes(buffer[8 : 8 + length]), f"{path}: its header")
        header.pop("__metadata__", None)
        if len(header) > MAX_TENSORS:
            raise self._bad(f"it claims {len(header)} tensors, more than {MAX_TENSORS}")
        self.tensors = {name: self._described(name, entry, 8 + length, size) for name, entry in header.items()}
        reached, before = 8 + length, "the header"
        for tensor in sorted(self.tensors.values(), key=lambda each: (each.offset, each.nbytes)):
            if tensor.offset != reached:
                what = "overlap" if tensor.offset < reached else "leave a gap"
                raise self._bad(f"{before!r} and {tensor.name!r} {what} at byte {min(tensor.offset, reached)}")
            reached, before = tensor.offset + tensor.nbytes, tensor.name
        if reached != size:
            raise self._bad(f"its tensors end at byte {reached} and the file at {size}")
        self._bytes: np.ndarray | None = np.frombuffer(mapped, dtype=np.uint8)

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is not a usable safetensors file: {what}")

    def _described(self, name: str, entry: Any, start: int, size: int) -> Tensor:
        shown = repr(name[:80])
        if len(name) > MAX_NAME or not isinstance(entry, dict):
            raise self._bad(f"tensor {shown} is not described by dtype, shape and data_offsets")
        kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not (_counts(shape) and _counts(offsets)) or len(offsets) != 2 or len(shape) > 8:
            raise self._bad(f"tensor {shown} has shape {str(shape)[:60]} and data_offsets {str(offsets)[:60]}")
        if not isinstance(kind, str) or kind not in _SIZES:
            raise self._bad(f"tensor {shown} is of dtype {str(kind)[:20]!r}, which the format does not define")
        if kind not in _TYPES:
            raise ModelError(
                f"{self.path}: tensor {shown} is {kind}; labkit runs {', '.join(_TYPES)} of a folder; take a GGUF file"
            )
        begin, end = offsets
        if not begin <= end <= size - start:
            raise self._bad(
                f"tensor {shown} needs bytes {begin} to {end} of {size - start}; it is cut short or damaged"
            )
        if 0 in shape or not shape or math.prod(shape) * _SIZES[kind] != end - begin:
            raise self._bad(f"tensor {shown} of {kind} {shape} does not take the {end - begin} bytes it has")
        return Tensor(name, tuple(shape), tensor_type(_TYPES[kind]), start + begin, end - begin)

    def raw(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes as a read-only uint8 view of the file, [nbytes]. Raises ModelError once closed."""
        if self._bytes is None:
            raise ModelError(f"{self.path} is closed; open the model again to read its tensors")
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def close(self) -> None:
        """Let go of the file; views handed out keep their own hold on it."""
        self._bytes = None


def _counts(value: Any) -> TypeGuard[list[int]]:
    """Whether `value` is a list of whole numbers from 0 to 2^62."""
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object `raw` is. Raises ModelError, named `where`, for any other content or a key that stands twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key stands in it twice")
        return made

    try:
        found = json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ModelError(f"{where} is not JSON ({str(error)[:80]}); it is damaged") from None
    if not isinstance(found, dict):
        raise ModelError(f"{where} is not a JSON object; it is damaged")
    return found


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in `path`, {} where there is no such file. Raises ModelError for one over `most` bytes or damaged."""
    try:
        if not path.exists():
            return {}
        if not path.is_file() or path.stat().st_size > most:
            raise ModelError(f"{path} is not a file of at most {most} bytes")
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
