"""The tensor types of ggml: their codes, block sizes, and NumPy dequantisers of those labkit runs.

Block layouts follow ggml's `ggml-common.h`; a block is `block` consecutive elements of a row in `block_bytes` bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit.models import k_quants

Dequantise = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TensorType:
    """One storage format: `code` in the file, `name`, and how many elements (`block`) lie in `block_bytes` bytes."""

    code: int
    name: str
    block: int
    block_bytes: int
    _dequantise: Dequantise | None = field(default=None, compare=False, repr=False)

    @property
    def runnable(self) -> bool:
        """True where labkit can read and run tensors of this type."""
        return self._dequantise is not None

    @property
    def bits_per_weight(self) -> float:
        """Bits the file spends on one element, scales included."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` (a multiple of `block`)."""
        return elements // self.block * self.block_bytes

    def dequantise(self, raw: np.ndarray) -> np.ndarray:
        """Float32 values of `raw`: uint8 [..., bytes of whole blocks] → float32 [..., elements].

        Bit-equal to ggml's own reference dequantisers. Raises ValueError for a type that is not `runnable`.
        """
        if self._dequantise is None:
            raise ValueError(f"{self.name} has no dequantiser")
        blocks = np.ascontiguousarray(raw).reshape(-1, self.block_bytes)
        with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or NaN in a damaged file
            return self._dequantise(blocks).reshape(*raw.shape[:-1], -1)

    def __str__(self) -> str:
        return self.name


TENSOR_TYPES: dict[int, TensorType] = {}  # by code in the file
_NAMES: dict[str, TensorType] = {}


def _register(code: int, name: str, block: int, block_bytes: int, dequantise: Dequantise | None = None) -> None:
    TENSOR_TYPES[code] = _NAMES[name] = TensorType(code, name, block, block_bytes, dequantise)


def _runnable(code: int, name: str, block: int, block_bytes: int) -> Callable[[Dequantise], Dequantise]:
    """Register a type labkit runs; the decorated function takes uint8 [blocks, block_bytes], gives [blocks, block]."""

    def register(dequantise: Dequantise) -> Dequantise:
        _register(code, name, block, block_bytes, dequantise)
        return dequantise

    return register


def tensor_type(name: str) -> TensorType:
    """The type called `name`, such as "Q4_1". Raises KeyError for a name ggml does not have."""
    return _NAMES[name]


def runnable_types() -> list[str]:
    """Names of the types labkit runs, in the order of their codes."""
    return [kind.name for _, kind in sorted(TENSOR_TYPES.items()) if kind.runnable]


@_runnable(0, "F32", 1, 4)
def _f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f4").astype(np.float32, copy=False)


@_runnable(1, "F16", 1, 2)
def _f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f2").astype(np.float32)


@_runnable(30, "BF16", 1, 2)
def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(column: np.ndarray) -> np.ndarray:
    """Two bytes of each block as one float16, widened: uint8 [blocks, 2] → float32 [blocks, 1]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Bytes into 4-bit codes, all low halves first: uint8 [blocks, 16] → uint8 [blocks, 32]."""
    return np.concatenate([codes & 15, codes >> 4], axis=1)


@_runnable(8, "Q8_0", 32, 34)
def _q8_0(blocks: np.ndarray) -> np.ndarray:  # x = d·q
    values: np.ndarray = _half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)
    return values


@_runnable(2, "Q4_0", 32, 18)
def _q4_0(blocks: np.ndarray) -> np.ndarray:  # x = d·(q − 8)
    values: np.ndarray = _half(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))
    return values


@_runnable(3, "Q4_1", 32, 20)
def _q4_1(blocks: np.ndarray) -> np.ndarray:  # x = d·q + m
    values: np.ndarray = _half(blocks[:, :2]) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks[:, 2:4])
    return values


def _scaled_min(fields: k_quants.ScaledMin) -> np.ndarray:  # x = (d·scale)·q − d_min·minimum
    halves = np.ascontiguousarray(fields.halves).view("<f2").astype(np.float32)
    d, m = halves[:, :1] * fields.scales, halves[:, 1:] * fields.minima
    values: np.ndarray = d[:, :, None] * fields.codes.astype(np.float32) - m[:, :, None]
    return values.reshape(-1, 256)


@_runnable(12, "Q4_K", 256, 144)
def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _scaled_min(k_quants.q4_k(blocks))


@_runnable(13, "Q5_K", 256, 176)
def _q5_k(blocks: np.ndarray) -> np.ndarray:
    return _scaled_min(k_quants.q5_k(blocks))


@_runnable(14, "Q6_K", 256, 210)
def _q6_k(blocks: np.ndarray) -> np.ndarray:  # x = (d·scale)·(q − 32)
    fields = k_quants.q6_k(blocks)
    d = _half(fields.half) * fields.scales.astype(np.float32)
    codes = fields.codes.reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    values: np.ndarray = d[:, :, None] * codes
    return values.reshape(-1, 256)


# Known by name and size, so that a file holding them is described truly, but not run.
for _code, _name, _block, _bytes in [
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
]:
    _register(_code, _name, _block, _bytes)
