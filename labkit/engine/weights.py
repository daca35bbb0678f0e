"""Weights resident on a device, once a (model, device), however many engines share them."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.models.config import ModelConfig
from labkit.models.model import Model
from labkit.models.operations import forward
from labkit.ops.linear import Matrix, upload
from labkit.ops.weights import interleave, pack
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool


@dataclass
class Used:
    """Which tensors a forward pass uses, in order, and which go together: a collector over `Operations`."""

    linears: list[tuple[str, ...]] = field(default_factory=list)
    swiglus: list[tuple[str, str]] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def embedding(self, table: str) -> None:
        self.tables.append(table)

    def rms_norm(self, x: None, weight: str, *, wanted_only: bool = False) -> None:
        self.norms.append(weight)

    def linear(self, x: None, weights: Sequence[str], *, add_to: None = None) -> None:
        self.linears.append(tuple(weights))

    def swiglu(self, x: None, gate: str, up: str) -> None:
        self.swiglus.append((gate, up))

    def attention(self, qkv: None, layer: int) -> None:
        return None


def used_by(config: ModelConfig) -> Used:
    """The tensors the architecture of `config` uses."""
    collector = Used()
    forward(config)(collector, config)
    return collector


class ResidentWeights:
    """A model's tensors packed into device memory: matrices by name (joined where they share an input), norms."""

    def __init__(self, model: Model, device: Device, progress: Callable[[int, int], None] | None = None) -> None:
        self.device = device
        self.pool: Pool = device.pool(f"weights of {model.name}")
        self._matrices: dict[tuple[str, ...], list[Matrix]] = {}
        self._norms: dict[str, Buffer] = {}
        self.joined_swiglu: set[tuple[str, str]] = set()
        total, done = model.nbytes, 0
        used = used_by(model.config)

        def advance(names: Sequence[str]) -> None:
            nonlocal done
            done += sum(model.tensors[n].nbytes for n in names)
            if progress:
                progress(min(done, total), total)

        try:
            for table in used.tables:
                self._load(model, (table,))
                advance([table])
            for group in used.linears:
                if group not in self._matrices:
                    self._load(model, group)
                    advance(group)
            for gate, up in used.swiglus:
                self._load_swiglu(model, gate, up)
                advance([gate, up])
            for name in used.norms:
                self._norms[name] = self.pool.buffer(model.array(name).astype(np.float32), label=name)
        except BaseException:
            self.pool.close()
            raise

    @staticmethod
    def _rows(model: Model, name: str) -> np.ndarray:
        return model.raw(name).reshape(model.tensors[name].shape[0], -1)

    def _load(self, model: Model, names: tuple[str, ...]) -> None:
        tensors = [model.tensors[n] for n in names]
        kinds = {t.type.name for t in tensors}
        k = tensors[0].shape[1]
        if len(kinds) == 1:
            rows = (
                np.concatenate([self._rows(model, n) for n in names]) if len(names) > 1 else self._rows(model, names[0])
            )
            label = " | ".join(names)
            self._matrices[names] = [upload(self.pool, pack(rows, tensors[0].type.name, k), label)]
        else:
            self._matrices[names] = [
                upload(self.pool, pack(self._rows(model, n), t.type.name, k), n)
                for n, t in zip(names, tensors, strict=True)
            ]

    def _load_swiglu(self, model: Model, gate: str, up: str) -> None:
        a, b = model.tensors[gate], model.tensors[up]
        if a.type.name == b.type.name:
            rows = interleave(self._rows(model, gate), self._rows(model, up))
            packed = pack(rows, a.type.name, a.shape[1])
            self._matrices[gate, up] = [upload(self.pool, packed, f"{gate} & {up}")]
            self.joined_swiglu.add((gate, up))
        else:
            self._load(model, (gate, up))

    def matrices(self, *names: str) -> list[Matrix]:
        """The matrices of a group: one where the file's types agree, else one a tensor."""
        return self._matrices[names]

    def norm(self, name: str) -> Buffer:
        """A float32 vector."""
        return self._norms[name]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held."""
        return self.pool.nbytes


_lock = threading.Lock()
_shared: dict[Any, tuple[ResidentWeights, list[int]]] = {}


def _key(model: Model, device: Device) -> Any:
    stat = model.path.stat()
    return (str(model.path.resolve()), stat.st_size, stat.st_mtime_ns, id(device))


def is_loaded(model: Model, device: Device) -> bool:
    """Whether some engine holds the weights of `model` on `device` already."""
    with _lock:
        return _key(model, device) in _shared


def acquire(model: Model, device: Device, progress: Callable[[int, int], None] | None = None) -> ResidentWeights:
    """The weights of `model` on `device`, loaded on first use and counted; give them back with `release`."""
    key = _key(model, device)
    with _lock:
        if key not in _shared:
            _shared[key] = (ResidentWeights(model, device, progress), [0])
        weights, count = _shared[key]
        count[0] += 1
        return weights


def release(weights: ResidentWeights) -> None:
    """Give back weights taken with `acquire`; the last one out frees the memory."""
    with _lock:
        for key, (held, count) in list(_shared.items()):
            if held is weights:
                count[0] -= 1
                if count[0] == 0:
                    del _shared[key]
                    weights.pool.close()
