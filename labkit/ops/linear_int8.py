"""linear_int8: quantised weights times a few rows of activations in int8 tiles, on int8 cooperative matrices."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import ParameterError
from labkit.ops import int8_tiles
from labkit.ops.int8_tiles import BLOCK, Int8Tiles, order_for, place_tiles, tiles_bytes
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program

if TYPE_CHECKING:
    from labkit.ops.linear import Matrix

LAYOUTS = ("q8", "q4", "q4m")
_EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


@dataclass(frozen=True)
class CoopmatInt8:
    """shaders/linear_int8.comp: how a product is cut into work, by the constants of the same names there.

    `m`, `n`, `k`: the shape of an int8 product; `kf`: K of the float16 product of the same M and N. `group` blocks of 32
    are a unit of K, `ahead` of them (a divisor; even for 4-bit codes) are on their way while others are multiplied.
    """

    fr: int
    fc: int
    sr: int
    sc: int
    sk: int
    group: int
    ahead: int
    m: int
    n: int
    k: int
    kf: int
    subgroup: int
    ahead_x: int = 0
    prefetch: bool = True
    buffers: int = 1
    magic: bool = True
    pipe: bool = True


@dataclass(frozen=True)
class Int8Shape:
    """An int8 product m x n x k into int32, and kf of the float16 product m x n x kf into float32 beside it."""

    m: int
    n: int
    k: int
    kf: int


def int8_shapes(device: Device) -> list[Int8Shape]:
    """The shapes linear_int8.comp can use here, the deepest and then the widest first; none where a feature lacks."""
    from labkit.vulkan.hardware import matrix_shapes

    if not device.has("coopmat", "int8", "fp16", "storage16"):
        return []
    listed = matrix_shapes(device)
    deep = {(s.m, s.n): [] for s in listed}  # type: dict[tuple[int, int], list[int]]
    for s in listed:
        if (s.a, s.b, s.c) == ("float16", "float16", "float32") and s.k in (8, 16):
            deep[s.m, s.n].append(s.k)
    found = {
        Int8Shape(s.m, s.n, s.k, kf)
        for s in listed
        if (s.a, s.b, s.c) == ("int8", "int8", "int32") and s.m in (8, 16) and s.n in (8, 16) and s.k in (8, 16, 32)
        for kf in deep[s.m, s.n]
    }
    return sorted(found, key=lambda s: (-s.k, -s.n, -s.m, -s.kf))


def fits(device: Device, layout: str, n: int, k: int) -> bool:
    """Whether weights [n, k] of `layout` can be multiplied by some cut here: else the caller takes another kernel."""
    shapes = int8_shapes(device)
    return (
        bool(shapes) and layout in LAYOUTS and n > 0 and k % BLOCK == 0 and k // BLOCK >= min(s.kf for s in shapes)
        and subgroup_size(device) <= 32
    )  # fmt: skip


def subgroup_size(device: Device) -> int:
    """The subgroup size the kernel runs with: 32 where the driver lets one choose, else what it has."""
    return 32 if device.info.subgroup_min <= 32 <= device.info.subgroup_max else device.info.subgroup_size


def shared_bytes(cut: CoopmatInt8, layout: str, *, tiles_out: bool = False) -> int:
    """Bytes of shared memory a workgroup of `cut` takes."""
    subgroups, rows, cols = cut.sr * cut.sc * cut.sk, cut.fr * cut.m, cut.fc * cut.n
    tiles = -(-rows // 16)
    codes = 0 if layout == "q8" else tiles * cut.buffers * 2 * 16 * (80 if cut.k == 8 else 48)
    split = tiles * cut.kf * 64 if layout == "q4m" else 0
    arena = max(subgroups * cols * cut.m * 4, subgroups * (codes + split), cut.kf * cut.n * 2)
    return arena + (-(-cut.sc * cols * (cut.sr * rows // 2 + 1) // 4) * 16 if tiles_out else 0)


def check(cut: CoopmatInt8, device: Device, layout: str, n: int, k: int, *, tiles_out: bool = False) -> None:
    """Raise ParameterError, in one line, for a cut that cannot multiply weights [n, k] of `layout` on `device`."""

    def refuse(why: str) -> None:
        raise ParameterError(f"{cut} does not fit {layout} weights [{n}, {k}] on {device.name}: {why}")

    if Int8Shape(cut.m, cut.n, cut.k, cut.kf) not in int8_shapes(device):
        refuse(f"its matrices are {', '.join(map(str, int8_shapes(device))) or 'none'}")
    if layout not in LAYOUTS:
        refuse(f"the layout is not one of {', '.join(LAYOUTS)}")
    if k % BLOCK or k < cut.kf * BLOCK:
        refuse(f"k is a multiple of {BLOCK}, and at least {cut.kf * BLOCK}")
    if min(cut.fr, cut.fc, cut.sr, cut.sc, cut.sk) < 1 or cut.fr > 4:
        refuse("fr is 1 to 4, the other counts at least 1")
    if not 1 <= cut.group <= cut.kf or cut.group % cut.ahead or (layout != "q8" and cut.ahead % 2):
        refuse(f"group is 1 to {cut.kf}, and ahead divides it (even, for 4-bit codes)")
    if cut.ahead_x and cut.ahead % cut.ahead_x:
        refuse("ahead_x divides ahead")
    if cut.buffers not in (1, 2) or (cut.buffers == 2 and cut.group % 4):
        refuse("buffers are 1 or, with group a multiple of 4, 2")
    if cut.subgroup != subgroup_size(device) or cut.subgroup > 32:
        refuse(f"subgroups are of {subgroup_size(device)}, and at most 32")
    if tiles_out and (cut.sr * cut.fr * cut.m % 64 or n % 64):
        refuse("int8 tiles as the result need sr * fr * m, and n, to be multiples of 64")
    size, most = shared_bytes(cut, layout, tiles_out=tiles_out), device.info.max_shared_bytes
    if size > most:
        refuse(f"it takes {size} bytes of shared memory of {most}")
    if cut.subgroup * cut.sr * cut.sc * cut.sk > device.info.max_workgroup_invocations:
        refuse(f"a workgroup has at most {device.info.max_workgroup_invocations} invocations")


def choose(device: Device, layout: str, rows: int, n: int, k: int) -> CoopmatInt8:
    """A cut for `rows` activation rows, where it `fits`: measured on an H200 (16x8x32 products), scaled down elsewhere."""
    deep = [s for s in int8_shapes(device) if s.kf * BLOCK <= k]
    if not fits(device, layout, n, k) or not deep:
        raise ParameterError(f"{device.name} cannot multiply {layout} weights [{n}, {k}] by int8 matrices")
    shape = min(deep, key=lambda s: (s.n, s.kf))
    q8, fc = layout == "q8", min(4, -(-rows // shape.n))
    if n >= 16384:
        fr, sr, sk, group, ahead, ahead_x = (4, 1, 4, 8, 4 if fc > 1 else 2, int(fc < 4)) if q8 else (4, 2, 2, 8, 2, 1)
    elif k > 8192:
        fr, sr, sk, group, ahead, ahead_x = (2, 1, 8, 8, 2, 0) if q8 and fc == 4 else (2, 1, 16, 4, 4, 1)
    elif n > 4096 and fc > 1:
        fr, sr, sk, group, ahead, ahead_x = 4, 1, 8, 8, 2, 1
    else:
        fr, sr, sk, group, ahead, ahead_x = 2, 1, 8, 8, 2, 0
    if shape.n == 16:  # as on AMD, where registers hold little more than the sums
        fr, sr, sk, group, ahead, ahead_x, fc = 2, 1, 8, 8, 1 if q8 else 2, 0, 1
    cut = CoopmatInt8(
        fr, fc, sr, 1, sk, min(group, shape.kf), ahead, shape.m, shape.n, shape.k, shape.kf, subgroup_size(device), ahead_x,
        pipe=shape.n < 16 and not (q8 and n >= 16384 and fc == 4),
    )  # fmt: skip
    while cut.sk > 1 and (
        shared_bytes(cut, layout) > device.info.max_shared_bytes
        or cut.subgroup * cut.sr * cut.sk > device.info.max_workgroup_invocations
    ):
        cut = replace(cut, sk=cut.sk // 2)
    return cut


def record(
    program: Program,
    matrix: "Matrix",
    x: Int8Tiles,
    y: Buffer | Range | Int8Tiles,
    *,
    y_stride: int = 0,
    epilogue: str = "store",
    cut: CoopmatInt8,
    label: str = "",
    why: str = "",
) -> None:
    """Add y = epilogue(x W^T). y: float32 [rows, y_stride], or (swiglu) int8 tiles of [rows, n / 2].

    Raises ParameterError for a cut that does not fit, tiles of another order or depth, or an unknown epilogue.
    """
    if epilogue not in _EPILOGUES:
        raise ParameterError(f"epilogue {epilogue!r} is not one of {', '.join(_EPILOGUES)}")
    tiles = y if isinstance(y, Int8Tiles) else None
    check(cut, program.device, matrix.layout, matrix.n, matrix.k, tiles_out=tiles is not None)
    minimum = matrix.layout == "q4m"
    if x.k != matrix.k or x.order != order_for(matrix.layout) or (minimum and x.sums is None):
        raise ParameterError(
            f"{matrix.layout} weights [{matrix.n}, {matrix.k}] take int8 tiles of {matrix.k} elements in order "
            f"{order_for(matrix.layout)}{' with sums' if minimum else ''}, not {x.k} in order {x.order}"
        )
    width = matrix.n // 2 if epilogue == "swiglu" else matrix.n
    if epilogue == "swiglu" and matrix.n % 2:
        raise ParameterError(f"the swiglu epilogue pairs rows, and the matrix has {matrix.n}")
    if tiles is not None:
        if epilogue != "swiglu" or (tiles.rows, tiles.k) != (x.rows, width):
            raise ParameterError(f"int8 tiles as the result are for swiglu, of {x.rows} rows of {width}")
        y_stride, out = width, tiles.ranges
    else:
        assert not isinstance(y, Int8Tiles)
        if y_stride < width:
            raise ParameterError(f"a stride of {y_stride} does not hold rows of {width}")
        out = [y if isinstance(y, Range) else y.range(0, ((x.rows - 1) * y_stride + width) * 4)]
    assert matrix.scales is not None
    subgroups = cut.sr * cut.sc * cut.sk
    constants: dict[str, int | float | bool] = {
        "CM": cut.m, "CN": cut.n, "CK": cut.k, "CKF": cut.kf, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc,
        "SK": cut.sk, "G": cut.group, "AHEAD": cut.ahead, "AHEAD_X": cut.ahead_x, "PREFETCH": cut.prefetch,
        "BUFFERS": cut.buffers, "MAGIC": cut.magic, "PIPE": cut.pipe, "EPILOGUE": _EPILOGUES[epilogue],
        "OUT": 0 if tiles is None else 1 + tiles.order, "SUMS": tiles is not None and tiles.sums is not None,
        "SUBGROUP": cut.subgroup, "LOCAL": subgroups * cut.subgroup,
    }  # fmt: skip
    none = out[0]
    program.dispatch(
        program.device.kernel("linear_int8", matrix.layout, constants, cut.subgroup),
        (-(-matrix.n // (cut.sr * cut.fr * cut.m)), -(-x.rows // (cut.sc * cut.fc * cut.n))),
        {
            "w": matrix.codes, "scales": matrix.scales, "x": x.codes, "x_scales": x.scales, "x_sums": x.sums or x.scales,
            "y": none, "y_codes": none, "y_scales": tiles.scales if tiles else none,
            "y_sums": (tiles.sums or none) if tiles else none, "rows": x.rows, "n": matrix.n, "k": matrix.k,
            "y_stride": y_stride,
        },
        reads=[matrix.codes, matrix.scales, *x.ranges, *(out if epilogue == "add" else [])],
        writes=out,
        label=label or f"linear {matrix.name}",
        flops=2 * x.rows * matrix.n * matrix.k,
        nbytes=matrix.nbytes + sum(r.nbytes for r in [*x.ranges, *out]),
        why=why,
    )  # fmt: skip


def linear_int8(
    device: Device,
    x: np.ndarray,
    rows: np.ndarray,
    file_type: str,
    *,
    epilogue: str = "store",
    y: np.ndarray | None = None,
    cut: CoopmatInt8 | None = None,
) -> np.ndarray:
    """Run once on arrays: x float32 [m, k], `rows` uint8 [n, bytes] in blocks of `file_type`. Returns float32 [m, width]."""
    from labkit.ops.linear import upload
    from labkit.ops.weights import pack

    m, k = x.shape
    packed = pack(rows, file_type, k)
    cut = cut or choose(device, packed.layout, m, packed.n, k)
    with device.pool("linear int8") as pool:
        matrix = upload(pool, packed)
        width = matrix.n // 2 if epilogue == "swiglu" else matrix.n
        source, target = pool.buffer(np.ascontiguousarray(x, np.float32)), pool.buffer(m * width * 4)
        if y is not None:
            target.upload(np.ascontiguousarray(y, np.float32))
        sums = matrix.layout == "q4m"
        tiles = place_tiles(pool.buffer(tiles_bytes(m, k, sums=sums)), m, k, order_for(matrix.layout), sums=sums)
        program = device.program("linear int8")
        int8_tiles.record(program, source, tiles, x_stride=k)
        record(program, matrix, tiles, target, y_stride=width, epilogue=epilogue, cut=cut)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (m, width))
