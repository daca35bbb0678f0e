"""linear: activations times a weight matrix in resident tiles, with an optional residual or SwiGLU epilogue."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.linear_cuts import CODES, STEP, Coopmat, Cut, Lanes, Matvec, MatvecInt8, MatvecK, choose
from labkit.ops.rounding import Rounded, place, rounding_for, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.ops.weights import PackedWeights, pack
from labkit.vulkan.device import Device
from labkit.vulkan.kernel import Grid
from labkit.vulkan.memory import Buffer, Pool, Range
from labkit.vulkan.program import Program

Constants = dict[str, int | float | bool]
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
) -> None:
    """Add y = epilogue(x W^T). x: float32 [rows, x_stride], y: float32 [rows, y_stride] from column `y_offset` on.

    Strides and offset are in floats. `exact` keeps float32 activations and the order of sums at every width; else the
    device's fastest cut runs, which may round activations (to float16 or to int8 in blocks of 32) into `scratch`, of
    `rounding.scratch_bytes`; or `rounded` already, as `rounding.rounding_for` the cut asks. Raises ParameterError.
    """
    device = program.device
    if epilogue not in EPILOGUES:
        raise ParameterError(f"epilogue {epilogue!r} is not one of {', '.join(EPILOGUES)}")
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
    width = matrix.n // 2 if swiglu else matrix.n
    call = _Call(
        program, matrix, x.range(0, rows * x_stride * 4), y.range(y_offset * 4, ((rows - 1) * y_stride + width) * 4),
        rows, x_stride, y_stride, epilogue, label or f"linear {matrix.name}", why,
    )  # fmt: skip
    if isinstance(cut, Lanes):
        call.lanes(cut)
    elif isinstance(cut, Matvec):
        call.matvec(cut)
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
        if isinstance(cut, MatvecInt8):
            call.matvec_int8(cut, rounded)
        elif isinstance(cut, MatvecK):
            call.matvec_k(cut, rounded)
        else:
            call.coopmat(cut, rounded)


@dataclass(frozen=True)
class _Call:
    """One linear operation on its way into a program: what all cuts share."""

    program: Program
    matrix: Matrix
    x: Range
    y: Range
    rows: int
    x_stride: int
    y_stride: int
    epilogue: str
    label: str
    why: str

    def _dispatch(
        self, op: str, constants: Constants, grid: Grid, push: dict[str, Any], x: list[Range], subgroup: int = 0
    ) -> None:
        m = self.matrix
        weights: list[Buffer | Range] = [m.codes, *([m.scales] if m.scales else [])]
        width = m.n // 2 if self.epilogue == "swiglu" else m.n
        self.program.dispatch(
            self.program.device.kernel(op, m.layout, constants | {"EPILOGUE": EPILOGUES[self.epilogue]}, subgroup),
            grid,
            {
                "w": m.codes, "scales": m.scales or m.codes, "y": self.y, "rows": self.rows, "n": m.n, "k": m.k,
                "y_stride": self.y_stride, **push,
            },
            reads=[*weights, *x, *([self.y] if self.epilogue == "add" else [])],
            writes=[self.y],
            label=self.label,
            flops=2 * self.rows * m.n * m.k,
            nbytes=m.nbytes + self.rows * (m.k + width) * 4,
            why=self.why,
        )  # fmt: skip

    def lanes(self, cut: Lanes) -> None:
        if self.epilogue == "swiglu" and cut.rpl % 2:
            raise ParameterError("the swiglu epilogue needs an even number of rows a lane")
        block = 32 if self.matrix.layout in CODES else 16
        constants: Constants = {
            "COLS": cut.cols, "RPL": cut.rpl, "KSPLIT": cut.ksplit, "LANES": cut.lanes, "XSHARE": cut.xshare,
            "TAIL": self.matrix.k % block != 0, "LOCAL": cut.ksplit * cut.lanes,
        }  # fmt: skip
        grid = (-(-self.matrix.n // (cut.lanes * cut.rpl)), -(-self.rows // cut.cols))
        self._dispatch("linear", constants, grid, {"x": self.x, "x_stride": self.x_stride}, [self.x])

    def matvec(self, cut: Matvec) -> None:
        constants: Constants = {
            "COLS": cut.cols, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "LOCAL": 32 * cut.teams,
            "TAIL": self.matrix.k % STEP[self.matrix.layout] != 0,
        }  # fmt: skip
        self._dispatch("matvec", constants, self._tile_grid(cut), {"x": self.x, "x_stride": self.x_stride}, [self.x])

    def _tile_grid(self, cut: Matvec | MatvecInt8 | MatvecK) -> Grid:
        return -(-self.matrix.n // (16 * cut.tiles)), -(-self.rows // cut.cols)

    def matvec_int8(self, cut: MatvecInt8, rounded: Rounded) -> None:
        constants: Constants = {
            "COLS": cut.cols, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "LOCAL": 32 * cut.teams,
        }  # fmt: skip
        push = {"x": rounded.data, "x_scales": rounded.scales}
        self._dispatch("matvec_int8", constants, self._tile_grid(cut), push, rounded.ranges)

    def matvec_k(self, cut: MatvecK, rounded: Rounded) -> None:
        constants: Constants = {
            "COLS": cut.cols, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "LOCAL": 32 * cut.teams,
            "TAIL": self.matrix.k % (256 * cut.teams * cut.unroll) != 0, "PIPE": cut.pipe,
        }  # fmt: skip
        push = {"x": rounded.data, "x_scales": rounded.scales}
        self._dispatch("matvec_k_int8", constants, self._tile_grid(cut), push, rounded.ranges)

    def coopmat(self, cut: Coopmat, rounded: Rounded) -> None:
        m = self.matrix
        direct = cut.sk == 1 and self.epilogue != "swiglu" and m.n % cut.size == 0 and self.rows % cut.size == 0
        constants: Constants = {
            "CM": cut.size, "CN": cut.size, "CK": cut.size, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc,
            "SK": cut.sk, "UNROLL": cut.unroll, "DIRECT": direct, "SUBGROUP": cut.subgroup,
            "LOCAL": cut.subgroup * cut.sr * cut.sc * cut.sk,
        }  # fmt: skip
        grid = (-(-m.n // (cut.sr * cut.fr * cut.size)), -(-self.rows // (cut.sc * cut.fc * cut.size)))
        self._dispatch("linear_coopmat", constants, grid, {"x": rounded.data}, rounded.ranges, cut.subgroup)


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
