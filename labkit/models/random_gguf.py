"""A GGUF file of random weights in a known shape, so that another runtime can be measured on what labkit measures.

The file has every tensor of the shape, in its type, filled with valid blocks: finite scales, values small enough that
logits stay finite. One block of noise a type is written again and again, so nothing large is held in memory.
"""

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import ModelError
from labkit.models.shapes import ShapeModel
from labkit.models.tensor_types import TensorType

ALIGNMENT = 32
NOISE_BYTES = 64 << 20
SPREAD = 0.02  # standard deviation of the weights
BYTE_TOKENS = 259  # unknown, begin, end, and the 256 bytes: the least a sentencepiece vocabulary has
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # token types of GGUF

# Quantised types: where a block's float16 fields lie, and their values for codes that are uniformly random.
# (offset in bytes, value): scale d so that values spread by SPREAD, minimum m so that their mean is zero.
_FIELDS: dict[str, tuple[tuple[int, float], ...]] = {
    "Q8_0": ((0, SPREAD / 73),),
    "Q4_0": ((0, SPREAD / 4.6),),
    "Q4_1": ((0, SPREAD / 4.6), (2, -7.5 * SPREAD / 4.6)),
    "Q5_0": ((0, SPREAD / 9.2),),
    "Q5_1": ((0, SPREAD / 9.2), (2, -15.5 * SPREAD / 9.2)),
    "IQ4_NL": ((0, SPREAD / 65),),
    "Q2_K": ((80, SPREAD / (8.8 * 1.1)), (82, 1.5 * SPREAD / (8.8 * 1.1))),
    "Q3_K": ((108, SPREAD / (18.5 * 2.3)),),
    "Q4_K": ((0, SPREAD / (36 * 4.6)), (2, 7.5 * SPREAD / (36 * 4.6))),
    "Q5_K": ((0, SPREAD / (36 * 9.2)), (2, 15.5 * SPREAD / (36 * 9.2))),
    "Q6_K": ((208, SPREAD / (73 * 18.5)),),
}


