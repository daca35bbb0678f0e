"""linear on staged tiles: the product of many activation rows, as in prefill, with a weight matrix in resident tiles."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.gemm_cuts import Gemm, check_gemm, gemm_cut
from labkit.ops.rounding import FLOAT16_ORDERS, Rounded, Rounding, place, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.ops.weights import pack
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

if TYPE_CHECKING:
    from labkit.ops.linear import Matrix

EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


def gemm_rounding(layout: str) -> Rounding:
    """The rounding of activations that meets weights of `layout`: float16, in the order their codes unpack to."""
    return Rounding("float16", FLOAT16_ORDERS.get(layout, 2))


def record(
    program: Program,
    matrix: "Matrix",
    x: Rounded,
    y: Range | Rounded,
    *,
    rows: int,
    y_stride: int = 0,
    epilogue: str = "store",
    label: str = "",
    why: str = "asked for",
    cut: Gemm | None = None,
) -> None:
    """Add y = epilogue(x W^T) for x rounded as `gemm_rounding` says.

    y: float32 [rows, y_stride], the range from its first element to its last; or `Rounded` to float16 in any order, of
    `rows` rows of the product's width (n, or n / 2 of "swiglu"), which "add" cannot take. Raises ParameterError.
    """
    device = program.device
    swiglu = epilogue == "swiglu"
    if epilogue not in EPILOGUES:
        raise ParameterError(f"epilogue {epilogue!r} is not one of {', '.join(EPILOGUES)}")
    if swiglu and matrix.n % 2:
        raise ParameterError(f"the swiglu epilogue pairs rows, and the matrix has {matrix.n}")
    if cut is None:
        cut = gemm_cut(device, matrix.layout, rows, matrix.n, matrix.k, swiglu)
        if cut is None:
            raise ParameterError(f"{device.name} has no staged product of {matrix.layout} weights")
    check_gemm(cut, device, matrix.layout)
    if x.rounding != gemm_rounding(matrix.layout) or x.k != matrix.k or x.rows < rows:
        raise ParameterError(
            f"x is {x.rounding} [{x.rows}, {x.k}], not {gemm_rounding(matrix.layout)} [{rows}, {matrix.k}]"
        )
    width = matrix.n // 2 if swiglu else matrix.n
    if isinstance(y, Rounded):
        if epilogue == "add" or y.rounding.kind != "float16" or y.k != width or y.rows != rows:
            raise ParameterError(f"y is rounded to {y.rounding.kind} [{y.rows}, {y.k}], not float16 [{rows}, {width}]")
        if swiglu and cut.bm % 32:
            raise ParameterError(f"{cut}: tiles of a swiglu need a workgroup's rows of W to be a multiple of 32")
        target, out = y.data, 1 + y.rounding.order
    else:
        if y_stride < width or y.nbytes < ((rows - 1) * y_stride + width) * 4:
            raise ParameterError(
                f"y of {y.nbytes} bytes does not hold {rows} rows of {width} that lie {y_stride} apart"
            )
        target, out = y, 0
    aligned = target.start % 16 == 0 and y_stride % 4 == 0
    direct = not out and not swiglu and aligned and matrix.n % cut.size == 0 and rows % cut.size == 0
    weights: list[Buffer | Range] = [matrix.codes, *([matrix.scales] if matrix.scales else [])]
    program.dispatch(
        device.kernel(
            "linear_gemm",
            matrix.layout,
            {
                "CM": cut.size, "CN": cut.size, "CK": cut.size, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc,
                "BK": cut.bk, "BUFFERS": cut.buffers, "AHEAD": cut.ahead, "PUT_AT": cut.put, "SPREAD": cut.spread,
                "GROUP": cut.group, "EPILOGUE": EPILOGUES[epilogue], "OUT": out, "DIRECT": direct,
                "WIDE": aligned and matrix.n % (8 if swiglu else 4) == 0, "TAIL": matrix.k % cut.bk != 0,
                "SUBGROUP": cut.subgroup, "LOCAL": cut.local,
            },
            cut.subgroup,
        ),
        cut.tiles(rows, matrix.n),
        {
            "w": matrix.codes, "scales": matrix.scales or matrix.codes, "x": x.data, "y": target, "rows": rows,
            "n": matrix.n, "k": matrix.k, "y_stride": y_stride,
        },
        reads=[*weights, x.data, *([target] if epilogue == "add" else [])],
        writes=[target],
        label=label or f"linear {matrix.name}",
        flops=2 * rows * matrix.n * matrix.k,
        nbytes=matrix.nbytes + rows * (matrix.k * 2 + width * (2 if out else 4)),
        why=why,
    )  # fmt: skip


def linear_gemm(
    device: Device,
    x: np.ndarray,
    rows: np.ndarray,
    file_type: str,
    *,
    epilogue: str = "store",
    y: np.ndarray | None = None,
    cut: Gemm | None = None,
    order: int | None = None,
    pad: int = 0,
) -> np.ndarray:
    """Run once on arrays: x float32 [m, k], `rows` uint8 [n, bytes] in blocks of `file_type`. Returns float32 [m, width].

    With `order` the float16 tiles [m / 16, width / 16, 16, 16] instead. `pad`: floats between rows of y.
    Raises ParameterError for a wrong argument.
    """
    from labkit.ops.linear import upload

    m, k = x.shape
    with device.pool("linear gemm") as pool:
        matrix = upload(pool, pack(rows, file_type, k))
        width = matrix.n // 2 if epilogue == "swiglu" else matrix.n
        source, program = pool.buffer(np.ascontiguousarray(x, np.float32)), device.program("linear gemm")
        rounded = place(pool.buffer(scratch_bytes(m, k)), gemm_rounding(matrix.layout), m, k)
        record_rounding(program, source.range(), rounded, x_stride=k, label="linear gemm")
        stride = width + pad
        target = pool.buffer(m * stride * 4 if order is None else scratch_bytes(m, width))
        if y is not None:
            target.upload(np.ascontiguousarray(np.pad(y, ((0, 0), (0, pad))), np.float32))
        to: Range | Rounded
        if order is None:
            to = target.range(0, ((m - 1) * stride + width) * 4)
        else:
            to = place(target, Rounding("float16", order), m, width)
        record(program, matrix, rounded, to, rows=m, y_stride=stride, epilogue=epilogue, cut=cut)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        if isinstance(to, Rounded):
            tiles = target.download(np.float16)[: to.data.nbytes // 2]
            return tiles.reshape(-(-m // 16), -(-width // 16), 16, 16)
        return target.download(np.float32, (m, stride))[:, :width]
