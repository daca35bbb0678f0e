"""The operations between the matrices: attention over a filled cache, rms_norm, rope_kv, swiglu, the greedy choice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.engine.sampling import Sampling
from labkit.engine.sampling import pack as pack_sampling
from labkit.measure.ops_bench.cases import Case, Work, nmse, operation, sample_rows
from labkit.ops import attention, flash_attention, rms_norm, rope, rope_kv, sample, swiglu, top_logprobs
from labkit.ops.kv_cache import PAGE, KVCache, cache_bytes
from labkit.ops.rows import make_rows
from labkit.vulkan.memory import Pool
from labkit.vulkan.program import Program

MOST_STREAMS = 64  # rows beyond this are a prompt's, all of one slot
ACTIVATIONS = 16  # runs in one program over the same activations, which lie in a cache in a model too
NORM_EPS = 1e-5


def _cache(pool: Pool, k: np.ndarray, v: np.ndarray, slots: int, each: int, kv_heads: int, head_dim: int) -> KVCache:
    """A float16 cache whose pages all hold the same content [kv_heads, PAGE, head_dim]: pages differ only in address."""
    pages = slots * each
    table = pool.buffer(np.arange(pages, dtype=np.uint32).reshape(slots, each), label="page table")
    planes = []
    for page in (k, v):
        plane = pool.buffer(cache_bytes("f16", pages, kv_heads, head_dim))
        piece = pool.buffer(page)
        program = pool.device.program("fill the cache")
        for i in range(pages):
            program.copy(piece, plane.range(i * page.nbytes, page.nbytes))
        program.submit().wait()
        program.close()
        planes.append(plane)
    return KVCache("f16", planes[0], planes[1], table, pages, each, kv_heads, head_dim)


@dataclass
class _Attention:
    """Queries over filled caches: of `rows` streams at one depth, or of the last rows of one prompt."""

    work: Work
    pool: Pool
    rows: int
    depth: int

    def __post_init__(self) -> None:
        c, rows, depth = self.work.model.config, self.rows, self.depth
        self.prompt = rows > MOST_STREAMS
        self.slots = np.zeros(rows, int) if self.prompt else np.arange(rows)
        self.positions = np.arange(depth - rows, depth) if self.prompt else np.full(rows, depth - 1)
        self.each = -(-depth // PAGE)
        chance = np.random.default_rng(depth)
        shape, many = (c.kv_heads, PAGE, c.head_dim), 1 if self.prompt else rows
        self.k, self.v = (chance.standard_normal(shape, np.float32).astype(np.float16) for _ in range(2))
        self.copies = self.work.copies(2 * many * self.each * self.k.nbytes)
        self.caches = [
            _cache(self.pool, self.k, self.v, many, self.each, c.kv_heads, c.head_dim) for _ in range(self.copies)
        ]
        self.stride, self.width = (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim
        self.qkv = chance.standard_normal((rows, self.stride), np.float32)
        self.source = self.pool.buffer(self.qkv)
        self.target = self.pool.buffer(rows * self.width * 4)

    def case(self, name: str, record: Callable[[Program, int], None], limit: float) -> Case:
        """The case of a kernel that `record` adds."""
        c = self.work.model.config

        def check() -> tuple[float, float]:
            got = self.target.download(np.float32, (self.rows, self.width))
            worst = 0.0
            for row in sample_rows(self.rows):
                at = np.arange(int(self.positions[row]) + 1) % PAGE  # pages are alike
                q = self.qkv[row, : self.width].reshape(c.heads, c.head_dim)
                k, v = (page[:, at].transpose(1, 0, 2) for page in (self.k, self.v))
                worst = max(worst, nmse(got[row], attention.reference(q, k, v).reshape(-1)))
            return worst, limit

        seen = float(np.sum(self.positions + 1))
        reads = (self.depth if self.prompt else seen) * 2 * self.caches[0].position_bytes
        knobs = {"rows": self.rows, "depth": self.depth}
        nbytes = reads + 2 * self.rows * self.width * 4
        return Case(name, knobs, record, check, self.copies, 4.0 * seen * self.width, nbytes)


def _attended(work: Work) -> Iterator[tuple[int, int]]:
    """(rows, depth): streams at each depth, and the last chunk of each prompt that is as long."""
    for depth in work.depths:
        for rows in work.rows:
            if rows <= MOST_STREAMS or rows <= depth:
                yield rows, depth


def _flash_cut(work: Work) -> flash_attention.Cut | None:
    c = work.model.config
    return None if work.exact else flash_attention.choose(work.device, c.heads // c.kv_heads, c.head_dim)[0]


@operation("attention")
def attention_cases(work: Work) -> Iterator[Case]:
    """Decode rows, each of a slot of its own, at each depth; prompts too where there is no flash attention."""
    heads = work.model.config.heads
    flash = _flash_cut(work)
    for rows, depth in _attended(work):
        if rows > MOST_STREAMS and flash is not None:
            continue
        with work.device.pool("bench attention") as pool:
            on = _Attention(work, pool, rows, depth)
            table = pool.buffer(make_rows(np.zeros(rows, int), on.slots, on.positions))
            config = work.model.config
            partial = pool.buffer(attention.partial_bytes(rows, heads, config.head_dim, on.each))

            def record(program: Program, i: int, on: _Attention = on, t: Any = (table, partial)) -> None:
                attention.record(
                    program, on.source, t[0], on.caches[i], t[1], on.target, count=on.rows, heads=heads,
                    qkv_stride=on.stride, y_stride=on.width, splits=on.each,
                )  # fmt: skip

            yield on.case("attention", record, 1e-6)


@operation("flash_attention")
def flash_cases(work: Work) -> Iterator[Case]:
    """The last chunk of a prompt on matrix units, where the device has them."""
    c = work.model.config
    cut = _flash_cut(work)
    if cut is None:
        return
    for rows, depth in _attended(work):
        if rows <= MOST_STREAMS:
            continue
        with work.device.pool("bench flash attention") as pool:
            on = _Attention(work, pool, rows, depth)
            blocks = flash_attention.blocks_of(on.slots, on.positions, cut.block_rows)
            table = pool.buffer(blocks)

            def record(program: Program, i: int, on: _Attention = on, t: Any = table, n: int = len(blocks)) -> None:
                flash_attention.record(
                    program, on.source, t, on.caches[i], on.target, count=n, rows=on.rows, heads=c.heads,
                    qkv_stride=on.stride, y_stride=on.width,
                )  # fmt: skip

            yield on.case("flash_attention", record, 2e-6)


@operation("rms_norm")
def norm_cases(work: Work) -> Iterator[Case]:
    """The norm before a layer's matrices, float32 in and out."""
    width = work.model.config.hidden
    for rows in work.rows:
        with work.device.pool("bench rms_norm") as pool:
            chance = np.random.default_rng(rows)
            x, gain = chance.standard_normal((rows, width), np.float32), chance.standard_normal(width, np.float32)
            source, weight, target = pool.buffer(x), pool.buffer(gain), pool.buffer(rows * width * 4)

            def record(
                program: Program, i: int, s: Any = source, w: Any = weight, t: Any = target, n: int = rows
            ) -> None:
                rms_norm.record(program, s, w, t, count=n, width=width, eps=NORM_EPS, x_stride=width, y_stride=width)

            def check(
                x: np.ndarray = x, gain: np.ndarray = gain, t: Any = target, n: int = rows
            ) -> tuple[float, float]:
                seen = sample_rows(n)
                got = t.download(np.float32, (n, width))[seen]
                return nmse(got, rms_norm.reference(x[seen], gain, NORM_EPS)), 1e-7

            yield Case(
                "rms_norm", {"rows": rows, "width": width}, record, check, ACTIVATIONS, 4.0 * x.size, 8.0 * x.size
            )


