"""The program executor: an architecture recorded as dispatches, one program for each padded shape of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.engine.builder import RING, Builder, Key, Place
from labkit.engine.cache import make_cache, pages_per_slot
from labkit.engine.sampling import MAX_BIAS, PARAM_WORDS, Sampling, pack, pack_bias
from labkit.engine.scheduler import Step
from labkit.engine.weights import ResidentWeights
from labkit.errors import EngineError, ParameterError
from labkit.models.config import ModelConfig
from labkit.models.operations import forward
from labkit.ops import advance as advance_op
from labkit.ops import attention as attention_op
from labkit.ops import counts as counts_op
from labkit.ops import flash_attention as flash_op
from labkit.ops import rope as rope_op
from labkit.ops import rounding as rounding_op
from labkit.ops import sample as sample_op
from labkit.ops import top_logprobs as top_op
from labkit.ops.carried_norm import CarriedState, carried_bytes
from labkit.ops.kv_cache import PAGE
from labkit.ops.rows import ACTIVE
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, aligned
from labkit.vulkan.profile import Profile
from labkit.vulkan.program import Program

NONE = 0xFFFFFFFF
SCRATCH_ROW_SPLITS = 4096  # rows times depth buckets that attention's partial results are sized for
MAX_PROGRAMS = 96  # recorded programs kept; the oldest goes first


@dataclass
class Recorded:
    """A program with the shape it serves."""

    key: Key
    program: Program
    gpu_s: float = 0.0
    gpu_read_s: float = float("-inf")  # when gpu_s was read

    @property
    def rows(self) -> int:
        """Padded rows."""
        return self.key.rows

    @property
    def dispatches(self) -> int:
        """Number of dispatches."""
        return len(self.program.dispatches)


def padded(count: int) -> int:
    """The next power of two: the widths programs are recorded for."""
    return 1 << max(count - 1, 0).bit_length()


def split_bucket(depth: int) -> int:
    """Pages for `depth` positions, rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ... so that few programs serve all depths."""
    pages = pages_per_slot(depth)
    power = 1 << max(pages - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and pages <= power * 3 // 4 else power


def micro_batch(config: ModelConfig, device: Device, slots: int, context: int, ub: int | None) -> int:
    """Rows of prompts a step may read: `ub`, or the device's own choice. Raises ParameterError for one that cannot be."""
    if ub is not None:
        if isinstance(ub, bool) or not isinstance(ub, int) or ub & (ub - 1) or not 16 <= ub <= 4096:
            raise ParameterError(f"ub={ub!r} is not a power of two from 16 to 4096")
        return ub
    if device.is_cpu:
        return 32
    if not device.coopmat_size:
        return 512
    spare = device.info.memory_bytes // 16
    return next((n for n in (2048, 1024) if working_bytes(config, device, slots, context, n) <= spare), 512)


def rows_limit(slots: int, ub: int) -> int:
    """Rows a step may hold: a micro-batch, and room for one beside all slots."""
    return max(2 * padded(slots), ub)


def working_bytes(config: ModelConfig, device: Device, slots: int, context: int, ub: int) -> int:
    """Bytes of the buffers programs work in."""
    rows = rows_limit(slots, ub)
    heads = config.heads * config.head_dim
    activations = rows * 4 * (2 * config.hidden + 2 * heads + 2 * config.kv_heads * config.head_dim + 3 * config.ffn)
    partial = _row_splits(rows, slots, context) * config.heads * (config.head_dim + 2) * 4
    logits = 5 * padded(slots) * aligned(config.vocab, 4) * 4
    rounded = rounding_op.scratch_bytes(rows, max(config.hidden, heads, config.ffn))
    tiles = rounding_op.scratch_bytes(rows, config.ffn) if device.coopmat_size else 0
    return activations + partial + logits + rounded + tiles + carried_bytes(config.hidden)


def _row_splits(rows: int, slots: int, context: int) -> int:
    """Rows times pages that attention's partial results have room for: every slot at full depth, at least."""
    return max(SCRATCH_ROW_SPLITS, rows, padded(slots) * split_bucket(context))


