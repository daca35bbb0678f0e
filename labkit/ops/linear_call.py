"""One linear operation as a dispatch: the constants, push constants and grid of each cut."""

from dataclasses import dataclass
from typing import Any

from labkit.errors import ParameterError
from labkit.ops.carried_norm import Carried, Carry, stride
from labkit.ops.coopmat_layout import operands_of
from labkit.ops.kv_cache import PAGE, KVCache
from labkit.ops.linear_cuts import CODES, STEP, Coopmat, Lanes, Matvec, MatvecInt8, MatvecK
from labkit.ops.linear_fragments import BLOCKS, LANES, Fragments, M, N, check_fragments
from labkit.ops.rounding import Rounded
from labkit.vulkan.kernel import Grid
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

Constants = dict[str, int | float | bool]
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2, "rope_kv": 3}
FINISHING = (Matvec, MatvecInt8, MatvecK, Coopmat, Fragments)  # cuts whose kernels include epilogue.glsl whole
CARRYING = (Coopmat, Fragments)  # cuts whose kernels include carried_norm.glsl


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [n, k] resident on a device."""

    layout: str
    n: int
    k: int
    codes: Buffer
    scales: Buffer | None
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes a pass over the matrix reads."""
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)


@dataclass(frozen=True)
class Norm:
    """x is normed first, x / sqrt(mean(x^2) + eps) * gain: of its one row, or of row logit_rows[0]."""

    gain: Buffer
    eps: float
    logit_rows: Buffer | None = None


@dataclass(frozen=True)
class RopeKV:
    """What "rope_kv" needs: the step's rows, the angles of interleaved pairs, a layer's cache, and what row of q, k and v
    the matrix starts at."""

    rows: Buffer
    table: Buffer
    cache: KVCache
    heads: int
    rope_dim: int
    offset: int = 0


