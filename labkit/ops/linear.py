"""linear: activations times a weight matrix in resident tiles, with an optional residual or SwiGLU epilogue."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.weights import PackedWeights, pack
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool, Range
from labkit.vulkan.program import Program

EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


def reference(x: np.ndarray, weight: np.ndarray, epilogue: str = "store", y: np.ndarray | None = None) -> np.ndarray:
    """y = x W^T in float64, returned as float32. x [rows, k], weight [n, k]; "add" adds to `y`, "swiglu" pairs rows."""
    out = x.astype(np.float64) @ weight.astype(np.float64).T
    if epilogue == "add" and y is not None:
        out = out + y
    elif epilogue == "swiglu":
        gate, up = out[:, 0::2], out[:, 1::2]
        out = gate / (1 + np.exp(-np.clip(gate, -700, None))) * up
    return out.astype(np.float32)


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


def upload(pool: Pool, packed: PackedWeights, name: str = "") -> Matrix:
    """Put packed weights on the device of `pool`."""
    scales = None if packed.scales is None else pool.buffer(packed.scales, label=f"{name} scales")
    return Matrix(packed.layout, packed.n, packed.k, pool.buffer(packed.codes, label=name), scales, name)


@dataclass(frozen=True)
class Shape:
    """How a linear dispatch is cut; see shaders/linear.comp for the names."""

    cols: int
    rpl: int
    ksplit: int
    lanes: int
    xshare: bool


def shape(device: Device, rows: int, n: int, k: int, *, exact: bool = True) -> Shape:
    """The cut for `rows` activation rows.

    With `exact`, KSPLIT depends on the matrix and device only, so that sums keep their order at every width; else it
    follows the width: fewer parts when more columns keep the device busy.
    """
    cols = 1 << min(max(rows - 1, 0).bit_length(), 3)
    if device.is_cpu and device.info.subgroup_size == 8:
        return Shape(cols, 4, 1, 8, True)
    groups = -(-n // 16)
    ksplit = 16 if groups < 1024 else 8
    if not exact and cols >= 4:
        ksplit //= 2
    while ksplit > 1 and ksplit * 32 > k:
        ksplit //= 2
    return Shape(cols, 2, ksplit, 8, False)


def record(
    program: Program,
    matrix: Matrix,
    x: Buffer,
    y: Buffer,
    *,
    rows: int,
    x_stride: int,
    y_stride: int,
    y_offset: int = 0,
    epilogue: str = "store",
    label: str = "",
    exact: bool = True,
    cut: Shape | None = None,
) -> None:
    """Add y = epilogue(x W^T). x: float32 [rows, x_stride], y: float32 [rows, y_stride] from column `y_offset` on.

    Strides and offset are in floats. `exact` keeps the order of sums at every width (see `shape`). Raises ParameterError.
    """
    device = program.device
    if epilogue not in EPILOGUES:
        raise ParameterError(f"epilogue {epilogue!r} is not one of {', '.join(EPILOGUES)}")
    if x_stride % 4 or x_stride < matrix.k or y_stride < (matrix.n // 2 if epilogue == "swiglu" else matrix.n):
        raise ParameterError(
            f"strides {x_stride} and {y_stride} do not hold rows of {matrix.k} and {matrix.n} (x's a multiple of 4)"
        )
    cut = cut or shape(device, rows, matrix.n, matrix.k, exact=exact)
    if epilogue == "swiglu" and (cut.rpl % 2 or matrix.n % 2):
        raise ParameterError("the swiglu epilogue needs gate and up rows interleaved and an even number of rows a lane")
    block = 32 if matrix.layout in ("q8", "q4", "q4m") else 16
    kernel = device.kernel(
        "linear",
        matrix.layout,
        {
            "COLS": cut.cols, "RPL": cut.rpl, "KSPLIT": cut.ksplit, "EPILOGUE": EPILOGUES[epilogue],
            "LANES": cut.lanes, "XSHARE": cut.xshare, "TAIL": matrix.k % block != 0, "LOCAL": cut.ksplit * cut.lanes,
        },
    )  # fmt: skip
    width = matrix.n // 2 if epilogue == "swiglu" else matrix.n
    source = x.range(0, rows * x_stride * 4)
    target = y.range(y_offset * 4, ((rows - 1) * y_stride + width) * 4)
    push = {
        "w": matrix.codes, "scales": matrix.scales or matrix.codes, "x": x, "y": target, "rows": rows,
        "n": matrix.n, "k": matrix.k, "x_stride": x_stride, "y_stride": y_stride,
    }  # fmt: skip
    weights: list[Buffer | Range] = [matrix.codes, *([matrix.scales] if matrix.scales else [])]
    program.dispatch(
        kernel,
        (-(-matrix.n // (cut.lanes * cut.rpl)), -(-rows // cut.cols)),
        push,
        reads=[*weights, source] + ([target] if epilogue == "add" else []),
        writes=[target],
        label=label or f"linear {matrix.name}",
        flops=2 * rows * matrix.n * matrix.k,
        nbytes=matrix.nbytes + rows * (matrix.k + width) * 4,
    )


def linear(
    device: Device,
    x: np.ndarray,
    rows: np.ndarray,
    file_type: str,
    *,
    epilogue: str = "store",
    y: np.ndarray | None = None,
    cut: Shape | None = None,
) -> np.ndarray:
    """Run once on arrays: x float32 [m, k], `rows` uint8 [n, bytes] in blocks of `file_type`. Returns float32."""
    m, k = x.shape
    with device.pool("linear") as pool:
        matrix = upload(pool, pack(rows, file_type, k))
        width = matrix.n // 2 if epilogue == "swiglu" else matrix.n
        source = pool.buffer(np.ascontiguousarray(x, np.float32))
        target = pool.buffer(m * width * 4)
        if y is not None:
            target.upload(np.ascontiguousarray(y, np.float32))
        program = device.program("linear")
        record(program, matrix, source, target, rows=m, x_stride=k, y_stride=width, epilogue=epilogue, cut=cut)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (m, width))
