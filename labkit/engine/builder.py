"""Records an architecture's operations as dispatches: the second executor of `Operations`, which fuses neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.ops import advance as advance_op
from labkit.ops import attention as attention_op
from labkit.ops import embedding as embedding_op
from labkit.ops import flash_attention as flash_op
from labkit.ops import linear as linear_op
from labkit.ops import rms_norm as rms_norm_op
from labkit.ops import rope_kv as rope_kv_op
from labkit.ops import rounding as rounding_op
from labkit.ops import sample as sample_op
from labkit.ops import swiglu as swiglu_op
from labkit.ops import top_logprobs as top_op
from labkit.ops.carried_norm import FEW, Carried, Carry
from labkit.ops.linear import Matrix, Norm, RopeKV
from labkit.ops.linear_call import FINISHING
from labkit.ops.linear_cuts import Cut, choose
from labkit.ops.rope_kv import HeadNorms
from labkit.ops.rounding import Rounded
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program

if TYPE_CHECKING:
    from labkit.engine.executor import Executor

FUSED_ROWS = 64  # rows up to which a product finishes with the rotation; more rows have tiles too wide for it
RING = 64  # steps the output ring holds, and so the most steps in one submit


@dataclass(frozen=True)
class Place:
    """Where a value lives on the device while a program runs: float32 [rows, stride], `width` of it used."""

    buffer: Buffer
    width: int
    stride: int


@dataclass(frozen=True)
class Key:
    """What a program is recorded for."""

    rows: int
    wanted: int
    splits: int
    top: int
    plain: bool
    single: int  # rows, padded, that attend one by one
    blocks: int  # blocks, padded, of rows that attend together


@dataclass(frozen=True)
class _Normed:
    """An rms_norm of `source`, to be recorded by what reads it; `out` holds it when it is wanted as float32."""

    source: Place
    weight: str
    out: Place
    logit_rows: Buffer | None


@dataclass(frozen=True)
class _Product:
    """A product of `x` with matrices side by side, to be recorded by what reads it."""

    x: "Place | _Normed"
    weights: tuple[str, ...]
    biases: tuple[str, ...]


@dataclass(frozen=True)
class _Gated:
    """A SwiGLU of `x`, to be recorded by what reads it, which knows how it wants the result."""

    x: "Place | _Normed"
    gate: str
    up: str
    gelu: bool = False


@dataclass(frozen=True)
class _Attended:
    """Attention over the q that lie in place, to be recorded by what reads it."""

    layer: int


Value = Place | _Normed | _Product | _Gated | _Attended


@dataclass(frozen=True)
class _Input:
    """Where products find their activations: as float32, rounded, to be normed by themselves, or carried to them."""

    source: Place
    rounded: Rounded | None = None
    norm: Norm | None = None
    carried: Carried | None = None


@dataclass(frozen=True)
class _Owed:
    """A product that adds to the residual, not recorded yet: the norm behind it may be carried."""

    given: _Input
    weights: tuple[str, ...]
    add_to: Place


class Builder:
    """Records an architecture into one program. A value is recorded where it is read, so that neighbours can be fused:
    a norm into the product behind it or into both around it, the rotation and the cache's write into the product before
    it, and a SwiGLU into the float16 tiles that the next product reads."""

    def __init__(self, executor: "Executor", program: Program, key: Key) -> None:
        self.e, self.program, self.key = executor, program, key
        self._owed: _Owed | None = None
        self._turn = 0  # of the norm to come
        self._factors = False  # whether the norm before left its factors

    def embedding(self, table: str, *, scale: float = 1.0) -> Place:
        e = self.e
        matrix = e.weights.matrices(table)[0]
        embedding_op.record(
            self.program,
            matrix,
            e.row_state,
            e.hidden.buffer,
            count=self.key.rows,
            x_stride=e.hidden.stride,
            scale=scale,
        )
        return e.hidden

    def rms_norm(self, x: Place, weight: str, *, wanted_only: bool = False) -> _Normed:
        e = self.e
        if wanted_only:
            self._settle()
        return _Normed(x, weight, e.final if wanted_only else e.normed, e.logit_rows if wanted_only else None)

    def linear(
        self, x: Value, weights: Sequence[str], *, biases: Sequence[str] = (), norm: str | None = None,
        add_to: Place | None = None,
    ) -> Value:  # fmt: skip
        e = self.e
        if add_to is not None and norm is not None:
            return self._add_normed(x, weights, norm, add_to)
        if add_to is not None:
            given = self._input(x, e.weights.matrices(*weights), self.key.rows)
            self._settle()
            self._owed = _Owed(given, tuple(weights), add_to)
            return add_to
        if isinstance(x, _Normed) and x.logit_rows is not None:
            if self.key.wanted:
                matrices = e.weights.matrices(*weights)
                self._products(self._input(x, matrices, self.key.wanted), matrices, e.logits, self.key.wanted, "store")
            return e.logits
        assert isinstance(x, Place | _Normed)
        return _Product(x, tuple(weights), tuple(biases))

    def _add_normed(self, x: Value, weights: Sequence[str], norm: str, add_to: Place) -> Place:
        """A product that is normed before it is added; it passes through the place of normed rows, which nobody reads now."""
        e, rows, matrices = self.e, self.key.rows, self.e.weights.matrices(*weights)
        given = self._input(x, matrices, rows)
        self._settle()
        self._products(given, matrices, e.normed, rows, "store")
        rms_norm_op.record_add(
            self.program, e.normed.buffer, e.weights.vector(norm), add_to.buffer, count=rows, width=add_to.width,
            x_stride=e.normed.stride, y_stride=add_to.stride, eps=e.config.rms_eps, label=norm,
            why="no product norms its own result: a row's squares come from all its workgroups",
        )  # fmt: skip
        return add_to

    def geglu(self, x: Value, gate: str, up: str) -> _Gated:
        assert isinstance(x, Place | _Normed)
        return _Gated(x, gate, up, gelu=True)

    def swiglu(self, x: Value, gate: str, up: str) -> _Gated:
        assert isinstance(x, Place | _Normed)
        return _Gated(x, gate, up)

    def attention(self, qkv: Value, layer: int, *, head_norms: Sequence[str] = ()) -> _Attended:
        e, c = self.e, self.e.config
        assert isinstance(qkv, _Product)
        cache, count, matrices = e.cache[layer], self.key.rows, e.weights.matrices(*qkv.weights)
        cuts, given = [self._cut(m, count) for m in matrices], self._input(qkv.x, matrices, count)
        why = self._why_not_turned(cuts, qkv.biases, head_norms)
        if not why:
            self._products(given, matrices, e.qkv, count, "rope_kv", layer=layer)
        else:
            self._products(given, matrices, e.qkv, count, "store")
            rope_kv_op.record(
                self.program, e.qkv.buffer, e.row_state, e.angles(layer), cache, count=count, heads=c.heads,
                qkv_stride=e.qkv.stride, rope_dim=c.rope_dim, pairing=c.rope_pairing, label=f"rope_kv {layer}",
                bias=e.weights.vector(*qkv.biases) if qkv.biases else None, why=why,
                norms=HeadNorms(e.weights.vector(*head_norms), c.rms_eps) if head_norms else None,
            )  # fmt: skip
        return _Attended(layer)

    def _why_not_turned(self, cuts: Sequence[Cut], biases: Sequence[str], head_norms: Sequence[str]) -> str:
        """Why the product of q, k and v cannot turn and store them as it ends; "" where it can."""
        if head_norms:
            return "no product norms the heads of q and k as it ends"
        if biases:
            return "no product adds a bias to q, k and v as it ends"
        if self.e.config.rope_pairing != "interleaved":
            return "the two of a pair lie half a head apart, in tiles of different invocations"
        if self.key.rows > FUSED_ROWS:
            return f"{self.key.rows} rows have tiles too wide for it; up to {FUSED_ROWS} do not"
        if not all(isinstance(cut, FINISHING) for cut in cuts):
            return "the product's kernel ends in no other way than storing"
        return ""

    # how products get their input

    def _cut(self, m: Matrix, rows: int, *, swiglu: bool = False) -> Cut:
        return choose(self.e.device, m.layout, rows, m.n, m.k, exact=self.e.arithmetic == "exact", swiglu=swiglu)[0]

    def _input(self, x: Value, matrices: Sequence[Matrix], rows: int, *, swiglu: bool = False) -> _Input:
        """Activations as the products with `matrices` want them, if all of them want them one way."""
        e = self.e
        if isinstance(x, Place):
            return _Input(x)
        cuts = [self._cut(m, rows, swiglu=swiglu) for m in matrices]
        wanted = {rounding_op.rounding_for(cut, m.layout) for cut, m in zip(cuts, matrices, strict=True)}
        rounding = wanted.pop() if len(wanted) == 1 else None
        if isinstance(x, _Gated):
            return _Input(*self._gated(x, rounding))
        if isinstance(x, _Attended):
            return _Input(*self._attended(x, rounding))
        assert isinstance(x, _Normed)
        weight, eps, carried = e.weights.vector(x.weight), e.config.rms_eps, None
        if rounding is not None and x.logit_rows is None:
            carried = self._carry(x, cuts, matrices, rounding, rows)
        if carried is not None:
            return _Input(x.source, carried=carried)
        self._settle()
        absorbed = [linear_op.absorbs_norm(e.device, cut, m, rows) for cut, m in zip(cuts, matrices, strict=True)]
        if all(absorbed) and e.arithmetic != "exact":
            self._factors = False
            return _Input(x.source, norm=Norm(weight, eps, x.logit_rows))
        if rounding is not None:
            rounded = rounding_op.place(e.scratch, rounding, rows, x.source.width)
            factors = None
            if e.carried is not None and x.logit_rows is None and rows <= FEW:
                factors = e.carried.factors(self._turn, rows)
                self._factors, self._turn = True, self._turn ^ 1
            rms_norm_op.record_rounded(
                self.program, x.source.buffer, weight, rounded, eps=eps, x_stride=x.source.stride, logit_rows=x.logit_rows,
                factors=factors, label=x.weight,
            )  # fmt: skip
            return _Input(x.out, rounded)
        self._factors = False
        rms_norm_op.record(
            self.program, x.source.buffer, weight, x.out.buffer, count=rows, width=x.source.width,
            x_stride=x.source.stride, y_stride=x.out.stride, eps=eps, logit_rows=x.logit_rows, label=x.weight,
        )  # fmt: skip
        return _Input(x.out)

    def _settle(self) -> None:
        """Record the product that is owed, for a reader who wants its result as it is."""
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self._products(owed.given, self.e.weights.matrices(*owed.weights), owed.add_to, self.key.rows, "add")

    def _carry(
        self, x: _Normed, cuts: Sequence[Cut], matrices: Sequence[Matrix], rounding: rounding_op.Rounding, rows: int
    ) -> Carried | None:
        """Record the product that is owed so that it leaves the norm of `x` half done, where it and the readers can."""
        e, owed, width = self.e, self._owed, x.source.width
        if owed is None or owed.add_to is not x.source or e.carried is None or not self._factors or rows > FEW:
            return None
        before = e.weights.matrices(*owed.weights)
        both = [*zip(cuts, matrices, strict=True), *((self._cut(m, rows), m) for m in before)]
        if len(before) != 1 or rounding.kind != "float16" or not all(linear_op.carries(c, m, rows) for c, m in both):
            return None
        if len({linear_op.carried_elements(cut) for cut, _ in both}) != 1:
            return None
        tiles = e.carried.placed(rounding, rows)
        self._owed, turn = None, self._turn
        self._turn ^= 1
        carry = Carry(e.carried, tiles, e.weights.vector(x.weight), turn)
        assert width == e.carried.width
        self._products(owed.given, before, owed.add_to, rows, "add", carry=carry)
        return Carried(e.carried, tiles, e.config.rms_eps, turn, keep=True)

    def _products(
        self, given: _Input, matrices: Sequence[Matrix], out: Place, rows: int, epilogue: str, *, layer: int = 0,
        tiled: Rounded | None = None, carry: Carry | None = None,
    ) -> None:  # fmt: skip
        """Products with matrices that share an input, side by side in `out`."""
        e, c, offset = self.e, self.e.config, 0
        source, carried = given.source, given.carried
        for matrix in matrices:
            rope = None
            if epilogue == "rope_kv":
                rope = RopeKV(e.row_state, e.angles(layer), e.cache[layer], c.heads, c.rope_dim, offset)
            linear_op.record(
                self.program, matrix, source.buffer, out.buffer, rows=rows, x_stride=source.stride, y_stride=out.stride,
                y_offset=offset, epilogue=epilogue, exact=e.arithmetic == "exact", scratch=e.scratch, rounded=given.rounded,
                norm=given.norm, rope=rope, tiled=tiled, carry=carry, carried=carried,
            )  # fmt: skip
            carried = replace(carried, keep=False) if carried is not None else None
            offset += matrix.n

    def _attended(self, x: _Attended, rounding: rounding_op.Rounding | None) -> tuple[Place, Rounded | None]:
        """Attention, into tiles where its reader wants them."""
        e, c, count = self.e, self.e.config, self.key.rows
        tiles = None
        width = e.attended.width
        able = attention_op.leaves(rounding, width, c.head_dim)
        if self.key.blocks:  # flash attention leaves float16 tiles in any order, and no others
            able = (
                rounding is not None
                and rounding.kind == "float16"
                and width % 16 == 0
                and (able or not self.key.single)
            )
        if able and not e.device.is_cpu:
            assert rounding is not None
            tiles = rounding_op.place(e.scratch, rounding, count, width)
        out, window = tiles or e.attended.buffer, c.window(x.layer, e.context)
        if self.key.single:
            attention_op.record(
                self.program, e.qkv.buffer, e.row_state, e.cache[x.layer], e.partial, out, count=self.key.single,
                heads=c.heads, qkv_stride=e.qkv.stride, y_stride=e.attended.stride, splits=self.key.splits,
                tickets=e.tickets, window=window, scale=c.attention_scale, label=f"attention {x.layer}",
            )  # fmt: skip
        if self.key.blocks:
            assert e.blocks is not None
            flash_op.record(
                self.program, e.qkv.buffer, e.blocks, e.cache[x.layer], out, count=self.key.blocks, rows=count,
                heads=c.heads, qkv_stride=e.qkv.stride, y_stride=e.attended.stride, cut=e.flash,
                window=window, scale=c.attention_scale, label=f"attention {x.layer}",
            )  # fmt: skip
        return e.attended, tiles

    def _gated(self, x: _Gated, rounding: rounding_op.Rounding | None) -> tuple[Place, Rounded | None]:
        """A SwiGLU: in one product when gate and up are one matrix, and into tiles where its reader wants tiles."""
        e, rows = self.e, self.key.rows
        matrices = e.weights.matrices(x.gate, x.up)
        if len(matrices) == 1 and not x.gelu:
            tiles = None
            cut = self._cut(matrices[0], rows, swiglu=True)
            if e.tiles is not None and rounding is not None and linear_op.leaves(cut, matrices[0], rows, rounding):
                tiles = rounding_op.place(e.tiles, rounding, rows, e.config.ffn)
            given = self._input(x.x, matrices, rows, swiglu=True)
            self._products(given, matrices, e.gated, rows, "swiglu", tiled=tiles)
            return e.gated, tiles
        assert e.gate_up is not None
        self._products(self._input(x.x, matrices, rows), matrices, e.gate_up, rows, "store")
        gate_part, up_part = [e.gate_up.buffer.range(i * e.config.ffn * 4) for i in range(2)]
        swiglu_op.record(
            self.program, gate_part, up_part, e.gated.buffer, count=rows, width=e.config.ffn, in_stride=e.gate_up.stride,
            y_stride=e.gated.stride, gelu=x.gelu, why="no product ends in GELU" if x.gelu else "",
        )  # fmt: skip
        return e.gated, None

    def choose(self) -> None:
        """From logits to tokens: log-probabilities when asked for, the sampler, and the step's end."""
        e, key, vocab = self.e, self.key, self.e.config.vocab
        shape = {"lines": key.wanted, "vocab": vocab, "stride": e.logits.stride}
        top_op.record_scan(self.program, logits=e.logits.buffer, logit_rows=e.logit_rows, partials=e.partials, **shape)
        count = key.top
        if count:
            top_op.record(
                self.program, logits=e.logits.buffer, logit_rows=e.logit_rows, partials=e.partials, top=e.top,
                lse=e.lse, count=count, scan=False, **shape,
            )  # fmt: skip
        sample_op.record(
            self.program, logits=e.logits.buffer, rows=e.row_state, logit_rows=e.logit_rows, params=e.params,
            partials=e.partials, chosen=e.chosen, bias=e.bias, counts=e.counts, space=e.space, greedy=key.plain,
            scan=False, **shape,
        )  # fmt: skip
        advance_op.record(
            self.program, chosen=e.chosen, rows=e.row_state, logit_rows=e.logit_rows, params=e.params, counts=e.counts,
            stops=e.stops, control=e.control, out_ring=e.out_ring, lines=key.wanted, vocab=vocab, ring=RING,
            top=e.top if count else None, top_ring=e.top_ring if count else None, count=count,
        )  # fmt: skip
