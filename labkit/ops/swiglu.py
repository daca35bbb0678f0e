"""swiglu: silu(gate) * up, or gelu(gate) * up, for gate and up projections that were not fused into one matrix product."""

import numpy as np

from labkit.errors import ParameterError
from labkit.ops.rows import span
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.program import Program


def reference(gate: np.ndarray, up: np.ndarray, *, gelu: bool = False) -> np.ndarray:
    """gate / (1 + exp(-gate)) * up (arXiv:2002.05202) in float64, returned as float32; or with `gelu`
    gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 * up (arXiv:1606.08415)."""
    wide = gate.astype(np.float64)
    if gelu:
        turned: np.ndarray = wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) / 2 * up
        return turned.astype(np.float32)
    out: np.ndarray = wide / (1 + np.exp(-np.clip(wide, -700, None))) * up
    return out.astype(np.float32)


def record(
    program: Program,
    gate: Buffer | Range,
    up: Buffer | Range,
    y: Buffer | Range,
    *,
    count: int,
    width: int,
    in_stride: int,
    y_stride: int,
    gelu: bool = False,
    label: str = "swiglu",
    why: str = "",
) -> None:
    """Add y = silu(gate) * up, or with `gelu` gelu(gate) * up, over `count` rows of `width` floats, `in_stride` apart in gate
    and up, `y_stride` in y. `why`: why no product does it as it ends.

    Raises ParameterError for strides or buffers that do not hold the rows.
    """
    sources = [span("gate", gate, count, in_stride, width), span("up", up, count, in_stride, width)]
    target = span("y", y, count, y_stride, width)
    local = 32 if program.device.is_cpu else 128
    constants: dict[str, int | float | bool] = {"LOCAL": local}
    if gelu:
        constants["GELU"] = True
    program.dispatch(
        program.device.kernel("swiglu", "", constants),
        (-(-width // (4 * local)), count),
        {
            "gate": sources[0], "up": sources[1], "y": target,
            "width": width, "in_stride": in_stride, "y_stride": y_stride,
        },
        reads=sources,
        writes=[target],
        label=label,
        flops=5 * count * width,
        nbytes=3 * count * width * 4,
        why=why,
    )  # fmt: skip


def swiglu(device: Device, gate: np.ndarray, up: np.ndarray, *, gelu: bool = False) -> np.ndarray:
    """Run once on arrays: gate, up float32 [R, width]; returns float32 [R, width]."""
    if gate.ndim != 2 or gate.shape != up.shape:
        raise ParameterError(f"gate of shape {gate.shape} and up of shape {up.shape} must be two equal matrices")
    rows, width = gate.shape
    with device.pool("swiglu") as pool:
        a, b = (pool.buffer(np.ascontiguousarray(m, np.float32)) for m in (gate, up))
        target = pool.buffer(gate.size * 4)
        program = device.program("swiglu")
        record(program, a, b, target, count=rows, width=width, in_stride=width, y_stride=width, gelu=gelu)
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        return target.download(np.float32, gate.shape)
