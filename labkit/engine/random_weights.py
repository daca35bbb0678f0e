"""Random weights made on the device, for models that are only a shape."""

from typing import Any

import numpy as np

from labkit.engine.weights import ResidentWeights
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.ops.layouts import LAYOUTS, TILE
from labkit.ops.linear import Matrix
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool

_NOISE_BYTES = 64 << 20
_SPREAD = 0.02  # standard deviation of the weights
_SCALE_BYTES = {"q8": 2, "q4": 2, "q4m": 4, "q4k": 16, "q5k": 16, "q6k": 18}  # of a row's block


class RandomWeights(ResidentWeights):
    """As `ResidentWeights`, with content copied from one block of noise: reads and arithmetic cost what real ones do."""

    def __init__(self, model: AnyModel, device: Device, progress: Any = None) -> None:
        self._noise: dict[str, Buffer] = {}
        self._noise_pool: Pool = device.pool("noise")
        try:
            super().__init__(model, device, progress)
        finally:
            self._noise_pool.close()
            self._noise.clear()

    def _matrix(self, model: AnyModel, names: tuple[str, ...], *, interleaved: bool = False) -> Matrix:
        assert isinstance(model, ShapeModel)
        first = model.tensors[names[0]]
        layout = LAYOUTS[first.type.name]
        n, k = sum(model.tensors[name].shape[0] for name in names), first.shape[1]
        tiles, blocks = -(-n // TILE), -(-k // layout.block)
        scale_bytes = _SCALE_BYTES.get(layout.name, 0)
        code_bytes = first.type.block_bytes * layout.block // first.type.block - scale_bytes
        label = " | ".join(names)
        codes = self.pool.buffer(tiles * blocks * TILE * code_bytes, label=label)
        self._fill(codes, f"{layout.name} codes")
        scales = None
        if scale_bytes:
            scales = self.pool.buffer(tiles * blocks * TILE * scale_bytes, label=f"{label} scales")
            self._fill(scales, f"{layout.name} scales")
        return Matrix(layout.name, n, k, codes, scales, label)

    def _vector(self, model: AnyModel, names: tuple[str, ...]) -> Buffer:
        ones = np.ones(sum(model.tensors[name].shape[0] for name in names), np.float32)
        return self.pool.buffer(ones, label=" | ".join(names))

    def _fill(self, target: Buffer, kind: str) -> None:
        if kind not in self._noise:
            self._noise[kind] = self._noise_pool.buffer(_noise(kind))
        noise = self._noise[kind]
        program = self.device.program(f"noise for {target.label}")
        for start in range(0, target.nbytes, noise.nbytes):
            nbytes = min(noise.nbytes, target.nbytes - start)
            program.copy(noise.range(0, nbytes), target.range(start, nbytes))
        program.submit().wait()
        program.close()


def _noise(kind: str) -> np.ndarray:
    """A block of valid content for a plane of codes or scales."""
    rng = np.random.default_rng(0)
    layout, plane = kind.split()
    if plane == "scales" and layout == "q6k":  # [16 rows][16] int8, then a float16 d a row
        units = rng.integers(0, 256, (1 << 12, 288), dtype=np.uint8)
        units[:, 256:].view(np.float16)[:] = _SPREAD / (73 * 18.5)
        return units
    if plane == "scales" and layout in ("q4k", "q5k"):  # d, d_min and packed six-bit pairs
        rows = rng.integers(0, 256, (1 << 16, 16), dtype=np.uint8)
        scale, middle = (_SPREAD / (36 * 4.6), 7.5) if layout == "q4k" else (_SPREAD / (36 * 9.2), 15.5)
        rows[:, :4].view(np.float16)[:] = scale, middle * scale
        return rows
    if plane == "scales":
        step = _SPREAD / {"q8": 73, "q4": 4.6, "q4m": 4.6}[layout]
        d = np.full(1 << 20, step, np.float16)
        return np.stack([d, -7.5 * d], axis=1).astype(np.float16) if layout == "q4m" else d
    if layout in _SCALE_BYTES:
        return rng.integers(0, 256, _NOISE_BYTES // 4, dtype=np.uint8)
    values = (rng.standard_normal(_NOISE_BYTES // 8) * _SPREAD).astype(np.float32)
    if layout == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if layout == "f16" else values
