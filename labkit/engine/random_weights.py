"""Random weights made on the device, for models that are only a shape."""

from typing import Any

import numpy as np

from labkit.engine.weights import ResidentWeights
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.ops.linear import Matrix
from labkit.ops.weights import LAYOUTS, TILE
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool

_NOISE_BYTES = 64 << 20
_SPREAD = 0.02  # standard deviation of the weights


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
        scale_bytes = {"q8": 2, "q4": 2, "q4m": 4}.get(layout.name, 0)
        code_bytes = first.type.block_bytes * layout.block // first.type.block - scale_bytes
        label = " | ".join(names)
        codes = self.pool.buffer(tiles * blocks * TILE * code_bytes, label=label)
        self._fill(codes, f"{layout.name} codes")
        scales = None
        if scale_bytes:
            scales = self.pool.buffer(tiles * blocks * TILE * scale_bytes, label=f"{label} scales")
            self._fill(scales, f"{layout.name} scales")
        return Matrix(layout.name, n, k, codes, scales, label)

    def _vector(self, model: AnyModel, name: str) -> Buffer:
        return self.pool.buffer(np.ones(model.tensors[name].shape, np.float32), label=name)

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
    if plane == "scales":
        step = _SPREAD / {"q8": 73, "q4": 4.6, "q4m": 4.6}[layout]
        d = np.full(1 << 20, step, np.float16)
        return np.stack([d, -7.5 * d], axis=1).astype(np.float16) if layout == "q4m" else d
    if layout in ("q8", "q4", "q4m"):
        return rng.integers(0, 256, _NOISE_BYTES // 4, dtype=np.uint8)
    values = (rng.standard_normal(_NOISE_BYTES // 8) * _SPREAD).astype(np.float32)
    if layout == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if layout == "f16" else values
