"""rope_kv: rotate the queries and keys of a step's rows by their positions, and store keys and values in the cache.

Where an architecture asks for it, q, k and v get a bias and the heads of q and k an RMS norm first, in the same dispatch.
"""

from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.ops import rms_norm, rope
from labkit.ops.kv_cache import PAGE, KVCache, upload
from labkit.ops.rows import ACTIVE, ROW_WORDS, row_range, span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of the heads before they turn. gains: float32 [2, head_dim], of q and of k, on the device."""

    gains: Buffer
    eps: float


def reference(
    qkv: np.ndarray, rows: np.ndarray, table: np.ndarray, k: np.ndarray, v: np.ndarray, page_table: np.ndarray,
    *, heads: int, pairing: str, bias: np.ndarray | None = None, gains: np.ndarray | None = None, eps: float = 0.0,
) -> None:  # fmt: skip
    """The operation in place on arrays: rotates q in `qkv` [R, (heads + 2 kv_heads) head_dim], writes k and v.

    rows uint32 [R, 8]; k, v [pages, kv_heads, PAGE, head_dim], which round to their own type. Inactive rows do nothing.
    bias [width of qkv] is added first; with gains [2, head_dim] the heads of q and k are normed then.
    """
    kv_heads, head_dim = k.shape[1], k.shape[3]
    for r in np.flatnonzero(rows[:, 3] & ACTIVE):
        slot, position = rows[r, 1:3]
        if bias is not None:
            qkv[r] += bias
        each = qkv[r].reshape(1, heads + 2 * kv_heads, head_dim)  # a view
        if gains is not None:
            for gain, part in zip(gains, (slice(heads), slice(heads, heads + kv_heads)), strict=True):
                each[:, part] = rms_norm.reference(each[:, part], gain, eps)
        turned = rope.reference(each[:, : heads + kv_heads], table[position : position + 1], pairing)[0]
        page = page_table[slot, position // PAGE]
        k[page, :, position % PAGE] = turned[heads:]
        v[page, :, position % PAGE] = each[0, heads + kv_heads :]
        each[0, :heads] = turned[:heads]


def record(
    program: Program,
    qkv: Buffer,
    rows: Buffer,
    table: Buffer,
    cache: KVCache,
    *,
    count: int,
    heads: int,
    qkv_stride: int,
    rope_dim: int,
    pairing: str,
    bias: Buffer | None = None,
    norms: HeadNorms | None = None,
    label: str = "rope_kv",
    why: str = "",
) -> None:
    """Rotate q of `count` rows in place and store k (rotated) and v of the active ones in `cache`.

    qkv: float32 [count, qkv_stride]: `heads` q heads, then k heads, then v heads. table: `rope.table` on the device.
    `bias`: float32, one of q, k and v side by side, added first; `norms`: of the heads of q and k, behind the bias.
    `why`: why no product does it as it ends. Raises ParameterError for a pairing, heads, strides or buffers that do not fit.
    """
    if pairing not in rope.PAIRINGS:
        raise ParameterError(f"pairing {pairing!r} is not one of {', '.join(rope.PAIRINGS)}")
    if heads < 1 or heads % cache.kv_heads:
        raise ParameterError(f"{heads} heads are not a multiple of the cache's {cache.kv_heads}")
    if rope_dim % 4 or not 4 <= rope_dim <= cache.head_dim:
        raise ParameterError(f"rope_dim={rope_dim} is not a multiple of 4 from 4 to the head size {cache.head_dim}")
    if table.nbytes < rope_dim * 4:
        raise ParameterError(f"{table!r} holds no angles for {rope_dim} dimensions")
    width = (heads + 2 * cache.kv_heads) * cache.head_dim
    target = span("qkv", qkv, count, qkv_stride, width)
    if bias is not None and bias.nbytes < width * 4:
        raise ParameterError(f"{bias!r} holds no bias of q, k and v, which is {width} floats")
    if norms is not None and (norms.gains.nbytes < 8 * cache.head_dim or not 0 <= norms.eps < 1):
        raise ParameterError(f"norms of heads take 2 x {cache.head_dim} floats and an eps under 1, not {norms}")
    items = width // 4
    local = 32 if program.device.is_cpu else 128
    nbytes = count * ((width + heads * cache.head_dim) * 4 + 2 * cache.position_bytes)
    constants: dict[str, int | float | bool] = {
        "HEADS": heads, "KV_HEADS": cache.kv_heads, "HEAD_DIM": cache.head_dim, "ROPE_DIM": rope_dim,
        "INTERLEAVED": pairing == "interleaved", "PAGE": PAGE, "LOCAL": local,
    }  # fmt: skip
    if bias is not None or norms is not None:
        local = min(8 if program.device.is_cpu else 32, 1 << (cache.head_dim // 4 - 1).bit_length())
        program.dispatch(
            program.device.kernel(
                "rope_kv_heads", cache.kind,
                constants | {"BIAS": bias is not None, "NORM": norms is not None, "LOCAL": local},
            ),
            (heads + 2 * cache.kv_heads, count),
            {
                "qkv": target, "bias": bias or target, "gain": norms.gains if norms else target, "rows": rows,
                "table": table, "cache_k": cache.k, "cache_v": cache.v, "page_table": cache.page_table,
                "qkv_stride": qkv_stride, "pages_per_slot": cache.pages_per_slot, "eps": norms.eps if norms else 0.0,
            },
            reads=[
                target, row_range(rows, count), table, cache.page_table, *([bias] if bias else []),
                *([norms.gains] if norms else []),
            ],
            writes=[target, cache.k, cache.v],
            label=label,
            flops=count * ((3 * rope_dim + 4 * cache.head_dim) * (heads + cache.kv_heads) + width),
            nbytes=nbytes,
            why=why,
        )  # fmt: skip
        return
    program.dispatch(
        program.device.kernel("rope_kv", cache.kind, constants),
        (-(-items // local), count),
        {
            "qkv": target, "rows": rows, "table": table, "cache_k": cache.k, "cache_v": cache.v,
            "page_table": cache.page_table, "qkv_stride": qkv_stride, "pages_per_slot": cache.pages_per_slot,
        },
        reads=[target, row_range(rows, count), table, cache.page_table],
        writes=[target, cache.k, cache.v],
        label=label,
        flops=3 * count * (heads + cache.kv_heads) * rope_dim,
        nbytes=nbytes,
        why=why,
    )  # fmt: skip


def rope_kv(
    device: Device, qkv: np.ndarray, rows: np.ndarray, table: np.ndarray, k: np.ndarray, v: np.ndarray,
    page_table: np.ndarray, *, heads: int, pairing: str, bias: np.ndarray | None = None,
    gains: np.ndarray | None = None, eps: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Run once on arrays of `reference`'s shapes; returns new (qkv, k, v). Raises ParameterError."""
    check_rows(rows, page_table, len(qkv))
    active = rows[:, 3] & ACTIVE > 0
    if active.any() and int(rows[active, 2].max()) >= len(table):
        raise ParameterError(f"position {int(rows[active, 2].max())} is behind the table's {len(table)}")
    with device.pool("rope_kv") as pool:
        cache = upload(pool, k, v, page_table)
        target = pool.buffer(np.ascontiguousarray(qkv, np.float32))
        described, angles = pool.buffer(rows), pool.buffer(table)
        added = None if bias is None else pool.buffer(np.ascontiguousarray(bias, np.float32))
        norms = None if gains is None else HeadNorms(pool.buffer(np.ascontiguousarray(gains, np.float32)), eps)
        program = device.program("rope_kv")
        record(
            program, target, described, angles, cache, count=len(qkv), heads=heads, qkv_stride=qkv.shape[1],
            rope_dim=table.shape[1] * 2, pairing=pairing, bias=added, norms=norms,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, qkv.shape), *cache.arrays()


def check_rows(rows: np.ndarray, page_table: np.ndarray, count: int) -> None:
    """Raise ParameterError unless `rows` is uint32 [count, 8] and its active rows lie in the page table."""
    if rows.dtype != np.uint32 or rows.shape != (count, ROW_WORDS):
        raise ParameterError(f"rows must be uint32 [{count}, {ROW_WORDS}], not {rows.dtype} {list(rows.shape)}")
    active = rows[rows[:, 3] & ACTIVE > 0]
    slots, pages = page_table.shape
    if len(active) and (int(active[:, 1].max()) >= slots or int(active[:, 2].max()) >= pages * PAGE):
        raise ParameterError(f"a row lies outside {slots} slots of {pages * PAGE} positions")