@dataclass(frozen=True)
class Call:
    """One linear operation on its way into a program: what all cuts share."""

    program: Program
    matrix: Matrix
    x: Range
    y: Range
    rows: int
    x_stride: int
    y_stride: int
    epilogue: str
    label: str
    why: str
    norm: Norm | None = None
    rope: RopeKV | None = None
    tiled: Rounded | None = None
    carry: Carry | None = None
    carried: Carried | None = None

    def _dispatch(
        self, op: str, constants: Constants, grid: Grid, push: dict[str, Any], x: list[Range], subgroup: int = 0
    ) -> None:
        m = self.matrix
        weights: list[Buffer | Range] = [m.codes, *([m.scales] if m.scales else [])]
        width = m.n // 2 if self.epilogue == "swiglu" else m.n
        reads: list[Buffer | Range] = [*weights, *x, *([self.y] if self.epilogue == "add" else [])]
        writes: list[Buffer | Range] = [self.y] if self.tiled is None else [*self.tiled.ranges]
        if self.norm is not None:
            reads += [self.norm.gain, *([self.norm.logit_rows] if self.norm.logit_rows else [])]
        if self.rope is not None:
            cache = self.rope.cache
            reads += [self.rope.rows, self.rope.table, cache.page_table]
            writes += [cache.k, cache.v]
        for passed in (self.carry, self.carried):
            if passed is not None:
                reads += passed.reads
                writes += passed.writes
        self.program.dispatch(
            self.program.device.kernel(op, m.layout, constants | {"EPILOGUE": EPILOGUES[self.epilogue]}, subgroup),
            grid,
            {
                "w": m.codes, "scales": m.scales or m.codes, "y": self.y, "rows": self.rows, "n": m.n, "k": m.k,
                "y_stride": self.y_stride, **push,
            },
            reads=reads,
            writes=writes,
            label=self.label,
            flops=2 * self.rows * m.n * m.k,
            nbytes=m.nbytes + self.rows * (m.k + width) * 4,
            why=self.why,
        )  # fmt: skip

    def _finish(self) -> tuple[Constants, dict[str, Any]]:
        """Constants and push constants of include/epilogue.glsl."""
        push: dict[str, Any] = dict.fromkeys(("row_words", "table", "cache_k", "cache_v", "page_table"), self.y)
        push |= {"offset": 0, "pages_per_slot": 1}
        if self.rope is None:
            return {}, push
        r, cache = self.rope, self.rope.cache
        push |= {
            "row_words": r.rows, "table": r.table, "cache_k": cache.k, "cache_v": cache.v,
            "page_table": cache.page_table, "offset": r.offset, "pages_per_slot": cache.pages_per_slot,
        }  # fmt: skip
        return {
            "HEADS": r.heads, "KV_HEADS": cache.kv_heads, "HEAD_DIM": cache.head_dim, "ROPE_DIM": r.rope_dim,
            "PAGE": PAGE, "KV_F32": cache.kind == "f32",
        }, push  # fmt: skip

    def _gathered(self) -> dict[str, Any]:
        """Push constants of a norm in the kernel, or of none."""
        if self.norm is None:
            return {"gain": self.x, "logit_rows": self.x, "eps": 0.0}
        return {"gain": self.norm.gain, "logit_rows": self.norm.logit_rows or self.x, "eps": self.norm.eps}

    def _carried(self) -> tuple[Constants, dict[str, Any]]:
        """Constants and push constants of include/carried_norm.glsl; those of `_finish` come before."""
        constants: Constants = {"CARRIED": self.carried is not None, "CARRIED_ROWS": stride(self.rows)}
        push: dict[str, Any] = {"carried": self.x, "slot": 0, "eps": 0.0}
        if self.carried is not None:
            push = {
                "carried": self.carried.state.numbers, "slot": self.carried.turn + 2 * self.carried.keep,
                "eps": self.carried.eps,
            }  # fmt: skip
        if self.carry is not None:
            constants["CARRY"] = 1 + self.carry.tiles.rounding.order
            push |= {
                "carried": self.carry.state.numbers, "slot": self.carry.turn, "table": self.carry.gain,
                "cache_k": self.carry.tiles.data,
            }  # fmt: skip
        return constants, push

    def lanes(self, cut: Lanes) -> None:
        if self.epilogue == "swiglu" and cut.rpl % 2:
            raise ParameterError("the swiglu epilogue needs an even number of rows a lane")
        block = 32 if self.matrix.layout in CODES else 16
        constants: Constants = {
            "COLS": cut.cols, "RPL": cut.rpl, "KSPLIT": cut.ksplit, "LANES": cut.lanes, "XSHARE": cut.xshare,
            "TAIL": self.matrix.k % block != 0, "LOCAL": cut.ksplit * cut.lanes,
        }  # fmt: skip
        grid = (-(-self.matrix.n // (cut.lanes * cut.rpl)), -(-self.rows // cut.cols))
        self._dispatch("linear", constants, grid, {"x": self.x, "x_stride": self.x_stride}, [self.x])

    def matvec(self, cut: Matvec) -> None:
        finish, push = self._finish()
        constants: Constants = {
            "COLS": cut.cols, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "LOCAL": 32 * cut.teams,
            "TAIL": self.matrix.k % (STEP[self.matrix.layout] * cut.teams * cut.unroll) != 0, "PIPE": cut.pipe,
            "REPEAT": cut.repeat, "NORM_WIDTH": self.matrix.k if self.norm else 0,
            "GATHER": self.norm is not None and self.norm.logit_rows is not None,
        }  # fmt: skip
        push |= {"x": self.x, "x_stride": self.x_stride, **self._gathered()}
        self._dispatch("matvec", constants | finish, self._tile_grid(cut), push, [self.x])

    def _tile_grid(self, cut: Matvec | MatvecInt8 | MatvecK) -> Grid:
        groups = -(-self.matrix.n // (16 * cut.tiles))
        return -(-groups // cut.repeat), -(-self.rows // cut.cols)

    def matvec_int8(self, cut: MatvecInt8 | MatvecK, rounded: Rounded | None) -> None:
        """Over x `rounded`, or rounded (and normed) by each workgroup."""
        finish, push = self._finish()
        k_quant, k = isinstance(cut, MatvecK), self.matrix.k
        step = 256 if k_quant else STEP[self.matrix.layout]
        constants: Constants = {
            "COLS": cut.cols, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "LOCAL": 32 * cut.teams,
            "TAIL": k % (step * cut.teams * cut.unroll) != 0, "PIPE": cut.pipe, "REPEAT": cut.repeat,
            "SOURCE_WIDTH": 0 if rounded else -(-k // 32) * 32, "NORM": self.norm is not None,
            "GATHER": self.norm is not None and self.norm.logit_rows is not None,
        }  # fmt: skip
        given = (
            {"x": self.x, "x_scales": self.x} if rounded is None else {"x": rounded.data, "x_scales": rounded.scales}
        )
        if self.tiled is not None:
            constants |= {"OUT": 1 + self.tiled.rounding.order}
            push["table"] = self.tiled.scales
        push |= given | {"x_stride": self.x_stride, **self._gathered()}
        sources = [self.x] if rounded is None else rounded.ranges
        op = "matvec_k_int8" if k_quant else "matvec_int8"
        self._dispatch(op, constants | finish, self._tile_grid(cut), push, sources)

    def coopmat(self, cut: Coopmat, rounded: Rounded) -> None:
        m, finish_and_push = self.matrix, self._finish()
        plain = self.epilogue in ("store", "add") and self.carry is None and self.carried is None
        direct = plain and cut.sk == 1 and m.n % cut.size == 0 and self.rows % cut.width == 0
        constants: Constants = {
            "CM": cut.size, "CN": cut.width, "CK": cut.size, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc,
            "SK": cut.sk, "UNROLL": cut.unroll, "DIRECT": direct, "PIPE": cut.pipe, "SUBGROUP": cut.subgroup,
            "TILED": 0 if self.tiled is None else 1 + self.tiled.rounding.order,
            "LOCAL": cut.subgroup * cut.sr * cut.sc * cut.sk,
        }  # fmt: skip
        finish, push = finish_and_push
        passed, more = self._carried()
        grid = (-(-m.n // (cut.sr * cut.fr * cut.size)), -(-self.rows // (cut.sc * cut.fc * cut.width)))
        push |= {"x": rounded.data, **more}
        self._dispatch("linear_coopmat", constants | finish | passed, grid, push, rounded.ranges, cut.subgroup)

    def fragments(self, cut: Fragments, rounded: Rounded) -> None:
        m, device = self.matrix, self.program.device
        check_fragments(cut, device, m.layout, m.n, m.k)
        lie = operands_of(device)
        assert lie is not None
        (finish, push), (passed, more) = self._finish(), self._carried()
        constants: Constants = {
            "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc, "SK": cut.sk, "PIPE": cut.pipe, "PIPE_X": cut.pipe_x,
            "PAIRED": cut.paired, "A_OF": lie.a, "B_OF": lie.b, "TAIL": m.k // BLOCKS[m.layout] % (4 * cut.sk) != 0,
            "LOCAL": cut.local, "TILED": 0 if self.tiled is None else 1 + self.tiled.rounding.order,
        }  # fmt: skip
        grid = (-(-m.n // (cut.sr * cut.fr * M)), -(-self.rows // (cut.sc * cut.fc * N)))
        push |= {"x": rounded.data, **more}
        self._dispatch("linear_fragments", constants | finish | passed, grid, push, rounded.ranges, LANES)
