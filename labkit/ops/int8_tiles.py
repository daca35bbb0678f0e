"""int8_tiles: activations rounded to int8 in tiles, for int8 cooperative matrices: placing them, making them, reference."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

TILE, BLOCK = 16, 32
LARGEST = 65504 * 127 / 64  # magnitude of an activation; a block with a greater one becomes NaN


@dataclass(frozen=True)
class Int8Tiles:
    """Rounded activations on the device, of shaders/include/int8_tiles.glsl: `rows` of `k` elements, padded to tiles.

    `order` 0 keeps the elements' order (8-bit weights), 1 puts the even ones of each 8 before the odd (4-bit weights).
    `sums`, of a block's elements, are there for weights with a minimum.
    """

    rows: int
    k: int
    order: int
    codes: Range
    scales: Range
    sums: Range | None

    @property
    def ranges(self) -> list[Range]:
        """All of it."""
        return [self.codes, self.scales, *([self.sums] if self.sums else [])]


def order_for(layout: str) -> int:
    """The order of elements that weights of `layout` spread to."""
    return 0 if layout == "q8" else 1


def tiles_bytes(rows: int, k: int, *, sums: bool = False) -> int:
    """Bytes that hold `rows` rows of `k` elements (a multiple of 32)."""
    return -(-rows // TILE) * (k // BLOCK) * TILE * (BLOCK + (6 if sums else 2))


def place_tiles(scratch: Buffer, rows: int, k: int, order: int, *, sums: bool = False, offset: int = 0) -> Int8Tiles:
    """Where tiles lie in `scratch` from byte `offset` (a multiple of 16) on. Raises ParameterError if they do not fit."""
    if k % BLOCK or rows < 1:
        raise ParameterError(f"int8 tiles of {rows} rows of {k} elements: rows are whole blocks of {BLOCK}")
    if offset % 16 or offset + tiles_bytes(rows, k, sums=sums) > scratch.nbytes:
        raise ParameterError(
            f"int8 tiles of {rows} rows of {k} elements take {tiles_bytes(rows, k, sums=sums)} bytes at a multiple of 16; "
            f"{scratch.nbytes} bytes from {offset} do not hold them"
        )
    lines = -(-rows // TILE) * TILE * (k // BLOCK)
    return Int8Tiles(
        rows, k, order, scratch.range(offset, lines * BLOCK), scratch.range(offset + lines * BLOCK, lines * 2),
        scratch.range(offset + lines * (BLOCK + 2), lines * 4) if sums else None,
    )  # fmt: skip


def record(program: Program, x: Buffer | Range, to: Int8Tiles, *, x_stride: int, label: str = "") -> None:
    """Add the rounding of float32 x [rows, x_stride]; the stride is in floats, a multiple of 4. Raises ParameterError."""
    if x_stride % 4 or x_stride < to.k:
        raise ParameterError(f"a stride of {x_stride} does not hold rows of {to.k} (it is a multiple of 4)")
    source = x if isinstance(x, Range) else x.range(0, ((to.rows - 1) * x_stride + to.k) * 4)
    program.dispatch(
        program.device.kernel("quantize_tiles", "", {"ORDER": to.order, "SUMS": to.sums is not None}),
        (to.k // BLOCK, -(-to.rows // TILE)),
        {
            "x": source, "codes": to.codes, "scales": to.scales, "sums": to.sums or to.scales, "rows": to.rows,
            "blocks": to.k // BLOCK, "x_stride": x_stride,
        },
        reads=[source],
        writes=to.ranges,
        label=label or "x to int8 tiles",
        nbytes=to.rows * to.k * 4 + sum(r.nbytes for r in to.ranges),
    )  # fmt: skip


def int8_tiles(device: Device, x: np.ndarray, order: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run once on float32 x [rows, k]: what `as_int8_tiles` returns."""
    rows, k = x.shape
    with device.pool("int8 tiles") as pool:
        source = pool.buffer(np.ascontiguousarray(x, np.float32))
        to = place_tiles(pool.buffer(tiles_bytes(rows, k, sums=True)), rows, k, order, sums=True)
        program = device.program("int8 tiles")
        record(program, source, to, x_stride=k)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return read(to)


