"""GGUF bytes written by hand, nonsense included, and where the tiny files lie."""

import struct
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "tiny"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(content: Any) -> bytes:
    """A metadata value with its type code; a tuple (code, bytes) is written as it is."""
    if isinstance(content, tuple):
        return struct.pack("<I", content[0]) + content[1]
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<IQ", 10, content)
    if isinstance(content, float):
        return struct.pack("<Id", 12, content)
    if isinstance(content, str | bytes):
        return struct.pack("<I", 8) + text(content)
    strings = b"".join(text(each) for each in content)
    return struct.pack("<IIQ", 9, 8, len(content)) + strings


def craft(
    entries: dict[str, Any] | list[tuple[str, Any]] = (),  # type: ignore[assignment]
    tensors: list[tuple[str, tuple[int, ...], int, int]] = (),  # type: ignore[assignment]
    data: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file: tensors are (name, ggml dimensions, type code, offset); `counts` overrides the true ones."""
    pairs = list(entries.items()) if isinstance(entries, dict) else list(entries)
    tensor_count, entry_count = counts or (len(tensors), len(pairs))
    raw = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count)
    raw += b"".join(text(key) + value(content) for key, content in pairs)
    for name, dimensions, code, offset in tensors:
        raw += text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        raw += struct.pack("<IQ", code, offset)
    return raw + bytes(-len(raw) % 32 + data)
