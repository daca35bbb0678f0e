"""attention: causal attention of every row over its slot's cached positions, page by page, then the pages joined."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.kv_cache import PAGE, KVCache, upload
from labkit.ops.rope_kv import check_rows
from labkit.ops.rounding import Rounded, Rounding
from labkit.ops.rows import ACTIVE, row_range, span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """softmax(q k^T scale) v of one row in float64 (arXiv:1706.03762), returned as float32; scale 1/sqrt(head_dim) if None.

    q [heads, head_dim]; k, v [T, kv_heads, head_dim]: the positions seen. A KV head serves heads/kv_heads q heads.
    """
    group = q.shape[0] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), group, axis=1) for a in (k, v))  # [T, heads, head_dim]
    scores = np.einsum("hd,thd->ht", q.astype(np.float64), k) * (1 / math.sqrt(q.shape[1]) if scale is None else scale)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    out: np.ndarray = np.einsum("ht,thd->hd", p / p.sum(axis=1, keepdims=True), v)
    return out.astype(np.float32)


def splits_for(positions: int) -> int:
    """Pages that cover `positions` positions: what `splits` must be at least when a row sees that many."""
    return -(-positions // PAGE)


def partial_bytes(count: int, heads: int, head_dim: int, splits: int) -> int:
    """Bytes of scratch that `record` needs for `count` rows and `splits` pages."""
    return count * heads * splits * (head_dim + 2) * 4


ENOUGH = 128  # workgroups that keep a large device busy: about one a multiprocessor of an H200
SPAN = 2  # pages a workgroup of the kernel for GPUs takes; the order of sums depends on it


def leaves(rounding: Rounding | None, width: int, head_dim: int) -> bool:
    """Whether the kernel for GPUs can leave `width` columns of heads of `head_dim` rounded so, instead of float32."""
    if rounding is None or rounding.order > 1:
        return False
    return (rounding.kind == "float16" and width % 16 == 0) or (rounding.kind == "int8_tiles" and head_dim % 32 == 0)


def ticket_bytes(count: int, heads: int) -> int:
    """Bytes of tickets, zero before and after, for `count` rows."""
    return count * heads * 4


@dataclass(frozen=True)
class Shape:
    """How a page is cut among invocations: shaders/attention_teams.comp, or attention.comp, for CPUs, if `team` is 0."""

    qpack: int
    team: int = 0
    local: int = 8
    ahead: bool = True

    @property
    def span(self) -> int:
        """Pages a workgroup takes in turn. A second page costs an H200 about 2 us at one row; to join two, 10."""
        return SPAN if self.team else 1


def shape(device: Device, group: int, head_dim: int, kind: str = "f16") -> Shape:
    """The cut for `group` q heads a KV head. It depends on device and model only, so that sums keep their order.

    For GPUs, 128 invocations: at 4,096 positions an H200 takes a quarter less time than with 256. `kind` is the cache's.
    """
    packs = -(-group // 4)
    qpack = -(-group // packs)
    if device.is_cpu and device.info.subgroup_size == 8:
        return Shape(min(group, 4))
    info, eights = device.info, -(-head_dim // 8)
    team = max(4, min(1 << (eights - 1).bit_length(), info.subgroup_min, 32))
    local = min(128, info.max_workgroup_invocations)
    while local > max(team, info.subgroup_size) and local // team * qpack * (head_dim + 2) * 4 > min(
        info.max_shared_bytes, 49152
    ):
        local //= 2
    return Shape(qpack, team, local, kind == "f16")


def _pack(most: int, group: int, spans: int) -> int:
    """q heads a workgroup serves: as many as leave the device enough workgroups. It does not change a result."""
    packs = [n for n in (4, 2) if n <= most and group % n == 0 and spans * (group // n) >= ENOUGH]
    return max(packs, default=1) if spans * -(-group // most) < ENOUGH else most


def record(
    program: Program,
    qkv: Buffer,
    rows: Buffer,
    cache: KVCache,
    partial: Buffer | None,
    y: Buffer | Rounded,
    *,
    count: int,
    heads: int,
    qkv_stride: int,
    y_stride: int,
    splits: int,
    tickets: Buffer | None = None,
    scale: float | None = None,
    window: int = 0,
    label: str = "attention",
    cut: Shape | None = None,
) -> None:
    """Add y[r] = attention of row r's q heads over positions 0 to its own of its slot, for `count` rows.

    qkv: float32 [count, qkv_stride], q heads first (rotated, by `rope_kv`, which also filled `cache`).
    y: float32 [count, y_stride], heads side by side; zeros for inactive rows. `splits`: pages looked at, at least
    `splits_for(position + 1)` of every active row; it does not change a result. `partial`: `partial_bytes(...)` of
    scratch, or None when splits is 1. `y` may be float16 tiles (order 0 or 1) for the product behind it, except on CPUs.
    `scale`: 1/sqrt(head_dim) by default. `window`: positions a row sees, its own included; 0 for all. `tickets`:
    `ticket_bytes(...)` of zeros, with which the kernel for GPUs joins the pages itself; on CPUs a second dispatch does,
    when splits is not 1.
    Raises ParameterError for heads, strides, splits or buffers that do not fit.
    """
    device, head_dim, group = program.device, cache.head_dim, heads // cache.kv_heads
    if heads < 1 or heads % cache.kv_heads:
        raise ParameterError(f"{heads} heads are not a multiple of the cache's {cache.kv_heads}")
    if not 1 <= splits <= cache.pages_per_slot:
        raise ParameterError(f"splits={splits} is not between 1 and the {cache.pages_per_slot} pages of a slot")
    if not 0 <= window < 1 << 31:
        raise ParameterError(f"window={window} is not from 0 to 2^31")
    source = span("qkv", qkv, count, qkv_stride, (heads + 2 * cache.kv_heads) * head_dim)
    tiled, suffix = 0, ""
    ends: dict[str, Any] = {}
    if isinstance(y, Rounded):
        if not leaves(y.rounding, heads * head_dim, head_dim) or y.k != heads * head_dim or y.rows < count:
            raise ParameterError(
                f"attention leaves tiles of order 0 or 1 and a multiple of 16 columns (int8: of whole heads of 32), "
                f"not {y.rounding} of {y.rows} x {y.k}"
            )
        target, y_stride, tiled = y.data, y.k, 1 + y.rounding.order
        if y.tiles is not None:
            suffix, ends = "_int8", {"y_scales": y.tiles.scales, "y_sums": y.tiles.sums or y.tiles.scales}
    else:
        target = span("y", y, count, y_stride, heads * head_dim)
    if cut is None:
        cut = shape(device, group, head_dim, cache.kind)
        if cut.team:
            cut = replace(cut, qpack=_pack(cut.qpack, group, cache.kv_heads * count * -(-splits // cut.span)))
    splits = -(-splits // cut.span)
    described, direct = row_range(rows, count), splits == 1
    need = 0 if direct else partial_bytes(count, heads, head_dim, splits)
    if need and (partial is None or partial.nbytes < need):
        raise ParameterError(f"attention over {splits} pages of {count} rows needs {need} bytes of scratch")
    scratch = [partial.range(0, need)] if partial is not None and need else []
    accumulators = partial if partial is not None and need else target
    state = partial.range(count * heads * splits * head_dim * 4) if partial is not None and need else target
    constants: dict[str, int | float | bool] = {
        "HEAD_DIM": head_dim, "KV_HEADS": cache.kv_heads, "GROUP": group, "QPACK": cut.qpack, "PAGE": PAGE,
        "DIRECT": direct,
    }  # fmt: skip
    if window:
        constants["WINDOW"] = window
    if tiled and not cut.team:
        raise ParameterError("attention on a CPU driver leaves float32, not tiles")
    packs = cache.kv_heads * -(-group // cut.qpack)
    drawn: list[Buffer | Range] = []
    tickets_push: dict[str, Buffer | Range] = {}
    if cut.team:
        if not direct:
            if tickets is None or tickets.nbytes < ticket_bytes(count, heads):
                raise ParameterError(
                    f"pages are joined by tickets: {ticket_bytes(count, heads)} bytes of zeros are needed"
                )
            drawn = [tickets.range(0, ticket_bytes(count, heads))]
        tickets_push = {"tickets": drawn[0] if drawn else target}
        constants |= {"TEAM": cut.team, "AHEAD": cut.ahead, "TILED": tiled, "SPAN": cut.span, "LOCAL": cut.local}
        if suffix:
            assert isinstance(y, Rounded)
            constants |= {"SUMS": y.rounding.sums}
            tickets_push |= ends
        kernel = device.kernel("attention_teams", cache.kind + suffix, constants)
    else:
        kernel = device.kernel("attention", f"{cache.kind}_wide" if device.has("int64") else cache.kind, constants)
    seen = splits * cut.span * PAGE
    if window:
        seen = min(seen, window)
    program.dispatch(
        kernel,
        (packs, splits, count),
        tickets_push | {
            "qkv": source, "rows": rows, "cache_k": cache.k, "cache_v": cache.v, "page_table": cache.page_table,
            "partial": accumulators, "state": state, "y": target, "qkv_stride": qkv_stride, "y_stride": y_stride,
            "splits": splits, "pages_per_slot": cache.pages_per_slot,
            "scale": 1 / math.sqrt(head_dim) if scale is None else scale,
        },
        reads=[source, described, cache.k, cache.v, cache.page_table],
        writes=[*scratch, *drawn, *(y.ranges if isinstance(y, Rounded) else [target])] if cut.team else scratch or [target],
        label=label,
        flops=4 * count * seen * heads * head_dim,
        nbytes=seen * 2 * cache.position_bytes + count * 2 * heads * head_dim * 4,
    )  # fmt: skip
    if direct or cut.team:
        return
    program.dispatch(
        device.kernel("attention_merge", "", {"HEAD_DIM": head_dim, "PAGE": PAGE, "LOCAL": 32}),
        (-(-heads * head_dim // 128), count),
        {
            "partial": accumulators, "state": state, "rows": rows, "y": target, "y_stride": y_stride,
            "splits": splits, "heads": heads,
        },
        reads=[*scratch, described],
        writes=[target],
        label=f"{label} merge",
        flops=2 * count * splits * heads * head_dim,
        nbytes=need + count * heads * head_dim * 4,
    )  # fmt: skip


def attention(
    device: Device, qkv: np.ndarray, rows: np.ndarray, k: np.ndarray, v: np.ndarray, page_table: np.ndarray,
    *, heads: int, splits: int | None = None, cut: Shape | None = None, window: int = 0,
) -> np.ndarray:  # fmt: skip
    """Run once on arrays: qkv float32 [R, (heads + 2 kv_heads) head_dim], rows uint32 [R, 8], a filled cache.

    k, v: float16 or float32 [pages, kv_heads, PAGE, head_dim]; page_table uint32 [slots, pages_per_slot].
    Returns float32 [R, heads * head_dim]. Raises ParameterError for a wrong argument.
    """
    check_rows(rows, page_table, len(qkv))
    seen = int((rows[:, 2] * (rows[:, 3] & ACTIVE)).max()) + 1
    splits = splits_for(seen) if splits is None else splits
    if splits < splits_for(seen):
        raise ParameterError(f"splits={splits} leaves out positions: a row sees {seen}")
    width = heads * k.shape[3]
    with device.pool("attention") as pool:
        cache = upload(pool, k, v, page_table)
        source, described = pool.buffer(np.ascontiguousarray(qkv, np.float32)), pool.buffer(rows)
        partial = pool.buffer(partial_bytes(len(qkv), heads, k.shape[3], splits))
        target = pool.buffer(len(qkv) * width * 4)
        tickets = pool.buffer(ticket_bytes(len(qkv), heads)).fill(0)
        program = device.program("attention")
        record(
            program, source, described, cache, partial, target, count=len(qkv), heads=heads, qkv_stride=qkv.shape[1],
            y_stride=width, splits=splits, tickets=tickets, cut=cut, window=window,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (len(qkv), width))
