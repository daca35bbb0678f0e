"""flash_attention: causal attention of a prompt's rows, a block of them at a time, on cooperative matrices."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.coopmat_layout import Layout, layout_of
from labkit.ops.kv_cache import PAGE, KVCache, upload
from labkit.ops.linear_cuts import subgroup_for_coopmat
from labkit.ops.rounding import Rounded, Rounding, place, scratch_bytes
from labkit.ops.rows import span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

BLOCK_WORDS = 4  # uint32 a block: first row, rows, slot, first position
MOST_CROWDED = (
    128  # dimensions of a head, where k and v take more registers: of 256, RDNA 3.5 and 4 hold none without scratch
)


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, *, scale: float | None = None, window: int = 0
) -> np.ndarray:
    """Causal attention of rows at `positions` of one slot, in float64 over q, k and v rounded to float16.

    q [R, heads, head_dim]; k, v [T, kv_heads, head_dim] with T over every position. Returns float64 [R, heads, head_dim].
    The kernel rounds p = exp(s - m) to float16 besides, m being the running maximum: about 2e-8 of the square.
    """
    group = q.shape[1] // k.shape[1]
    q, k, v = (np.clip(a, -65504, 65504).astype(np.float16).astype(np.float64) for a in (q, k, v))
    out = np.empty(q.shape)
    for r, position in enumerate(positions.tolist()):
        first = max(position + 1 - window, 0) if window else 0
        seen_k, seen_v = (np.repeat(a[first : position + 1], group, axis=1) for a in (k, v))
        s = np.einsum("hd,thd->ht", q[r], seen_k) * (1 / math.sqrt(q.shape[2]) if scale is None else scale)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        out[r] = np.einsum("ht,thd->hd", p / p.sum(axis=1, keepdims=True), seen_v)
    return out


@dataclass(frozen=True)
class Cut:
    """How a workgroup is cut: see shaders/flash_attention.comp.

    subgroups: of a workgroup; tiles: of `size` rows, a subgroup; columns: positions of K and V staged at once; pack: q
    heads of a KV head a workgroup serves; held: pieces of q (of head_dim / size) in registers, the rest in shared memory.
    """

    subgroups: int
    tiles: int
    columns: int
    pack: int
    held: int
    size: int = 16
    subgroup: int = 32

    @property
    def block_rows(self) -> int:
        """Rows a block may have."""
        return self.subgroups * self.tiles * self.size // self.pack

    def shared_bytes(self, head_dim: int, layout: Layout) -> int:
        """Shared memory a workgroup takes."""
        pad = head_dim // 8 + 1
        tile = self.size * max(self.held * self.size // 8 + 1, self.size // 4)
        staged = max(2 * self.columns * pad, self.subgroups * tile)
        lines = self.subgroups * self.tiles * self.size
        rest = lines * ((head_dim - self.held * self.size) // 8 + 1) if self.held < head_dim // self.size else 0
        p = 0 if layout.direct else self.subgroups * self.size * (self.columns // 8 + 1)
        return 16 * (staged + rest + p + self.size * self.size // 4)


def choose(device: Device, group: int, head_dim: int) -> tuple[Cut | None, str]:
    """The cut for `group` q heads a KV head, or None and why the device has none."""
    size, layout = device.coopmat_size, layout_of(device)
    if not size:
        return None, "the device has no cooperative matrices (or LABKIT_DISABLE turns them off)"
    if layout is None:
        return None, "the device's cooperative matrices lie in no order this kernel knows"
    if head_dim % 16:
        return None, f"heads of {head_dim} are no multiple of 16"
    wide = {"size": size, "subgroup": subgroup_for_coopmat(device)}
    pack = next(n for n in (8, 4, 2, 1) if n <= group and (group % n == 0 or n == 1))
    # the other way round, or through memory, an invocation has more of k and v beside its q
    crowded = layout.transposed or not layout.direct
    if crowded and head_dim > MOST_CROWDED:
        return None, f"heads of {head_dim} spill registers where matrices lie as on {device.name}"
    held = head_dim // size // (2 if crowded else 1)
    for subgroups, columns in ((4, 32), (4, 16)):  # on an H200 four are as fast as eight, and share a multiprocessor
        cut = Cut(subgroups, 1, columns, min(pack, subgroups), held, **wide)
        if cut.shared_bytes(head_dim, layout) <= device.info.max_shared_bytes:
            return cut, ""
    return None, f"heads of {head_dim} need more shared memory than {device.name} has"


def blocks_of(slots: np.ndarray, positions: np.ndarray, block_rows: int, *, first_row: int = 0) -> np.ndarray:
    """Blocks of at most `block_rows` rows that follow each other in one slot: uint32 [blocks, 4], longest first.

    slots, positions: of the rows `first_row` on. A block: (first row, rows, slot, first position).
    """
    slots, positions = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
    if slots.shape != positions.shape or slots.ndim != 1 or block_rows < 1:
        raise ParameterError(f"slots {slots.shape} and positions {positions.shape} are not of as many rows")
    if not len(slots):
        return np.zeros((0, BLOCK_WORDS), np.uint32)
    breaks = np.flatnonzero((np.diff(slots) != 0) | (np.diff(positions) != 1)) + 1
    edges = [0, *breaks.tolist(), len(slots)]
    blocks = [
        (start, min(block_rows, end - start))
        for begin, end in itertools.pairwise(edges)
        for start in range(begin, end, block_rows)
    ]
    starts, counts = np.array(blocks).T
    table = np.stack([starts + first_row, counts, slots[starts], positions[starts]], axis=1)
    return table[np.argsort(-(table[:, 3] + table[:, 1]), kind="stable")].astype(np.uint32)


def most_blocks(rows: int, runs: int, block_rows: int) -> int:
    """Blocks that suffice for `rows` rows in `runs` runs of one slot each."""
    return -(-rows // block_rows) + max(runs - 1, 0)


def record(
    program: Program,
    qkv: Buffer,
    blocks: Buffer | Range,
    cache: KVCache,
    y: Buffer | Rounded,
    *,
    count: int,
    rows: int,
    heads: int,
    qkv_stride: int,
    y_stride: int = 0,
    scale: float | None = None,
    window: int = 0,
    label: str = "flash attention",
    cut: Cut | None = None,
    pairs: int = 0,
) -> None:
    """Add y[r] = attention of row r's q heads over positions 0 to its own of its slot, for the rows of `count` blocks.

    qkv: float32 [rows, qkv_stride], q heads first (rotated, by `rope_kv`, which also filled `cache`). blocks: uint32
    [count, 4] by `blocks_of` with the cut's `block_rows`; those of 0 rows are left out. y: float32 [rows, y_stride],
    heads side by side, or `Rounded` to float16 of as many columns. Rows of no block keep what they have; a block reaches
    for no page behind its last position, and a NaN there stays there. `window`: positions a row sees, its own included; 0
    for all. `pairs`: of row and position, for the FLOPs said.
    Raises ParameterError for heads, strides, buffers or a device that do not fit.
    """
    device, head_dim = program.device, cache.head_dim
    if heads < 1 or heads % cache.kv_heads:
        raise ParameterError(f"{heads} heads are not a multiple of the cache's {cache.kv_heads}")
    group = heads // cache.kv_heads
    why = "asked for"
    if cut is None:
        cut, why = choose(device, group, head_dim)
    layout = layout_of(device)
    if cut is None or layout is None:
        raise ParameterError(f"flash attention cannot run here: {why or 'no layout'}")
    check_cut(cut, device, layout, group, head_dim)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    if not 0 < scale < math.inf:
        raise ParameterError(f"scale={scale} is not a positive number")
    if not 0 <= window < 1 << 31:
        raise ParameterError(f"window={window} is not from 0 to 2^31")
    source = span("qkv", qkv, rows, qkv_stride, (heads + 2 * cache.kv_heads) * head_dim)
    table = blocks.range() if isinstance(blocks, Buffer) else blocks
    if count < 1 or table.nbytes < count * BLOCK_WORDS * 4:
        raise ParameterError(f"{count} blocks were asked for and the table holds {table.nbytes // (BLOCK_WORDS * 4)}")
    table = table.buffer.range(table.offset, count * BLOCK_WORDS * 4)
    width = heads * head_dim
    if isinstance(y, Rounded):
        if y.rounding.kind != "float16" or y.k != width or y.rows < rows:
            raise ParameterError(f"y is rounded to {y.rounding.kind} [{y.rows}, {y.k}], not float16 [{rows}, {width}]")
        target, y_stride, out = y.data, width, 1 + y.rounding.order
    else:
        target, out = span("y", y, rows, y_stride, width), 0
    constants: dict[str, int | float | bool] = {
        "HEAD_DIM": head_dim, "KV_HEADS": cache.kv_heads, "GROUP": group, "PACK": cut.pack, "PAGE": PAGE,
        "SIZE": cut.size, "SUBGROUPS": cut.subgroups, "FR": cut.tiles, "BC": cut.columns, "HELD": cut.held,
        "OUT": out, "ROWS": layout.rows, "ROW_OF": layout.row_of, "SHARED_BY": layout.shared_by,
        "DIRECT": layout.direct, "ORDER": layout.order, "SUBGROUP": cut.subgroup,
        "LOCAL": cut.subgroups * cut.subgroup,
    }  # fmt: skip
    if window:
        constants["WINDOW"] = window
    variant = f"{cache.kind}_transposed" if layout.transposed else cache.kind
    kernel = device.kernel("flash_attention", variant, constants, cut.subgroup)
    program.dispatch(
        kernel,
        (cache.kv_heads * -(-group // cut.pack), count),
        {
            "qkv": source, "blocks": table, "cache_k": cache.k, "cache_v": cache.v, "page_table": cache.page_table,
            "y": target, "qkv_stride": qkv_stride, "y_stride": y_stride, "pages_per_slot": cache.pages_per_slot,
            "scale": scale * math.log2(math.e),
        },
        reads=[source, table, cache.k, cache.v, cache.page_table],
        writes=[target],
        label=label,
        flops=4 * pairs * width,
        nbytes=rows * width * (6 if out else 8) + 2 * rows * cache.position_bytes,
        why=why,
    )  # fmt: skip


def check_cut(cut: Cut, device: Device, layout: Layout, group: int, head_dim: int) -> None:
    """Raise ParameterError, in one line, for a cut that the device or the heads do not allow."""
    lines = cut.subgroups * cut.tiles
    if cut.size != device.coopmat_size or cut.subgroup != subgroup_for_coopmat(device):
        raise ParameterError(f"{cut} is not for {device.name}, whose matrices are of {device.coopmat_size}")
    if head_dim % 16:
        raise ParameterError(f"flash attention takes heads of a multiple of 16, not {head_dim}")
    if not (1 <= cut.pack <= group and lines % cut.pack == 0 and 0 <= cut.held <= head_dim // cut.size):
        raise ParameterError(f"{cut}: pack divides subgroups * tiles and is at most {group}; held ends at q's pieces")
    if cut.columns < cut.size or cut.columns % cut.size or PAGE % cut.columns:
        raise ParameterError(f"{cut}: columns are a multiple of {cut.size} that divides {PAGE}")
    need = cut.shared_bytes(head_dim, layout)
    if need > device.info.max_shared_bytes:
        raise ParameterError(f"{cut} needs {need} bytes of shared memory; there are {device.info.max_shared_bytes}")


def flash_attention(
    device: Device, qkv: np.ndarray, rows: np.ndarray, k: np.ndarray, v: np.ndarray, page_table: np.ndarray,
    *, heads: int, cut: Cut | None = None, order: int | None = None, blocks: np.ndarray | None = None,
    fill: float = math.nan, scale: float | None = None, window: int = 0,
) -> np.ndarray:  # fmt: skip
    """Run once on arrays: qkv float32 [R, (heads + 2 kv_heads) head_dim], rows uint32 [R, 8], a filled cache.

    k, v: float16 or float32 [pages, kv_heads, PAGE, head_dim]; page_table uint32 [slots, pages_per_slot]. Returns float32
    [R, heads * head_dim], `fill` in rows of no block; or with `order` the float16 tiles [R / 16, width / 16, 16, 16].
    Raises ParameterError for a wrong argument.
    """
    width = heads * k.shape[3]
    if cut is None:
        cut, why = choose(device, heads // k.shape[1], k.shape[3])
        if cut is None:
            raise ParameterError(f"flash attention cannot run here: {why}")
    table = blocks_of(rows[:, 1], rows[:, 2], cut.block_rows) if blocks is None else blocks
    with device.pool("flash attention") as pool:
        cache = upload(pool, k, v, page_table)
        source, described = pool.buffer(np.ascontiguousarray(qkv, np.float32)), pool.buffer(table)
        target: Buffer | Rounded
        if order is None:
            target = pool.buffer(np.full((len(qkv), width), fill, np.float32))
        else:
            scratch = pool.buffer(scratch_bytes(len(qkv), width))
            target = place(scratch, Rounding("float16", order), len(qkv), width)
        program = device.program("flash attention")
        record(
            program, source, described, cache, target, count=len(table), rows=len(qkv), heads=heads,
            qkv_stride=qkv.shape[1], y_stride=width, cut=cut, scale=scale, window=window,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        if isinstance(target, Rounded):
            tiles = target.data.buffer.download(np.float16)[: target.data.nbytes // 2]
            return tiles.reshape(-(-len(qkv) // 16), width // 16, 16, 16)
        return target.download(np.float32, (len(qkv), width))
