"""rms_norm: a row divided by its root mean square, times a weight, for all rows or those that want logits."""

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.rounding import Rounded
from labkit.ops.rows import PADDING, span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program


def reference(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight (arXiv:1910.07467) in float64, returned as float32. x [R, width]."""
    wide = x.astype(np.float64)
    out: np.ndarray = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight
    return out.astype(np.float32)


def record(
    program: Program,
    x: Buffer,
    weight: Buffer | Range,
    y: Buffer,
    *,
    count: int,
    width: int,
    eps: float,
    x_stride: int,
    y_stride: int,
    logit_rows: Buffer | Range | None = None,
    label: str = "rms_norm",
) -> None:
    """Add y[r] = rms_norm(x[r]) for `count` rows of `width`; with `logit_rows` (uint32 [count]), of x[logit_rows[r]].

    x, y: float32, rows `x_stride` and `y_stride` floats apart; weight: float32 [width]. A row that is padding in
    `logit_rows` becomes zeros. Values over about 1e19 overflow their square, as in any float32 norm: the row is zero.
    Raises ParameterError for strides or buffers that do not hold the rows.
    """
    if not 0 <= eps < 1:
        raise ParameterError(f"eps={eps} is not between 0 and 1")
    source = x.range() if logit_rows is not None else span("x", x, count, x_stride, width)
    target = span("y", y, count, y_stride, width)
    gain = span("weight", weight, 1, width, width)
    if logit_rows is not None and logit_rows.nbytes < count * 4:
        raise ParameterError(f"logit_rows holds {logit_rows.nbytes // 4} rows; {count} were asked for")
    local = 8 if program.device.is_cpu else 256
    program.dispatch(
        program.device.kernel("rms_norm", "", {"GATHER": logit_rows is not None, "LOCAL": local}),
        count,
        {
            "x": x, "weight": gain, "y": y, "logit_rows": x if logit_rows is None else logit_rows,
            "width": width, "x_stride": x_stride, "y_stride": y_stride, "eps": eps,
        },
        reads=[source, gain, *([] if logit_rows is None else [logit_rows])],
        writes=[target],
        label=label,
        flops=4 * count * width,
        nbytes=(2 * count + 1) * width * 4,
    )  # fmt: skip


def record_add(
    program: Program,
    x: Buffer,
    weight: Buffer | Range,
    y: Buffer,
    *,
    count: int,
    width: int,
    eps: float,
    x_stride: int,
    y_stride: int,
    label: str = "rms_norm_add",
    why: str = "",
) -> None:
    """Add y[r] = y[r] + rms_norm(x[r]) for `count` rows, in place. `why`: why no product does it as it ends.

    Shapes and errors are those of `record`."""
    if not 0 <= eps < 1:
        raise ParameterError(f"eps={eps} is not between 0 and 1")
    source, target = span("x", x, count, x_stride, width), span("y", y, count, y_stride, width)
    gain = span("weight", weight, 1, width, width)
    program.dispatch(
        program.device.kernel("rms_norm_add", "", {"LOCAL": 8 if program.device.is_cpu else 256}),
        count,
        {"x": x, "weight": gain, "y": y, "width": width, "x_stride": x_stride, "y_stride": y_stride, "eps": eps},
        reads=[source, gain, target],
        writes=[target],
        label=label,
        flops=5 * count * width,
        nbytes=(3 * count + 1) * width * 4,
        why=why,
    )


def rms_norm_add(device: Device, x: np.ndarray, weight: np.ndarray, y: np.ndarray, eps: float) -> np.ndarray:
    """Run once on arrays: x, y float32 [R, width], weight [width]; returns y + rms_norm(x)."""
    if x.ndim != 2 or x.shape != y.shape or weight.shape != x.shape[1:]:
        raise ParameterError(f"x {x.shape}, weight {weight.shape} and y {y.shape} do not go together")
    with device.pool("rms_norm_add") as pool:
        source, gain, target = (pool.buffer(np.ascontiguousarray(a, np.float32)) for a in (x, weight, y))
        program, width = device.program("rms_norm_add"), x.shape[1]
        record_add(
            program, source, gain, target, count=len(x), width=width, eps=eps, x_stride=width, y_stride=width
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, x.shape)


def record_rounded(
    program: Program,
    x: Buffer,
    weight: Buffer | Range,
    to: Rounded,
    *,
    eps: float,
    x_stride: int,
    logit_rows: Buffer | Range | None = None,
    factors: Range | None = None,
    label: str = "rms_norm",
) -> None:
    """Add rms_norm of `to.rows` rows of `to.k`, rounded at once into `to`; into `factors`, float32 [rows], what each row was
    multiplied with. Raises ParameterError as `record` does."""
    if not 0 <= eps < 1:
        raise ParameterError(f"eps={eps} is not between 0 and 1")
    source = x.range() if logit_rows is not None else span("x", x, to.rows, x_stride, to.k)
    gain = span("weight", weight, 1, to.k, to.k)
    kind, local = to.rounding.kind, 32 if program.device.is_cpu else 512
    constants: dict[str, int | float | bool] = {
        "GATHER": logit_rows is not None, "ORDER": to.rounding.order, "SUMS": to.rounding.sums, "LOCAL": local,
        "FACTORS": factors is not None,
    }  # fmt: skip
    program.dispatch(
        program.device.kernel("rms_norm_rounded", kind, constants),
        -(-to.rows // 16) * 16 if kind == "float16" else to.rows,
        {
            "x": x, "weight": gain, "logit_rows": x if logit_rows is None else logit_rows, "t": to.data,
            "scales": to.scales or to.data, "sums_of": (to.tiles.sums if to.tiles else None) or to.data,
            "factors": factors or x, "rows": to.rows, "width": to.k, "x_stride": x_stride, "eps": eps,
        },
        reads=[source, gain, *([] if logit_rows is None else [logit_rows])],
        writes=[*to.ranges, *([factors] if factors else [])],
        label=label,
        flops=4 * to.rows * to.k,
        nbytes=to.rows * to.k * 6,
    )  # fmt: skip


def rms_norm(
    device: Device, x: np.ndarray, weight: np.ndarray, eps: float, logit_rows: np.ndarray | None = None
) -> np.ndarray:
    """Run once on arrays: x float32 [R, width], weight [width]; with `logit_rows` [L], the result is [L, width]."""
    if x.ndim != 2 or weight.shape != x.shape[1:]:
        raise ParameterError(f"x of shape {x.shape} and a weight of shape {weight.shape} do not go together")
    count = len(x) if logit_rows is None else len(logit_rows)
    if logit_rows is not None and any(i >= len(x) for i in logit_rows.tolist() if i != PADDING):
        raise ParameterError(f"logit_rows {logit_rows.tolist()} points behind the {len(x)} rows")
    with device.pool("rms_norm") as pool:
        source, gain = (pool.buffer(np.ascontiguousarray(a, np.float32)) for a in (x, weight))
        target = pool.buffer(count * x.shape[1] * 4)
        wanted = None if logit_rows is None else pool.buffer(np.ascontiguousarray(logit_rows, np.uint32))
        program = device.program("rms_norm")
        record(
            program, source, gain, target, count=count, width=x.shape[1], eps=eps, x_stride=x.shape[1],
            y_stride=x.shape[1], logit_rows=wanted,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, (count, x.shape[1]))
