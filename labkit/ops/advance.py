"""advance: ends a step on the device: tokens to the output ring, counts, and each row's next input."""

from dataclasses import dataclass

import numpy as np

from labkit.engine.sampling import IGNORE_EOS
from labkit.errors import ParameterError
from labkit.ops.rows import ACTIVE, PROMPT, ROW_WORDS
from labkit.ops.sample import CHOSEN_WORDS, LIVE, NOT_FINITE
from labkit.ops.top_logprobs import NONE
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program

OUT_WORDS = 4  # of a line of the output ring: token, log-probability (float bits), flags, slot
STOPPED, SPENT = 2, 4  # flags of the ring beside LIVE and NOT_FINITE: at a stop id; nothing remains
MAX_STOPS = 16
CONTROL_WORDS = 1  # the step counter


def ring_bytes(ring: int, lines: int) -> int:
    """Bytes of `out_ring`: uint32 [ring][lines][4]."""
    return ring * lines * OUT_WORDS * 4


def top_ring_bytes(ring: int, lines: int, count: int) -> int:
    """Bytes of `top_ring`: uint32 [ring][lines][count][2]."""
    return ring * lines * count * 8


def pack_stops(ids: list[int] | tuple[int, ...]) -> np.ndarray:
    """The `stops` buffer, uint32 [16]: stop ids, then NONE. Raises ParameterError for more than 16."""
    if len(ids) > MAX_STOPS:
        raise ParameterError(f"{len(ids)} stop ids were given; at most {MAX_STOPS} are taken")
    return np.array([*ids, *[NONE] * (MAX_STOPS - len(ids))], np.uint32)


@dataclass
class State:
    """What a step changes: rows [R, 8], counts [slots, vocab], out ring [ring, L, 4], and the step counter."""

    rows: np.ndarray
    counts: np.ndarray
    out: np.ndarray
    step: int


def reference(state: State, chosen: np.ndarray, logit_rows: np.ndarray, params: np.ndarray, stops: np.ndarray) -> None:
    """Apply one step to `state` in place: chosen [L, 4], logit_rows [L], params [slots, 16], stops [16]."""
    for line, (token, logprob, flags, slot) in enumerate(chosen.tolist()):
        if flags & LIVE:
            row = state.rows[logit_rows[line]]
            if not flags & NOT_FINITE:
                state.counts[slot, token] += (state.counts[slot, token] & 0xFFFF) < 0xFFFF
                row[0], row[2], row[4] = token, row[2] + 1, max(row[4], 1) - 1
                flags |= STOPPED if token in stops and not params[slot, 10] & IGNORE_EOS else 0
                flags |= SPENT if row[4] == 0 else 0
            row[3] &= ~np.uint32(PROMPT | (ACTIVE if flags & (STOPPED | SPENT | NOT_FINITE) else 0))
        state.out[state.step % len(state.out), line] = token, logprob, flags, slot
    state.step += 1


def record(
    program: Program,
    *,
    chosen: Buffer,
    rows: Buffer,
    logit_rows: Buffer,
    params: Buffer,
    counts: Buffer,
    stops: Buffer,
    control: Buffer,
    out_ring: Buffer,
    lines: int,
    vocab: int,
    ring: int,
    top: Buffer | None = None,
    top_ring: Buffer | None = None,
    count: int = 0,
) -> None:
    """Add the end of a step over `lines` lines of `chosen` (from `sample`); shapes as in shaders/advance.comp.

    ring: steps the output ring holds; the host reads out_ring[step % ring]. `top` (uint32 [lines][count][2]) is copied
    to top_ring when count > 0. Rows that no line names are left alone. Raises ParameterError.
    """
    if lines < 1 or ring < 1 or (count > 0 and (top is None or top_ring is None)):
        raise ParameterError(
            f"{lines} lines and a ring of {ring} must be at least 1; count={count} above 0 needs top and top_ring"
        )
    tops = [] if top is None or count == 0 else [top.range(0, lines * count * 8)]
    rings = [] if top_ring is None or count == 0 else [top_ring.range(0, top_ring_bytes(ring, lines, count))]
    program.dispatch(
        program.device.kernel("advance", constants={"LOCAL": 32 if program.device.is_cpu else 256, "STOPS": MAX_STOPS}),
        1,
        {
            "chosen": chosen, "rows": rows, "logit_rows": logit_rows, "params": params, "counts": counts,
            "stops": stops, "control": control, "out_ring": out_ring, "top": top or chosen,
            "top_ring": top_ring or out_ring, "lines": lines, "vocab": vocab, "ring": ring, "top_words": 2 * count,
        },
        reads=[
            chosen.range(0, lines * CHOSEN_WORDS * 4), rows, logit_rows.range(0, lines * 4), params, stops, counts,
            control, *tops,
        ],
        writes=[rows, counts, control, out_ring.range(0, ring_bytes(ring, lines)), *rings],
        label="advance",
        nbytes=lines * (CHOSEN_WORDS * 4 + OUT_WORDS * 4 + 2 * ROW_WORDS * 4 + 8 + 16 * count),
    )  # fmt: skip


def advance(
    device: Device,
    state: State,
    chosen: np.ndarray,
    logit_rows: np.ndarray,
    params: np.ndarray,
    stops: np.ndarray,
    top: np.ndarray | None = None,
) -> tuple[State, np.ndarray | None]:
    """Run once on arrays as in `reference`; returns the new state, and the ring of `top` [L, count, 2] when given."""
    lines, ring, count = len(chosen), len(state.out), 0 if top is None else top.shape[1]
    with device.pool("advance") as pool:
        rows, counts = pool.buffer(state.rows), pool.buffer(state.counts)
        out, control = pool.buffer(state.out), pool.buffer(np.array([state.step], np.uint32))
        tops = None if top is None else pool.buffer(top)
        top_ring = None if top is None else pool.buffer(np.zeros((ring, lines, count, 2), np.uint32))
        program = device.program("advance")
        record(
            program, chosen=pool.buffer(chosen), rows=rows, logit_rows=pool.buffer(logit_rows),
            params=pool.buffer(params), counts=counts, stops=pool.buffer(stops), control=control, out_ring=out,
            lines=lines, vocab=state.counts.shape[1], ring=ring, top=tops, top_ring=top_ring, count=count,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        after = State(
            rows.download(np.uint32, state.rows.shape), counts.download(np.uint32, state.counts.shape),
            out.download(np.uint32, state.out.shape), int(control.download(np.uint32)[0]),
        )  # fmt: skip
        return after, None if top_ring is None else top_ring.download(np.uint32, (ring, lines, count, 2))
