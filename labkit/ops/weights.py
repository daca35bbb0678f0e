"""Resident weight tiles: repacking a file's rows into the device layouts of shaders/include/weights.glsl."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import ModelError
from labkit.ops import weights_k  # noqa: F401  (registers its layouts)
from labkit.ops.layouts import LAYOUTS, TILE, Planes, layout


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


def _tiles(planes: np.ndarray | Planes) -> np.ndarray:
    """[n, blocks, (groups,) bytes] to flat [n / TILE, blocks, groups, TILE, bytes], the last tile padded with zero rows.

    Several planes lie one behind the other inside a tile's block.
    """
    made = []
    for plane in [planes] if isinstance(planes, np.ndarray) else planes:
        n, blocks, nbytes = plane.shape[0], plane.shape[1], plane.shape[-1]
        if n % TILE:
            plane = np.pad(plane, ((0, -n % TILE), *[(0, 0)] * (plane.ndim - 1)))
        tiled = plane.reshape(-1, TILE, blocks, plane[0, 0].size // nbytes, nbytes).transpose(0, 2, 3, 1, 4)
        made.append(tiled.reshape(tiled.shape[0], blocks, -1))
    return np.ascontiguousarray(made[0] if len(made) == 1 else np.concatenate(made, axis=-1)).reshape(-1)


def pack(rows: np.ndarray, file_type: str, k: int) -> PackedWeights:
    """Tiles of `rows`: uint8 [n, bytes of a row of k elements] in the file's own `file_type` blocks.

    Bits per weight stay the file's. Raises ModelError for a type without a layout, or k that its blocks do not divide.
    """
    if file_type not in LAYOUTS:
        raise ModelError(f"tensor type {file_type} has no device layout; labkit runs {', '.join(LAYOUTS)}")
    if k % 4:
        raise ModelError(f"rows of {k} elements are not a multiple of 4, which the kernels need")
    chosen = LAYOUTS[file_type]
    if chosen.block == 256 and k % 256:
        raise ModelError(f"rows of {k} elements are not a multiple of 256, the super-block of {file_type}")
    codes, scales = chosen.pack(np.ascontiguousarray(rows))
    return PackedWeights(chosen.name, rows.shape[0], k, _tiles(codes), None if scales is None else _tiles(scales))


def interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows first[0], second[0], first[1], ... : gate and up as one matrix, so that one invocation has both."""
    taken: np.ndarray = np.stack([first, second], axis=1).reshape(-1, first.shape[1])
    return taken
