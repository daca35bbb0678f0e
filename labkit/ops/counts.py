"""counts: how often each slot has generated each token, and which tokens its prompt holds; what penalties read.

counts is uint32 [slots][vocab]: the low 16 bits count generated tokens (`advance` adds), bit 31 marks the prompt's.
"""

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.rows import ACTIVE, PROMPT, ROW_WORDS
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program

SEEN_IN_PROMPT = 1 << 31


def counts_bytes(slots: int, vocab: int) -> int:
    """Bytes of the buffer `counts`. It must be zero before a slot's first row: see `reset`."""
    return slots * vocab * 4


def reference(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """counts [slots, vocab] after the rows [R, 8] that are ACTIVE and PROMPT rows marked their tokens."""
    marked = counts.copy()
    for token, slot, _, flags in rows[:, :4].tolist():
        if flags & ACTIVE and flags & PROMPT and token < counts.shape[1]:
            marked[slot, token] |= SEEN_IN_PROMPT
    return marked


def record(program: Program, *, rows: Buffer, counts: Buffer, count: int, vocab: int) -> None:
    """Add count_prompt over the first `count` rows: uint32 [count][8]."""
    if count < 1 or vocab < 1:
        raise ParameterError(f"{count} rows over a vocabulary of {vocab}: both must be at least 1")
    local = 64
    program.dispatch(
        program.device.kernel("count_prompt", constants={"LOCAL": local}),
        -(-count // local),
        {"rows": rows, "counts": counts, "count": count, "vocab": vocab},
        reads=[rows.range(0, count * ROW_WORDS * 4)],
        writes=[counts],
        label="count prompt",
        nbytes=count * (ROW_WORDS * 4 + 4),
    )


def reset(program: Program, counts: Buffer, slot: int, vocab: int) -> None:
    """Add the clearing of one slot's counts."""
    program.fill(counts.range(slot * vocab * 4, vocab * 4))


def count_prompt(device: Device, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Run once: rows uint32 [R, 8], counts uint32 [slots, vocab]; returns the new counts."""
    with device.pool("count_prompt") as pool:
        source = pool.buffer(np.ascontiguousarray(rows, np.uint32))
        target = pool.buffer(np.ascontiguousarray(counts, np.uint32))
        program = device.program("count_prompt")
        record(program, rows=source, counts=target, count=rows.shape[0], vocab=counts.shape[1])
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.uint32, counts.shape)
