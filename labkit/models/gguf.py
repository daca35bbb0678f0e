"""A bounds-checked, memory-mapped reader of GGUF files, versions 2 and 3, little-endian.

Layout (ggml's docs/gguf.md): magic, version, tensor count, metadata count; the metadata as key, type, value; a
description of each tensor; padding; the tensors' bytes. Every count, length and offset is compared with the size of the
file before it is used, so a damaged or hostile file ends in one ModelError and allocates nothing.
"""

import hashlib
import math
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from labkit.errors import ModelError
from labkit.models.tensor_types import TENSOR_TYPES, TensorType

MAGIC = b"GGUF"
MAX_STRINGS = 1 << 21  # in all string arrays together: eight times the largest vocabulary with its merges
MAX_ENTRIES = 1 << 17  # metadata entries or tensors of one file
MAX_NAME = 1 << 16  # bytes of a key or a tensor name
DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_NUMERIC: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U64 = struct.Struct("<Q").unpack_from
_U32 = struct.Struct("<I").unpack_from


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: `shape` in NumPy order, (out, in) for a matrix; `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class StringArray(Sequence[str]):
    """The strings of one metadata array, decoded from the file when first looked at.

    Raises ModelError where a string is not UTF-8.
    """

    def __init__(self, where: str, buffer: memoryview, start: int, count: int) -> None:
        self._where, self._buffer, self._start, self._count = where, buffer, start, count
        self._strings: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.strings()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.strings())

    def strings(self) -> list[str]:
        """All of them, as a list that stays with the array."""
        if self._strings is None:
            buffer, place, strings = self._buffer, self._start, []
            try:
                for _ in range(self._count):
                    end = place + 8 + _U64(buffer, place)[0]
                    strings.append(str(buffer[place + 8 : end], "utf-8"))
                    place = end
            except UnicodeDecodeError:
                raise ModelError(f"{self._where}: string {len(strings)} is not UTF-8; the file is damaged") from None
            self._strings = strings
        return self._strings

    def __repr__(self) -> str:
        return f"<{self._count} strings>"


class GgufFile:
    """The metadata and tensor table of one GGUF file, with its bytes memory-mapped read-only.

    `metadata` maps a key to int, float, bool, str, a NumPy array or a StringArray; `tensors` maps a name to a Tensor.
    Raises ModelError, in one line, for anything that is not a whole and consistent GGUF file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map, self._buffer = map_file(self.path)
        self._end = len(self._buffer)
        self._place = 0
        self._strings_left = MAX_STRINGS
        try:
            self.metadata: dict[str, Any] = {}
            self.tensors: dict[str, Tensor] = {}
            self.version = self._read()
        except (struct.error, OverflowError, IndexError):
            raise self._bad(f"it ends inside its header, at byte {self._end}; fetch it again") from None
        self._bytes: np.ndarray | None = np.frombuffer(self._map, dtype=np.uint8)

    def raw(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes as a read-only uint8 view of the file, [nbytes]. Raises ModelError once closed."""
        if self._bytes is None:
            raise ModelError(f"{self.path} is closed; open the model again to read its tensors")
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def rows(self, tensor: Tensor, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of a matrix as a read-only view, uint8 [rows, bytes]. Raises ModelError once closed."""
        return self.raw(tensor).reshape(tensor.shape[0], -1)[start:stop]

    @property
    def files(self) -> list[Path]:
        """The file itself: what decides what the model computes."""
        return [self.path]

    def digest(self) -> str:
        """SHA-256 of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def close(self) -> None:
        """Let go of the file; views handed out keep their own hold on it."""
        self._bytes = None

    # Reading the header -------------------------------------------------------------------------------------------

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is not a usable GGUF file: {what}")

    def _read(self) -> int:
        if self._buffer[:4] != MAGIC:
            raise self._bad(f"it starts with {bytes(self._buffer[:4])!r}, not {MAGIC!r}")
        self._place = 4
        version = self._u32()
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
            detail = "it is big-endian" if swapped in (2, 3) else f"its version is {version}"
            raise self._bad(f"{detail}; labkit reads little-endian versions 2 and 3")
        tensor_count, entry_count = self._u64(), self._u64()
        self._check_count(tensor_count, 8 + 1 + 4 + 8 + 4 + 8, MAX_ENTRIES, "tensors")
        self._check_count(entry_count, 8 + 1 + 4 + 1, MAX_ENTRIES, "metadata entries")
        for _ in range(entry_count):
            key = self._name("metadata key")
            if key in self.metadata:
                raise self._bad(f"metadata key {key!r} stands in it twice")
            self.metadata[key] = self._value(key, self._u32())
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self._bad(f"its alignment is {alignment!r}, not a power of two from 8 to 65536")
        described = [self._describe(alignment) for _ in range(tensor_count)]
        self._place_tensors(described, -(-self._place // alignment) * alignment)
        return version

    def _describe(self, alignment: int) -> Tensor:
        """One entry of the tensor table; its offset still counts from the start of the data."""
        name = self._name("tensor name")
        rank = self._u32()
        if not 1 <= rank <= 4:
            raise self._bad(f"tensor {name!r} has {rank} dimensions, not 1 to 4")
        shape = tuple(self._u64() for _ in range(rank))[::-1]  # ggml writes the contiguous dimension first
        code, offset = self._u32(), self._u64()
        if code not in TENSOR_TYPES:
            raise self._bad(f"tensor {name!r} has type code {code}, which ggml does not define")
        kind = TENSOR_TYPES[code]
        if 0 in shape or shape[-1] % kind.block:
            raise self._bad(f"tensor {name!r} has shape {shape}: rows of {kind} are whole blocks of {kind.block}")
        if offset % alignment:
            raise self._bad(f"tensor {name!r} lies at offset {offset}, not a multiple of its alignment {alignment}")
        return Tensor(name, shape, kind, offset, math.prod(shape) // kind.block * kind.block_bytes)

    def _place_tensors(self, described: list[Tensor], start: int) -> None:
        """Turn offsets into places in the file, refusing tensors that leave it or share bytes."""
        reached, before = start, ""
        for tensor in sorted(described, key=lambda each: each.offset):
            offset = start + tensor.offset
            if offset + tensor.nbytes > self._end:
                raise self._bad(
                    f"tensor {tensor.name!r} needs bytes {offset} to {offset + tensor.nbytes} and the file has "
                    f"{self._end}; it is cut short or damaged, fetch it again"
                )
            if offset < reached:
                raise self._bad(f"tensors {before!r} and {tensor.name!r} overlap at byte {offset}")
            reached, before = offset + tensor.nbytes, tensor.name
        for tensor in described:
            if tensor.name in self.tensors:
                raise self._bad(f"tensor {tensor.name!r} stands in it twice")
            self.tensors[tensor.name] = Tensor(
                tensor.name, tensor.shape, tensor.type, start + tensor.offset, tensor.nbytes
            )

    def _value(self, key: str, code: int) -> Any:
        if code == _STRING:
            return self._text(f"metadata {key!r}")
        if code == _ARRAY:
            return self._array(key)
        if code not in _NUMERIC:
            raise self._bad(f"metadata {key!r} has type code {code}, which GGUF does not define")
        return self._numbers(key, _NUMERIC[code], 1)[0].item()

    def _array(self, key: str) -> np.ndarray | StringArray:
        code, count = self._u32(), self._u64()
        if code == _ARRAY:
            raise self._bad(f"metadata {key!r} is an array of arrays, which labkit does not read")
        if code != _STRING:
            if code not in _NUMERIC:
                raise self._bad(f"metadata {key!r} is an array of type code {code}, which GGUF does not define")
            return self._numbers(key, _NUMERIC[code], count)
        self._check_count(count, 8, self._strings_left, f"strings in metadata {key!r}")
        self._strings_left -= count
        buffer, start = self._buffer, self._place
        place = start
        for _ in range(count):  # a jump past the end makes the next unpack fail, and the check below the last
            place += 8 + _U64(buffer, place)[0]
        if place > self._end:
            raise self._bad(f"the last string of metadata {key!r} ends at byte {place}, past the end at {self._end}")
        self._place = place
        return StringArray(f"{self.path}: metadata {key!r}", buffer, start, count)

    def _numbers(self, key: str, kind: np.dtype[Any], count: int) -> np.ndarray:
        self._check_count(count, kind.itemsize, self._end, f"values in metadata {key!r}")
        raw = bytes(self._buffer[self._place : self._place + count * kind.itemsize])
        self._place += len(raw)
        if kind == np.dtype("?") and raw.strip(b"\0\1"):
            raise self._bad(f"metadata {key!r} holds a truth value other than 0 and 1")
        return np.frombuffer(raw, dtype=kind)

    def _name(self, what: str) -> str:
        length = _U64(self._buffer, self._place)[0]
        if not 1 <= length <= MAX_NAME:
            raise self._bad(f"a {what} at byte {self._place} is {length} bytes long, not 1 to {MAX_NAME}")
        return self._text(what)

    def _text(self, what: str) -> str:
        length = self._u64()
        if length > self._end - self._place:
            raise self._bad(f"{what} is {length} bytes long at byte {self._place}, past the end at {self._end}")
        raw = bytes(self._buffer[self._place : self._place + length])
        self._place += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._bad(f"{what} at byte {self._place - length} is not UTF-8") from None

    def _check_count(self, count: int, least_bytes: int, most: int, what: str) -> None:
        """Refuse a count whose smallest possible encoding does not fit in what is left of the file."""
        if count > most or count * least_bytes > self._end - self._place:
            raise self._bad(f"it claims {count} {what}, more than its {self._end} bytes can hold or labkit reads")

    def _u32(self) -> int:
        value: int = _U32(self._buffer, self._place)[0]
        self._place += 4
        return value

    def _u64(self) -> int:
        value: int = _U64(self._buffer, self._place)[0]
        self._place += 8
        return value


def map_file(path: Path) -> tuple[mmap.mmap, memoryview]:
    """The whole of `path`, memory-mapped read-only; ModelError where it is not a readable, non-empty file."""
    try:
        status = path.stat()  # before opening: a named pipe would block
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{path} is a folder, not a model file; name the .gguf file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file; name a .gguf file")
        if status.st_size == 0:
            raise ModelError(f"{path} is empty; fetch it again")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelError(f"there is no model file {path}; `lab models` lists what is here") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return mapped, memoryview(mapped)


def peek_architecture(head: bytes) -> str | None:
    """`general.architecture` of a file that begins with `head`, where it is the first entry, as writers put it."""
    key = b"general.architecture"
    lead = len(key).to_bytes(8, "little") + key + _STRING.to_bytes(4, "little")
    if head[:4] != MAGIC or head[24 : 24 + len(lead)] != lead:
        return None
    start = 24 + len(lead) + 8
    length = int.from_bytes(head[start - 8 : start], "little")
    return head[start : start + length].decode("utf-8", "replace") if 0 < length <= 64 else None