def read(tiles: Int8Tiles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tiles from the device, as `as_int8_tiles` returns them (sums are empty where there are none)."""
    whole = tiles.codes.buffer.download(np.uint8)
    shape = (-(-tiles.rows // TILE), tiles.k // BLOCK)

    def part(r: Range | None, kind: type, *inner: int) -> np.ndarray:
        found: np.ndarray = np.empty(0, kind) if r is None else whole[r.offset : r.offset + r.nbytes].view(kind)
        return found.reshape(*shape, *inner) if r else found

    return (
        part(tiles.codes, np.int8, TILE, BLOCK), part(tiles.scales, np.float16, TILE),
        part(tiles.sums, np.float16, 2, TILE),
    )  # fmt: skip


def _scales(top: np.ndarray) -> np.ndarray:
    """float16 h, the least with 127 h >= 64 top; NaN for what is not finite or too large. top: float32."""
    usable = np.isfinite(top) & (top <= LARGEST)
    t = np.where(usable, top, 0).astype(np.float64) * 64
    h = (t / 127).astype(np.float16)
    below = np.nextafter(h, np.float16(0))
    h = np.where(below.astype(np.float64) * 127 >= t, below, h)
    above = np.nextafter(np.minimum(h, np.float16(65472)), np.float16(np.inf))
    h = np.where(h.astype(np.float64) * 127 < t, above, h)
    h = np.where(top <= 2.0**-31, np.float16(0), h)
    return np.where(usable, h, np.float16(np.nan))


def _down_to_half(x: np.ndarray) -> np.ndarray:
    """float16 of x towards zero. x: float64."""
    h = x.astype(np.float16)
    return np.where(np.abs(h.astype(np.float64)) > np.abs(x), np.nextafter(h, np.float16(0)), h)


def _rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole-number codes [rows, blocks, 32] (float64) and h [rows, blocks] (float16) of x [rows, k]."""
    blocks = x.reshape(x.shape[0], -1, BLOCK).astype(np.float32)
    h = _scales(np.abs(blocks).max(axis=-1))
    wide = h.astype(np.float64)[..., None]
    usable = wide > 0
    return np.rint(np.divide(blocks * 64.0, wide, out=np.zeros(blocks.shape), where=usable)), h


def as_int8(x: np.ndarray) -> np.ndarray:
    """What the rounding makes of x [rows, k], k a multiple of 32: float64, exact, for references."""
    codes, h = _rounded(x)
    out: np.ndarray = (codes * h.astype(np.float64)[..., None] / 64).reshape(x.shape)
    return out


def as_int8_tiles(x: np.ndarray, order: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tiles of x [rows, k], bit for bit what shaders/quantize_tiles.comp makes.

    Returns codes int8 [tiles, blocks, 16, 32], scales float16 [tiles, blocks, 16], and sums float16 [tiles, blocks, 2, 16].
    """
    codes, h = _rounded(np.pad(x, ((0, -len(x) % TILE), (0, 0))))
    with np.errstate(over="ignore"):
        s = codes.sum(axis=-1) * h.astype(np.float64) / 64
        high = np.where(np.abs(s) > 65504, np.copysign(np.inf, s), _down_to_half(np.clip(s, -65504, 65504)))
        high = high.astype(np.float16)
        left = np.where(np.isfinite(high), s - np.where(np.isfinite(high), high, 0).astype(np.float64), 0)
        low = np.copysign(_down_to_half(left), s).astype(np.float16)
    high, low = (np.where(np.isnan(h), h, part) for part in (high, low))
    low = np.where(np.isinf(high), np.float16(0), low)
    if order == 1:
        eights = codes.reshape(*codes.shape[:2], 4, 8)
        codes = np.concatenate([eights[..., 0::2], eights[..., 1::2]], axis=-1).reshape(codes.shape)

    def tiled(a: np.ndarray) -> np.ndarray:
        """[rows, blocks, ...] to [tiles, blocks, 16, ...]."""
        return np.moveaxis(a.reshape(-1, TILE, *a.shape[1:]), 1, 2)

    sums = np.stack([tiled(high), tiled(low)], axis=2).astype(np.float16)
    return np.ascontiguousarray(tiled(codes).astype(np.int8)), np.ascontiguousarray(tiled(h)), sums