class Executor:
    """Buffers, recorded programs and the host's side of a step. Driven by one thread."""

    page = PAGE

    def __init__(
        self,
        config: ModelConfig,
        weights: ResidentWeights,
        device: Device,
        *,
        slots: int,
        context: int,
        kv: str,
        arithmetic: str,
        ub: int,
        stop_ids: Sequence[int],
    ) -> None:
        self.config, self.weights, self.device, self.slots, self.context = config, weights, device, slots, context
        self.kv, self.arithmetic = kv, arithmetic
        self.max_rows = rows_limit(slots, ub)
        self.max_wanted = padded(slots)
        self.pool = device.pool("engine")
        self.flash = self._flash_cut()
        self._span = attention_op.shape(device, config.heads // config.kv_heads, config.head_dim, kv).span
        self._programs: dict[Key, Recorded] = {}
        self._rings: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # tokens and log-probabilities of the output ring
        self._written: Step | None = None  # the decode step whose rows lie on the device, advanced by it
        try:
            self._allocate(stop_ids)
        except BaseException:
            self.pool.close()
            raise

    def _allocate(self, stop_ids: Sequence[int]) -> None:
        c, pool, rows, wanted = self.config, self.pool, self.max_rows, self.max_wanted
        self.cache = make_cache(pool, c, slots=self.slots, context=self.context, kv=self.kv)
        angles = rope_op.table(self.context, c.rope_dim, c.rope_theta, c.rope_freq_factors, c.rope_scale)
        self.rope_table = self.windowed_table = pool.buffer(angles, label="rope table")
        if c.rope_theta_windowed is not None:
            angles = rope_op.table(self.context, c.rope_dim, c.rope_theta_windowed)
            self.windowed_table = pool.buffer(angles, label="rope table of windows")
        self.row_state = pool.buffer(np.zeros((rows, 8), np.uint32), kind="upload", label="rows")
        self.logit_rows = pool.buffer(np.full(wanted, NONE, np.uint32), kind="upload", label="logit rows")
        self.params = pool.buffer(np.zeros((self.slots, PARAM_WORDS), np.uint32), kind="upload", label="sampling")
        self.bias = pool.buffer(self.slots * MAX_BIAS * 8, kind="upload", label="logit bias")
        self.counts = pool.buffer(counts_op.counts_bytes(self.slots, c.vocab), label="token counts").fill(0)
        self.stops = pool.buffer(advance_op.pack_stops(list(stop_ids)[: advance_op.MAX_STOPS]), label="stop ids")
        self.blocks = self._blocks_buffer()
        self.control = pool.buffer(np.zeros(advance_op.CONTROL_WORDS, np.uint32), kind="upload", label="step counter")
        self._steps_done = self.control.array(np.uint32)
        self.out_ring = pool.buffer(advance_op.ring_bytes(RING, wanted), kind="readback", label="tokens out")
        self.top_ring = pool.buffer(
            advance_op.top_ring_bytes(RING, wanted, top_op.MAX_TOP), kind="readback", label="top out"
        )
        heads = c.heads * c.head_dim
        qkv = heads + 2 * c.kv_heads * c.head_dim
        self.hidden = self._place("hidden", rows, c.hidden)
        self.normed = self._place("normed", rows, c.hidden)
        self.qkv = self._place("qkv", rows, qkv)
        self.attended = self._place("attended", rows, heads)
        self.gated = self._place("gated", rows, c.ffn)
        self.gate_up = self._place("gate and up", rows, 2 * c.ffn) if self._split_swiglu() else None
        self.final = self._place("final", wanted, c.hidden)
        self.logits = self._place("logits", wanted, c.vocab)
        splits = _row_splits(rows, self.slots, self.context)
        self.partial = pool.buffer(
            attention_op.partial_bytes(1, c.heads, c.head_dim, splits), label="attention partials"
        )
        self.tickets = pool.buffer(attention_op.ticket_bytes(rows, c.heads), label="attention tickets").fill(0)
        self.partials = pool.buffer(top_op.partials_bytes(self.device, wanted, c.vocab), label="logit partials")
        self.top = pool.buffer(wanted * top_op.MAX_TOP * 8, label="top log-probabilities")
        self.lse = pool.buffer(wanted * 4, label="log-sum-exp")
        widest = max(c.hidden, heads, c.ffn)
        self.scratch = pool.buffer(rounding_op.scratch_bytes(max(rows, wanted), widest), label="rounded activations")
        self.tiles = pool.buffer(rounding_op.scratch_bytes(rows, c.ffn), label="gated tiles") if self._tiles() else None
        carries = self.device.coopmat_size and self.arithmetic != "exact" and c.hidden % 16 == 0
        self.carried = CarriedState.make(pool, c.hidden) if carries else None
        self.chosen = pool.buffer(wanted * sample_op.CHOSEN_WORDS * 4, label="chosen")
        self.space = sample_op.workspace(pool, wanted, c.vocab, self.logits.stride)

    def angles(self, layer: int) -> Buffer:
        """The rotation table of a layer."""
        return self.windowed_table if self.config.turns_apart(layer) else self.rope_table

    def _flash_cut(self) -> flash_op.Cut | None:
        """How blocks of a prompt's rows attend, where the arithmetic and the device allow it."""
        if self.arithmetic == "exact" or self.device.is_cpu:
            return None
        cut, self.why_no_flash = flash_op.choose(
            self.device, self.config.heads // self.config.kv_heads, self.config.head_dim
        )
        return cut

    def _blocks_buffer(self) -> Buffer | None:
        if self.flash is None:
            return None
        most = padded(flash_op.most_blocks(self.max_rows, self.slots, self.flash.block_rows))
        return self.pool.buffer(np.zeros((most, flash_op.BLOCK_WORDS), np.uint32), kind="upload", label="blocks")

    def _split_swiglu(self) -> bool:
        """Whether any gate and up have types of their own, and so need the separate operation."""
        return len(self.weights.joined_swiglu) < self.config.layers

    def _tiles(self) -> bool:
        """Whether a SwiGLU may leave float16 tiles for the product behind it."""
        return self.device.coopmat_size > 0 and self.config.ffn % 16 == 0

    def _place(self, label: str, rows: int, width: int) -> Place:
        stride = aligned(width, 4)
        return Place(self.pool.buffer(rows * stride * 4, label=label), width, stride)

    # slots

    def open_slot(self, slot: int, sampling: Sampling, ignore_eos: bool) -> None:
        """Write a slot's sampling settings and clear its token counts. The GPU must be idle."""
        self.params.array(np.uint32, (self.slots, PARAM_WORDS))[slot] = pack([sampling], ignore_eos)[0]
        if sampling.logit_bias:
            self.bias.array(np.uint32, (self.slots, MAX_BIAS * 2))[slot] = pack_bias([sampling]).reshape(-1)
        clear = self.device.program("clear counts")
        counts_op.reset(clear, self.counts, slot, self.config.vocab)
        clear.submit().wait()
        clear.close()
        self.rows_changed()

    def rows_changed(self) -> None:
        """Say that the rows on the device no longer continue by themselves."""
        self._written = None

    def row_limit(self, depth: int) -> int:
        """Rows a step may hold when its deepest row sees `depth` positions; a power of two, as programs are padded."""
        if self.flash is not None:  # prompts need no partial results, and every slot's own row has room
            return self.max_rows
        fits = _row_splits(self.max_rows, self.slots, self.context) // split_bucket(max(depth, 1))
        return min(self.max_rows, 1 << max(fits.bit_length() - 1, 0))

    # running

    def prepare(self, step: Step, *, top: int, plain: bool, steps: int = 1) -> Recorded:
        """Write the step's rows to the device (unless they are there already) and give the program that fits it."""
        wanted_rows, top = len(step.wanted), min(top, self.config.vocab) if step.wanted else 0
        blocks, single, depth = 0, len(step.rows), step.depth
        made = None
        if self.flash is not None and step.single < len(step.rows):
            single, depth = step.single, step.single_depth
            slots, positions = step.rows[single:, 1], step.rows[single:, 2]
            made = flash_op.blocks_of(slots, positions, self.flash.block_rows, first_row=single)
            blocks = padded(len(made))
        key = Key(
            padded(len(step.rows)), padded(wanted_rows) if wanted_rows else 0,
            self._splits(max(depth + steps - 1, 1)), top, plain, padded(single) if single else 0, blocks,
        )  # fmt: skip
        if self._written is not None and self._written.rows is step.rows and self._written.advanced == step.advanced:
            return self._recorded(key)
        if step.advanced:
            raise EngineError("the rows of a step that ran on are gone: plan it again")
        rows = self.row_state.array(np.uint32, (self.max_rows, 8))
        rows[: key.rows] = 0
        rows[: len(step.rows), :5] = step.rows
        if made is not None and self.blocks is not None:
            table = self.blocks.array(
                np.uint32, (self.blocks.nbytes // 4 // flash_op.BLOCK_WORDS, flash_op.BLOCK_WORDS)
            )
            table[:blocks] = 0
            table[: len(made)] = made
        wanted = self.logit_rows.array(np.uint32)
        wanted[: max(key.wanted, 1)] = NONE
        wanted[: len(step.wanted)] = step.wanted
        return self._recorded(key)

    def run(self, recorded: Recorded, step: Step, times: int) -> list[tuple[list[int], list[float], Any, Any]]:
        """Run `times` steps in one submit; for each, the tokens, log-probabilities, top ids and top log-probabilities."""
        recorded.program.submit(times).wait()
        wanted = recorded.key.wanted
        self._written = None
        if not wanted:
            return []
        first = int(self._steps_done[0]) - times  # the device counts its steps
        if step.decode_only:
            self._written = step.later(times)
        if wanted not in self._rings:
            words = self.out_ring.array(np.uint32, (RING, wanted, advance_op.OUT_WORDS))
            self._rings[wanted] = words[:, :, 0], words.view(np.float32)[:, :, 1]
        token_ring, logprob_ring = self._rings[wanted]
        places = [(first + i) % RING for i in range(times)]
        count, n = recorded.key.top, len(step.wanted)
        out = []
        for place in places:
            tokens, logprobs = token_ring[place, :n].tolist(), logprob_ring[place, :n].tolist()
            if count:
                tops = self.top_ring.array(np.uint32, (RING, wanted, count, 2))[place, :n]
                out.append((tokens, logprobs, tops[..., 0].tolist(), tops[..., 1].view(np.float32).tolist()))
            else:
                out.append((tokens, logprobs, None, None))
        return out

    def gpu_seconds(self, recorded: Recorded, now: float) -> float:
        """GPU seconds of a step of this program, read at most four times a second (a read costs host time); 0 without."""
        if self.device.info.timestamp_bits and now - recorded.gpu_read_s > 0.25:
            recorded.gpu_s, recorded.gpu_read_s = recorded.program.gpu_seconds(), now
        return recorded.gpu_s

    def decode_program(self, width: int, depth: int = 1) -> Program:
        """The program of a greedy decode step at `width` streams."""
        rows = padded(width)
        return self._recorded(Key(rows, rows, self._splits(depth), 0, True, rows, 0)).program

    def profile(self, width: int, depth: int, repeats: int) -> Profile:
        """GPU seconds of each dispatch of a greedy decode step of `width` streams that see about `depth` positions, the
        least of `repeats`. Writes into the slots' caches: no request may hold one."""
        program = self.decode_program(width, depth)
        first = max(0, min(depth, self.context) - repeats - 1)
        rows = self.row_state.array(np.uint32, (self.max_rows, 8))
        rows[: padded(width)] = 0
        rows[:width, 1], rows[:width, 2] = np.arange(width), first
        rows[:width, 3], rows[:width, 4] = ACTIVE, repeats + 1
        wanted = self.logit_rows.array(np.uint32)
        wanted[: padded(width)] = NONE
        wanted[:width] = np.arange(width)
        self.rows_changed()
        return program.profile(repeats)

    def _splits(self, depth: int) -> int:
        """The depth bucket, never more than the pages a slot has."""
        bucket = max(
            split_bucket(min(depth, self.context)), self._span
        )  # fewer pages than a span cost the same program
        return min(bucket, self.cache[0].pages_per_slot)

    def _recorded(self, key: Key) -> Recorded:
        if key not in self._programs:
            while len(self._programs) >= MAX_PROGRAMS:
                oldest = next(iter(self._programs))
                self._programs.pop(oldest).program.close()
            self._programs[key] = Recorded(key, self._build(key))
        return self._programs[key]

    def _build(self, key: Key) -> Program:
        label = f"{key.rows} rows, {key.wanted} wanted, {key.splits} pages"
        builder = Builder(self, self.device.program(label), key)
        if not key.plain:
            counts_op.record(
                builder.program, rows=self.row_state, counts=self.counts, count=key.rows, vocab=self.config.vocab
            )
        forward(self.config)(builder, self.config)
        if key.wanted:
            builder.choose()
        return builder.program.record()

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held, by purpose (weights are counted by their owner)."""
        if self.pool.closed:
            return {"kv cache": 0, "working": 0}
        kv = sum(layer.k.nbytes + layer.v.nbytes for layer in self.cache)
        return {"kv cache": kv, "working": self.pool.nbytes - kv}

    def close(self) -> None:
        """Free programs and buffers."""
        if self.device.closed:
            return
        for recorded in self._programs.values():
            recorded.program.close()
        self._programs.clear()
        self.pool.close()
