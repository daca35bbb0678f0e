"""linear: activations times a weight matrix in resident tiles, with an optional residual or SwiGLU epilogue."""

from collections.abc import Callable

import numpy as np

from labkit.errors import ParameterError
from labkit.ops import linear_gemm, linear_int8
from labkit.ops.carried_norm import ROWS, Carried, Carry
from labkit.ops.gemm_cuts import Gemm
from labkit.ops.int8_tiles import Int8Tiles
from labkit.ops.layouts import TILE
from labkit.ops.linear_call import CARRYING, EPILOGUES, FINISHING, Call, Matrix, Norm, RopeKV
from labkit.ops.linear_cuts import (
    Coopmat,
    CoopmatInt8,
    Cut,
    Lanes,
    Matvec,
    MatvecInt8,
    MatvecK,
    choose,
    parts_bytes,
    rounds_here,
)
from labkit.ops.linear_fragments import Fragments, M
from labkit.ops.rounding import Rounded, Rounding, place, rounding_for, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.ops.weights import PackedWeights, pack
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool
from labkit.vulkan.program import Program

__all__ = ["Matrix", "Norm", "RopeKV", "absorbs_norm", "linear", "record", "reference", "stream", "upload"]
PIECE = 4 << 20  # bytes of a file's rows packed at once while a matrix is put on a device


def reference(x: np.ndarray, weight: np.ndarray, epilogue: str = "store", y: np.ndarray | None = None) -> np.ndarray:
    """y = x W^T in float64, returned as float32. x [rows, k], weight [n, k]; "add" adds to `y`, "swiglu" pairs rows."""
    out = x.astype(np.float64) @ weight.astype(np.float64).T
    if epilogue == "add" and y is not None:
        out = out + y
    elif epilogue == "swiglu":
        gate, up = out[:, 0::2], out[:, 1::2]
        out = gate / (1 + np.exp(-np.clip(gate, -700, None))) * up
    return out.astype(np.float32)


def upload(pool: Pool, packed: PackedWeights, name: str = "") -> Matrix:
    """Put packed weights on the device of `pool`."""
    scales = None if packed.scales is None else pool.buffer(packed.scales, label=f"{name} scales")
    return Matrix(packed.layout, packed.n, packed.k, pool.buffer(packed.codes, label=name), scales, name)