@operation("rope_kv")
def rope_cases(work: Work) -> Iterator[Case]:
    """Rotating queries and keys and storing keys and values, each row in a slot of its own or all in one."""
    c = work.model.config
    stride = (c.heads + 2 * c.kv_heads) * c.head_dim
    for rows in work.rows:
        with work.device.pool("bench rope_kv") as pool:
            prompt = rows > MOST_STREAMS
            slots, each = (1, -(-rows // PAGE)) if prompt else (rows, 1)
            zero = np.zeros((c.kv_heads, PAGE, c.head_dim), np.float16)
            cache = _cache(pool, zero, zero, slots, each, c.kv_heads, c.head_dim)
            positions = np.arange(rows) if prompt else np.full(rows, 5)
            described = make_rows(np.zeros(rows, int), np.zeros(rows, int) if prompt else np.arange(rows), positions)
            angles = rope.table(max(rows, 8), c.rope_dim, c.rope_theta, c.rope_freq_factors)
            qkv = np.random.default_rng(rows).standard_normal((rows, stride), np.float32)
            target, table, turns = pool.buffer(qkv), pool.buffer(described), pool.buffer(angles)

            def record(program: Program, i: int, t: Any = (target, table, turns, cache), n: int = rows) -> None:
                rope_kv.record(
                    program, t[0], t[1], t[2], t[3], count=n, heads=c.heads, qkv_stride=stride, rope_dim=c.rope_dim,
                    pairing=c.rope_pairing,
                )  # fmt: skip

            def check(
                t: Any = (target, cache), was: Any = (qkv, described, angles), shape: Any = (slots, each)
            ) -> tuple[float, float]:
                x, rows_, table_ = was[0].copy(), was[1], was[2]
                k, v = (np.zeros((t[1].pages, c.kv_heads, PAGE, c.head_dim), np.float16) for _ in range(2))
                pages = np.arange(shape[0] * shape[1], dtype=np.uint32).reshape(shape)
                rope_kv.reference(x, rows_, table_, k, v, pages, heads=c.heads, pairing=c.rope_pairing)
                got_k, got_v = t[1].arrays()
                queries = c.heads * c.head_dim
                got = t[0].download(np.float32, x.shape)[:, :queries]
                return max(nmse(got, x[:, :queries]), nmse(got_k, k), nmse(got_v, v)), 1e-6

            nbytes = rows * ((stride + c.heads * c.head_dim) * 4 + 2 * cache.position_bytes)
            yield Case("rope_kv", {"rows": rows}, record, check, ACTIVATIONS, 3.0 * qkv.size, nbytes)


@operation("swiglu")
def swiglu_cases(work: Work) -> Iterator[Case]:
    """The separate operation, for gate and up of different types; else it is an epilogue of linear."""
    width = work.model.config.ffn
    for rows in work.rows:
        with work.device.pool("bench swiglu") as pool:
            chance = np.random.default_rng(rows)
            gate, up = (chance.standard_normal((rows, width), np.float32) for _ in range(2))
            a, b, target = pool.buffer(gate), pool.buffer(up), pool.buffer(gate.nbytes)

            def record(program: Program, i: int, t: Any = (a, b, target), n: int = rows) -> None:
                swiglu.record(program, t[0], t[1], t[2], count=n, width=width, in_stride=width, y_stride=width)

            def check(x: Any = (gate, up), t: Any = target, n: int = rows) -> tuple[float, float]:
                seen = sample_rows(n)
                got = t.download(np.float32, (n, width))[seen]
                return nmse(got, swiglu.reference(x[0][seen], x[1][seen])), 1e-7

            yield Case(
                "swiglu", {"rows": rows, "width": width}, record, check, ACTIVATIONS, 5.0 * gate.size, 12.0 * gate.size
            )


@operation("sample")
def sample_cases(work: Work) -> Iterator[Case]:
    """The greedy choice: log-sum-exp and largest logit of each line, then its token."""
    vocab = work.model.config.vocab
    device = work.device
    for rows in work.rows:
        if rows > MOST_STREAMS:
            continue
        with device.pool("bench sample") as pool:
            logits = top_logprobs.padded(np.random.default_rng(rows).standard_normal((rows, vocab), np.float32))
            stride = logits.shape[1]
            buffers: dict[str, Any] = {
                "logits": pool.buffer(logits),
                "rows": pool.buffer(make_rows(np.zeros(rows, int), np.arange(rows), np.full(rows, 5))),
                "logit_rows": pool.buffer(np.arange(rows, dtype=np.uint32)),
                "params": pool.buffer(pack_sampling([Sampling()] * rows)),
                "partials": pool.buffer(top_logprobs.partials_bytes(device, rows, vocab)),
                "chosen": pool.buffer(rows * sample.CHOSEN_WORDS * 4),
            }

            def record(program: Program, i: int, b: Any = buffers, n: int = rows, s: int = stride) -> None:
                sample.record(program, **b, lines=n, vocab=vocab, stride=s, greedy=True)

            def check(b: Any = buffers, logits: np.ndarray = logits, n: int = rows) -> tuple[float, float]:
                tokens = b["chosen"].download(np.uint32, (n, sample.CHOSEN_WORDS))[:, 0]
                want = logits[:, :vocab].argmax(axis=1)
                return float((tokens != want).sum()), 0.0

            yield Case(
                "sample",
                {"rows": rows, "vocab": vocab},
                record,
                check,
                ACTIVATIONS,
                3.0 * logits.size,
                4.0 * logits.size,
            )
