"""embedding: the rows of a weight matrix at the rows' tokens, dequantised from the tiles a tied LM head reads too."""

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.linear import Matrix, upload
from labkit.ops.rows import make_rows, row_range, span
from labkit.ops.weights import pack
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program


def reference(weight: np.ndarray, tokens: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """weight[tokens] * scale: weight [n, k] dequantised, tokens integers [R]; returns float32 [R, k]."""
    chosen: np.ndarray = weight[tokens]
    return chosen.astype(np.float32) * np.float32(scale)


def record(
    program: Program,
    matrix: Matrix,
    rows: Buffer,
    x: Buffer,
    *,
    count: int,
    x_stride: int,
    scale: float = 1.0,
    label: str = "embedding",
) -> None:
    """Add x[r] = matrix[token of row r] * scale for `count` rows. x: float32 [count, x_stride].

    Raises ParameterError for strides or buffers that do not hold the rows. Tokens outside the matrix read its last row.
    """
    target = span("x", x, count, x_stride, matrix.k)
    constants: dict[str, int | float | bool] = {"LOCAL": 32 if program.device.is_cpu else 64}
    local = int(constants["LOCAL"])
    if scale != 1.0:
        constants["SCALE"] = scale
    program.dispatch(
        program.device.kernel("embedding", matrix.layout, constants),
        (-(-matrix.k // (8 * local)), count),
        {
            "w": matrix.codes, "scales": matrix.scales or matrix.codes, "rows": rows, "x": target,
            "n": matrix.n, "k": matrix.k, "x_stride": x_stride,
        },
        reads=[matrix.codes, *([matrix.scales] if matrix.scales else []), row_range(rows, count)],
        writes=[target],
        label=label,
        nbytes=count * (matrix.nbytes // matrix.n + 4 * matrix.k),
    )  # fmt: skip


def embedding(
    device: Device, tokens: np.ndarray, rows: np.ndarray, file_type: str, k: int, scale: float = 1.0
) -> np.ndarray:
    """Run once on arrays: integer tokens [R]; `rows` uint8 [n, bytes] in blocks of `file_type`; float32 [R, k]."""
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or tokens.size == 0 or tokens.min() < 0 or tokens.max() >= rows.shape[0]:
        raise ParameterError(f"tokens must be one row of integers from 0 to {rows.shape[0] - 1}")
    zeros = np.zeros(len(tokens), int)
    with device.pool("embedding") as pool:
        matrix = upload(pool, pack(rows, file_type, k))
        described = pool.buffer(make_rows(tokens, zeros, zeros))
        target = pool.buffer(len(tokens) * k * 4)
        program = device.program("embedding")
        record(program, matrix, described, target, count=len(tokens), x_stride=k, scale=scale)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (len(tokens), k))
