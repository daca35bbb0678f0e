"""The rows of a step (token, slot, position, flags), and the checked range of a buffer that a stack of rows takes."""

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import ParameterError
from labkit.vulkan.memory import Buffer, Range

ROW_WORDS = 8  # uint32 a row: token, slot, position, flags, remaining, 0, 0, 0
ACTIVE = 1  # bit of flags: the row takes part; without it no cache page and no counter is touched
PROMPT = 2  # bit of flags: the token is the prompt's, and penalties are to know it
PADDING = 0xFFFFFFFF  # in a list of row indices: no row


def make_rows(tokens: ArrayLike, slots: ArrayLike, positions: ArrayLike, active: ArrayLike = True) -> np.ndarray:
    """Rows as uint32 [R, 8], for tests and notebooks. Raises ParameterError where the lengths differ."""
    columns = [np.asarray(column) for column in (tokens, slots, positions)]
    count = len(columns[0])
    if any(column.shape != (count,) for column in columns):
        raise ParameterError(
            f"tokens, slots and positions have shapes {[c.shape for c in columns]}: give as many of each"
        )
    rows = np.zeros((count, ROW_WORDS), np.uint32)
    rows[:, 0], rows[:, 1], rows[:, 2] = columns
    rows[:, 3] = np.where(np.broadcast_to(active, count), ACTIVE, 0)
    return rows


def span(name: str, buffer: Buffer | Range, count: int, stride: int, width: int) -> Range:
    """The bytes of `count` rows of `width` floats, `stride` floats apart.

    Raises ParameterError where the stride or the width is no multiple of 4, the rows overlap or the buffer is short.
    """
    if count < 1 or width < 4 or width % 4 or stride % 4 or stride < width:
        raise ParameterError(
            f"{name}: {count} rows of {width} floats, {stride} apart: at least one, multiples of 4, rows apart"
        )
    whole = buffer.range() if isinstance(buffer, Buffer) else buffer
    need = ((count - 1) * stride + width) * 4
    if need > whole.nbytes:
        raise ParameterError(f"{name} needs {need} bytes for {count} rows and has {whole.nbytes}")
    return whole.buffer.range(whole.offset, need)


def row_range(rows: Buffer, count: int) -> Range:
    """The bytes of the first `count` rows. Raises ParameterError where the buffer is short."""
    if count < 1 or count * ROW_WORDS * 4 > rows.nbytes:
        raise ParameterError(f"{count} rows were asked for and {rows!r} holds {rows.nbytes // (ROW_WORDS * 4)}")
    return rows.range(0, count * ROW_WORDS * 4)