def stream(
    pool: Pool,
    take: Callable[[int, int], np.ndarray],
    n: int,
    k: int,
    file_type: str,
    name: str = "",
    most: int = PIECE,
) -> Matrix:
    """Put a matrix [n, k] on the device of `pool` piece by piece, of about `most` bytes: take(start, stop) gives its rows in
    blocks of `file_type`, uint8 [rows, bytes]. Raises ModelError as `pack` does."""
    planes: list[Buffer | None] = [None, None]
    layout, start, row_bytes = "", 0, 0
    while start < n:
        stop = min(n, start + max(most // row_bytes // TILE, 1) * TILE if row_bytes else TILE)
        rows = take(start, stop)
        packed, row_bytes = pack(rows, file_type, k), max(rows.shape[1], 1)
        layout, tiles = packed.layout, -(-(stop - start) // TILE)
        for i, content in enumerate((packed.codes, packed.scales)):
            if content is None:
                continue
            each = content.nbytes // tiles
            if planes[i] is None:
                label = f"{name} scales" if i else name
                planes[i] = pool.buffer(each * -(-n // TILE), label=label)
            target = planes[i]
            assert target is not None
            target.upload(content, start // TILE * each)
        start = stop
    codes, scales = planes
    assert codes is not None
    return Matrix(layout, n, k, codes, scales, name)


def absorbs_norm(device: Device, cut: Cut, matrix: Matrix, rows: int) -> bool:
    """Whether `cut` can norm its one row of activations itself; it takes the shared memory that the row needs."""
    if rows != 1 or not isinstance(cut, Matvec | MatvecInt8 | MatvecK):
        return False
    if isinstance(cut, MatvecInt8 | MatvecK):
        return rounds_here(device, cut, rows, matrix.k)
    return matrix.k * 4 + parts_bytes(cut) <= device.info.max_shared_bytes


def leaves(cut: Cut, matrix: Matrix, rows: int, rounding: Rounding) -> bool:
    """Whether `cut` can leave a SwiGLU rounded as its reader wants it: tiles, or one row of int8 codes."""
    if isinstance(cut, Coopmat | Fragments | Gemm):
        return rounding.kind == "float16"
    if isinstance(cut, CoopmatInt8):
        return rounding.kind == "int8_tiles" and cut.sr * cut.fr * cut.m % 64 == 0 and matrix.n % 64 == 0
    if isinstance(cut, MatvecInt8 | MatvecK):
        return rounding.kind == "int8" and rows == 1 and cut.tiles * cut.repeat % 4 == 0 and matrix.n % 64 == 0
    return False


def carries(cut: Cut, matrix: Matrix, rows: int) -> bool:
    """Whether `cut` can be one of the two products that carry a norm (carried_norm.py), for this matrix."""
    return isinstance(cut, CARRYING) and rows <= ROWS and matrix.n % 16 == 0 and matrix.k % 16 == 0


def carried_elements(cut: Cut) -> int:
    """For how many elements of a row a cut that `carries` leaves or takes a sum of squares."""
    return cut.size if isinstance(cut, Coopmat) else M


def tiled_int8(tiled: Rounded) -> Int8Tiles:
    """The int8 tiles that `tiled` is. Raises ParameterError when it is none."""
    if tiled.tiles is None:
        raise ParameterError(f"a product of int8 matrices leaves int8 tiles, not {tiled.rounding.kind}")
    return tiled.tiles


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
    scratch: Buffer | None = None,
    rounded: Rounded | None = None,
    cut: Cut | None = None,
    norm: Norm | None = None,
    rope: RopeKV | None = None,
    tiled: Rounded | None = None,
    carry: Carry | None = None,
    carried: Carried | None = None,
) -> None:
    """Add y = epilogue(x W^T). x: float32 [rows, x_stride], y: float32 [rows, y_stride] from column `y_offset` on.

    Strides and offset are in floats. `exact` keeps float32 activations and the order of sums at every width; else the
    device's fastest cut runs, which may round activations (to float16 or to int8 in blocks of 32) into `scratch`, of
    `rounding.scratch_bytes`; or `rounded` already, as `rounding.rounding_for` the cut asks. `norm`: x is normed first, by
    cuts that `absorbs_norm`. `rope`: what the "rope_kv" epilogue needs; `tiled`: where "swiglu" goes instead
    of y, in a cut that `leaves` such. `carry`, `carried`: the two sides of a norm between products
    (carried_norm.py), in cuts that `carries` such. Raises ParameterError.
    """
    device = program.device
    if epilogue not in EPILOGUES or (epilogue == "rope_kv") != (rope is not None):
        raise ParameterError(f"epilogue {epilogue!r} is not one of {', '.join(EPILOGUES)} (rope_kv goes with `rope`)")
    swiglu = epilogue == "swiglu"
    if x_stride % 4 or x_stride < matrix.k or y_stride < (matrix.n // 2 if swiglu else matrix.n):
        raise ParameterError(
            f"strides {x_stride} and {y_stride} do not hold rows of {matrix.k} and {matrix.n} (x's a multiple of 4)"
        )
    if swiglu and matrix.n % 2:
        raise ParameterError(f"the swiglu epilogue pairs rows, and the matrix has {matrix.n}")
    why = "asked for"
    if cut is None:
        exact = exact or scratch is None
        cut, why = choose(device, matrix.layout, rows, matrix.n, matrix.k, exact=exact, swiglu=swiglu)
    if norm is not None and not absorbs_norm(device, cut, matrix, rows):
        raise ParameterError(f"{type(cut).__name__} over {rows} rows does not norm its activations")
    if rope is not None and not isinstance(cut, FINISHING):
        raise ParameterError(f"{type(cut).__name__} has no rope_kv epilogue")
    if tiled is not None and not leaves(cut, matrix, rows, tiled.rounding):
        raise ParameterError(f"{type(cut).__name__} over {rows} rows does not leave {tiled.rounding}")
    if (carry or carried) and not carries(cut, matrix, rows):
        raise ParameterError(f"{type(cut).__name__} over {rows} rows of {matrix.k} carries no norm")
    if carry is not None and (epilogue != "add" or y_offset or carry.state.width != matrix.n):
        raise ParameterError(
            f"a norm of {carry.state.width} is carried by an add of as many, not {epilogue} of {matrix.n}"
        )
    if carried is not None:
        if carried.state.width != matrix.k:
            raise ParameterError(f"a norm of {carried.state.width} is carried to products of as many, not {matrix.k}")
        rounded = carried.tiles
    width = matrix.n // 2 if swiglu else matrix.n
    if tiled is not None and isinstance(cut, Coopmat | Fragments):
        if not swiglu or width % 16:  # of a last tile that is not whole, nobody would write the rest
            raise ParameterError(
                f"{type(cut).__name__} leaves tiles of a swiglu of a multiple of 16 columns, not {epilogue} of {width}"
            )
        if tiled.rounding.kind != "float16" or tiled.k != width or tiled.rows < rows:
            raise ParameterError(
                f"tiles of {tiled.rounding} [{tiled.rows}, {tiled.k}] are not float16 [{rows}, {width}]"
            )
    source = x.range() if norm and norm.logit_rows else x.range(0, rows * x_stride * 4)
    target = y.range(y_offset * 4, ((rows - 1) * y_stride + width) * 4) if tiled is None else tiled.data
    call = Call(
        program, matrix, source, target, rows, x_stride, y_stride, epilogue, label or f"linear {matrix.name}", why,
        norm, rope, tiled, carry, carried,
    )  # fmt: skip
    if isinstance(cut, Lanes):
        call.lanes(cut)
    elif isinstance(cut, Matvec):
        call.matvec(cut)
    elif isinstance(cut, MatvecInt8 | MatvecK) and rounded is None and rounds_here(device, cut, rows, matrix.k):
        call.matvec_int8(cut, None)
    else:
        wanted = rounding_for(cut, matrix.layout)
        assert wanted is not None
        if rounded is None or rounded.rounding != wanted:
            if scratch is None or scratch.nbytes < scratch_bytes(rows, matrix.k):
                raise ParameterError(
                    f"this cut rounds activations and needs {scratch_bytes(rows, matrix.k)} bytes of scratch"
                )
            rounded = place(scratch, wanted, rows, matrix.k)
            record_rounding(program, call.x, rounded, x_stride=x_stride, label=call.label)
        if isinstance(cut, MatvecInt8 | MatvecK):
            call.matvec_int8(cut, rounded)
        elif isinstance(cut, CoopmatInt8):
            assert rounded.tiles is not None
            linear_int8.record(
                program, matrix, rounded.tiles, target if tiled is None else tiled_int8(tiled), y_stride=y_stride,
                epilogue=epilogue, cut=cut, label=call.label, why=why,
            )  # fmt: skip
        elif isinstance(cut, Gemm):
            linear_gemm.record(
                program, matrix, rounded, tiled or target, rows=rows, y_stride=y_stride, epilogue=epilogue, label=call.label,
                why=why, cut=cut,
            )  # fmt: skip
        elif isinstance(cut, Fragments):
            call.fragments(cut, rounded)
        else:
            call.coopmat(cut, rounded)


def linear(
    device: Device,
    x: np.ndarray,
    rows: np.ndarray,
    file_type: str,
    *,
    epilogue: str = "store",
    y: np.ndarray | None = None,
    exact: bool = True,
    cut: Cut | None = None,
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
        scratch = pool.buffer(scratch_bytes(m, k))
        record(
            program, matrix, source, target, rows=m, x_stride=k, y_stride=width, epilogue=epilogue, cut=cut, exact=exact,
            scratch=scratch,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (m, width))
