"""add: the residual connection, y + x in place."""

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.rows import span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y + x in float32."""
    return y.astype(np.float32) + x.astype(np.float32)


def record(
    program: Program,
    x: Buffer | Range,
    y: Buffer | Range,
    *,
    count: int,
    width: int,
    x_stride: int,
    y_stride: int,
    label: str = "add",
) -> None:
    """Add y = y + x over `count` rows of `width` floats, in place. Raises ParameterError for wrong shapes."""
    source, target = span("x", x, count, x_stride, width), span("y", y, count, y_stride, width)
    local = 32 if program.device.is_cpu else 128
    program.dispatch(
        program.device.kernel("add", "", {"LOCAL": local}),
        (-(-width // (4 * local)), count),
        {"x": source, "y": target, "width": width, "x_stride": x_stride, "y_stride": y_stride},
        reads=[source, target],
        writes=[target],
        label=label,
        flops=count * width,
        nbytes=3 * count * width * 4,
    )


def add(device: Device, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Run once on arrays: x, y float32 [R, width]; returns y + x."""
    if x.ndim != 2 or x.shape != y.shape:
        raise ParameterError(f"x of shape {x.shape} and y of shape {y.shape} must be two equal matrices")
    rows, width = x.shape
    with device.pool("add") as pool:
        source, target = (pool.buffer(np.ascontiguousarray(m, np.float32)) for m in (x, y))
        program = device.program("add")
        record(program, source, target, count=rows, width=width, x_stride=width, y_stride=width)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, x.shape)