def noise(kind: TensorType, nbytes: int = NOISE_BYTES, seed: int = 0) -> np.ndarray:
    """About `nbytes` of valid random blocks of `kind`, uint8, whole blocks. ModelError for a type it cannot make."""
    chance = np.random.default_rng(seed)
    if kind.name in ("F32", "F16", "BF16"):
        values = chance.standard_normal(nbytes // kind.block_bytes, np.float32) * np.float32(SPREAD)
        if kind.name == "BF16":
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.astype("<f2" if kind.name == "F16" else "<f4").view(np.uint8)
    if kind.name not in _FIELDS:
        raise ModelError(f"random weights of {kind} cannot be made; there are {', '.join(_FIELDS)}, F16, BF16 and F32")
    count = max(1, nbytes // kind.block_bytes)
    blocks = np.frombuffer(chance.bytes(count * kind.block_bytes), np.uint8).reshape(count, kind.block_bytes).copy()
    for offset, value in _FIELDS[kind.name]:
        blocks[:, offset : offset + 2] = np.frombuffer(struct.pack("<e", value), np.uint8)
    return blocks.reshape(-1)


def vocabulary(size: int) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a sentencepiece vocabulary of `size` plain words. ModelError when it is too small.

    The tokens of single bytes are there by name but count as words: random weights would spell broken UTF-8."""
    if size < BYTE_TOKENS + 1:
        raise ModelError(f"a vocabulary of {size} has no room for the {BYTE_TOKENS} tokens every file needs")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"w{i}" for i in range(size - BYTE_TOKENS)]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_NORMAL] * (size - 3)]
    return tokens, [-float(i) for i in range(size)], types


def write_random_gguf(model: ShapeModel, path: Path) -> int:
    """Write the GGUF file of `model` to `path`; returns its bytes. OSError where the disk refuses."""
    described, offset, places = [], 0, []
    for name, tensor in model.tensors.items():
        described.append(_text(name) + struct.pack("<I", len(tensor.shape)))
        described.append(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
        described.append(struct.pack("<IQ", tensor.type.code, offset))
        places.append((tensor, offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    entries = _metadata(model)
    header = [b"GGUF", struct.pack("<IQQ", 3, len(model.tensors), len(entries))]
    header += [_text(key) + value for key, value in entries.items()]
    head = b"".join(header + described)
    head += bytes(-len(head) % ALIGNMENT)
    made: dict[str, memoryview] = {}
    with path.open("wb", buffering=0) as file:
        _write(file, memoryview(head))
        for tensor, _ in places:
            if len(tensor.shape) == 1:
                content = memoryview(np.ones(tensor.shape, "<f4").tobytes())
            else:
                name = tensor.type.name
                if name not in made:
                    made[name] = memoryview(noise(tensor.type, min(NOISE_BYTES, model.nbytes)).data)
                content = made[name]
            left = tensor.nbytes
            while left:
                piece = content[: min(left, len(content))]
                _write(file, piece)
                left -= len(piece)
            _write(file, memoryview(bytes(-tensor.nbytes % ALIGNMENT)))
        return file.tell()


@contextmanager
def temporary_gguf(model: ShapeModel) -> Iterator[Path]:
    """The GGUF file of `model` in a folder of its own that is gone afterwards; in memory where there is plenty.

    ModelError, with the bytes, when no place has room for it."""
    need = model.nbytes + (64 << 20)
    place = _roomy(need)
    folder = Path(tempfile.mkdtemp(prefix="labkit-", dir=place))
    try:
        path = folder / f"{model.shape}-{model.quant}.gguf"
        try:
            write_random_gguf(model, path)
        except OSError as error:
            raise ModelError(f"{path} cannot be written: {error.strerror}; it needs {need:,} bytes") from None
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _roomy(need: int) -> str:
    """Shared memory when it and the machine have room three times over, else the folder for temporary files."""
    memory = Path("/dev/shm")
    shared = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1.2 * need
    if shared and _memory_available() > 3 * need:
        return str(memory)
    disk = tempfile.gettempdir()
    free = shutil.disk_usage(disk).free
    if free < need:
        raise ModelError(
            f"a file of {need:,} bytes does not fit in {disk}, which has {free:,} free; point TMPDIR to a larger disk"
        )
    return disk


def _memory_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _write(file: Any, piece: memoryview) -> None:
    while len(piece):
        piece = piece[file.write(piece) :]


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A metadata value with its type code in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    kind, code = ("<f4", 6) if isinstance(value[0], float) else ("<i4", 5)
    return struct.pack("<IIQ", 9, code, len(value)) + np.asarray(value, kind).tobytes()


def _metadata(model: ShapeModel) -> Mapping[str, bytes]:
    c, arch = model.config, model.config.architecture
    tokens, scores, types = vocabulary(c.vocab)
    entries: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": model.name,
        f"{arch}.block_count": c.layers,
        f"{arch}.context_length": c.context,
        f"{arch}.embedding_length": c.hidden,
        f"{arch}.feed_forward_length": c.ffn,
        f"{arch}.attention.head_count": c.heads,
        f"{arch}.attention.head_count_kv": c.kv_heads,
        f"{arch}.attention.key_length": c.head_dim,
        f"{arch}.attention.value_length": c.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(c.rms_eps),
        f"{arch}.rope.dimension_count": c.rope_dim,
        f"{arch}.rope.freq_base": float(c.rope_theta),
        f"{arch}.vocab_size": c.vocab,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if c.windows:
        entries[f"{arch}.attention.sliding_window"] = max(c.windows)
    if c.rope_freq_factors:  # a shape has none but those of a linear scaling
        entries |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": c.rope_freq_factors[0]}
    return {key: _value(value) for key, value in entries.items()}
