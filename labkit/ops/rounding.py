"""Activations rounded for a matrix unit: to float16 in tiles, or to int8 in blocks of 32; which, where, and making them."""

from dataclasses import dataclass

import numpy as np

from labkit.ops import int8_tiles
from labkit.ops.gemm_cuts import Gemm
from labkit.ops.int8_tiles import Int8Tiles, order_for, place_tiles
from labkit.ops.linear_cuts import Coopmat, CoopmatInt8, Cut, MatvecInt8, MatvecK
from labkit.ops.linear_fragments import Fragments
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

LOCAL = 64
FLOAT16_ORDERS = {"f16": 0, "bf16": 0, "q8": 1}  # what weights unpack to for float16 matrices; all others: 2


@dataclass(frozen=True)
class Rounding:
    """What a cut wants of its activations: `kind` "float16" (tiles), "int8" (rows) or "int8_tiles", and the `order` its
    weights unpack to. `sums`: of int8 tiles, for weights with a minimum."""

    kind: str
    order: int
    sums: bool = False


@dataclass(frozen=True)
class Rounded:
    """Rounded activations on the device: tiles, or codes and scales; `rows` of `k` elements."""

    rounding: Rounding
    data: Range
    scales: Range | None
    rows: int
    k: int
    tiles: Int8Tiles | None = None  # of kind "int8_tiles": the same ranges, as linear_int8 takes them

    @property
    def ranges(self) -> list[Range]:
        """All of it."""
        if self.tiles is not None:
            return self.tiles.ranges
        return [self.data] if self.scales is None else [self.data, self.scales]


def rounding_for(cut: Cut, layout: str) -> Rounding | None:
    """The rounding a cut needs over weights of `layout`, or None for float32 activations."""
    if isinstance(cut, MatvecInt8 | MatvecK):
        return Rounding("int8", int(layout != "q8"))
    if isinstance(cut, CoopmatInt8):
        return Rounding("int8_tiles", order_for(layout), layout == "q4m")
    if isinstance(cut, Coopmat | Fragments | Gemm):
        return Rounding("float16", FLOAT16_ORDERS.get(layout, 2))
    return None


def scratch_bytes(rows: int, k: int) -> int:
    """Bytes that hold `rows` rows of `k` elements in either rounding."""
    return -(-rows // 16) * 16 * (-(-k // 32) * 32) * 2 + rows * (-(-k // 32)) * 8


def place(scratch: Buffer, rounding: Rounding, rows: int, k: int) -> Rounded:
    """Where rounded activations lie in `scratch`, a buffer of `scratch_bytes`."""
    if rounding.kind == "float16":
        return Rounded(rounding, scratch.range(0, -(-rows // 16) * 16 * (-(-k // 16) * 16) * 2), None, rows, k)
    if rounding.kind == "int8_tiles":
        tiles = place_tiles(scratch, rows, k, rounding.order, sums=rounding.sums)
        return Rounded(rounding, tiles.codes, tiles.scales, rows, k, tiles)
    blocks = -(-k // 32)
    codes = scratch.range(0, rows * blocks * 32)
    return Rounded(rounding, codes, scratch.range(rows * blocks * 32, rows * blocks * 8), rows, k)


def record(program: Program, x: Range, to: Rounded, *, x_stride: int, label: str) -> None:
    """Add the rounding of float32 x [rows, x_stride]."""
    if to.tiles is not None:
        int8_tiles.record(program, x, to.tiles, x_stride=x_stride, label=f"{label}: x to int8 tiles")
        return
    kind, order = to.rounding.kind, to.rounding.order
    if kind == "float16":
        pieces, height = -(-to.k // 16) * 2, -(-to.rows // 16) * 16
        op, grid = "tile_f16", (-(-pieces // LOCAL), height)
        push = {"x": x, "t": to.data, "rows": to.rows, "width": to.k, "x_stride": x_stride, "pieces": pieces}
    else:
        blocks = -(-to.k // 32)
        op, grid = "quantize_q8", (-(-blocks * 8 // LOCAL), to.rows)
        push = {
            "x": x, "codes": to.data, "scales": to.scales, "width": to.k, "blocks": blocks, "x_stride": x_stride,
        }  # fmt: skip
    program.dispatch(
        program.device.kernel(op, "", {"ORDER": order, "LOCAL": LOCAL}),
        grid,
        push,
        reads=[x],
        writes=to.ranges,
        label=f"{label}: x to {kind}",
        nbytes=to.rows * to.k * 6,
    )


def as_int8(x: np.ndarray) -> np.ndarray:
    """What int8 rounding makes of x [rows, k], k a multiple of 32: float32, for references."""
    blocks = x.reshape(x.shape[0], -1, 32).astype(np.float32)
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0))
    out: np.ndarray = (codes * d).reshape(x.shape)
    return out
