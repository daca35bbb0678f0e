"""Resident weight tiles: repacking a file's rows into the device layouts of shaders/include/weights.glsl."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.errors import ModelError

TILE = 16  # weight rows a tile holds

Packer = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Layout:
    """One device layout: `block` elements of a row lie together; `name` is the shader variant that reads it."""

    name: str
    block: int
    pack: Packer  # uint8 rows [n, bytes] -> (codes [n, k / block, bytes a block], scales [n, k / block, bytes] or None)


LAYOUTS: dict[str, Layout] = {}  # by the file's tensor type


def layout(file_type: str, name: str, block: int) -> Callable[[Packer], Packer]:
    """Register the packer that brings `file_type` rows into layout `name`."""

    def register(pack: Packer) -> Packer:
        LAYOUTS[file_type] = Layout(name, block, pack)
        return pack

    return register


@dataclass(frozen=True)
class PackedWeights:
    """A matrix [n, k] ready for the device: flat uint8 `codes` and `scales` (None where the layout has none)."""

    layout: str
    n: int
    k: int
    codes: np.ndarray
    scales: np.ndarray | None

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)


def _float_rows(rows: np.ndarray, bytes_each: int) -> tuple[np.ndarray, None]:
    n, nbytes = rows.shape
    padded = -(-nbytes // (16 * bytes_each)) * 16 * bytes_each
    if padded != nbytes:
        rows = np.pad(rows, ((0, 0), (0, padded - nbytes)))
    return rows.reshape(n, -1, 16 * bytes_each), None


@layout("F32", "f32", 16)
def _f32(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _float_rows(rows, 4)


@layout("F16", "f16", 16)
def _f16(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _float_rows(rows, 2)


@layout("BF16", "bf16", 16)
def _bf16(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _float_rows(rows, 2)


@layout("Q8_0", "q8", 32)
def _q8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    blocks = rows.reshape(rows.shape[0], -1, 34)
    return blocks[..., 2:], blocks[..., :2]


def _nibbles(low_high: np.ndarray) -> np.ndarray:
    """ggml's order (byte j: elements j and j + 16) to ours (byte i: elements 2i and 2i + 1)."""
    elements = np.concatenate([low_high & 15, low_high >> 4], axis=-1)
    packed: np.ndarray = elements[..., 0::2] | (elements[..., 1::2] << 4)
    return packed


@layout("Q4_0", "q4", 32)
def _q4(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    blocks = rows.reshape(rows.shape[0], -1, 18)
    return _nibbles(blocks[..., 2:]), blocks[..., :2]


@layout("Q4_1", "q4m", 32)
def _q4m(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    blocks = rows.reshape(rows.shape[0], -1, 20)
    return _nibbles(blocks[..., 4:]), blocks[..., :4]


def _tiles(planes: np.ndarray) -> np.ndarray:
    """[n, blocks, bytes] to flat [n / TILE, blocks, TILE, bytes], the last tile padded with zero rows."""
    n, blocks, nbytes = planes.shape
    if n % TILE:
        planes = np.pad(planes, ((0, -n % TILE), (0, 0), (0, 0)))
    tiled = planes.reshape(-1, TILE, blocks, nbytes).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(tiled).reshape(-1)


def pack(rows: np.ndarray, file_type: str, k: int) -> PackedWeights:
    """Tiles of `rows`: uint8 [n, bytes of a row of k elements] in the file's own `file_type` blocks.

    Bits per weight stay the file's. Raises ModelError for a type without a layout or k not a multiple of 4.
    """
    if file_type not in LAYOUTS:
        raise ModelError(f"tensor type {file_type} has no device layout; labkit runs {', '.join(LAYOUTS)}")
    if k % 4:
        raise ModelError(f"rows of {k} elements are not a multiple of 4, which the kernels need")
    chosen = LAYOUTS[file_type]
    codes, scales = chosen.pack(np.ascontiguousarray(rows))
    return PackedWeights(chosen.name, rows.shape[0], k, _tiles(codes), None if scales is None else _tiles(scales))


def interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows first[0], second[0], first[1], ... : gate and up as one matrix, so that one invocation has both."""
    taken: np.ndarray = np.stack([first, second], axis=1).reshape(-1, first.shape[1])
    return taken
