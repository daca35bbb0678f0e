"""Weights resident on a device, once a (model, device), however many engines share them."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.models.config import ModelConfig
from labkit.models.model import Model
from labkit.models.operations import forward
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.ops.linear import Matrix, stream
from labkit.ops.weights import interleave
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool

_numbers = itertools.count(1)  # of the uploads of this process


@dataclass
class Used:
    """Which tensors a forward pass uses, in order, and which go together: a collector over `Operations`."""

    linears: list[tuple[str, ...]] = field(default_factory=list)
    swiglus: list[tuple[str, str]] = field(default_factory=list)
    vectors: list[tuple[str, ...]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def embedding(self, table: str, *, scale: float = 1.0) -> None:
        self.tables.append(table)

    def rms_norm(self, x: None, weight: str, *, wanted_only: bool = False) -> None:
        self.vectors.append((weight,))

    def linear(
        self,
        x: None,
        weights: Sequence[str],
        *,
        biases: Sequence[str] = (),
        norm: str | None = None,
        add_to: None = None,
    ) -> None:
        self.linears.append(tuple(weights))
        if norm is not None:
            self.vectors.append((norm,))
        if biases:
            self.vectors.append(tuple(biases))

    def swiglu(self, x: None, gate: str, up: str) -> None:
        self.swiglus.append((gate, up))

    def geglu(self, x: None, gate: str, up: str) -> None:
        self.linears.append((gate, up))

    def attention(self, qkv: None, layer: int, *, head_norms: Sequence[str] = ()) -> None:
        if head_norms:
            self.vectors.append(tuple(head_norms))


def used_by(config: ModelConfig) -> Used:
    """The tensors the architecture of `config` uses."""
    collector = Used()
    forward(config)(collector, config)
    return collector


class ResidentWeights:
    """A model's tensors packed into device memory: matrices by name (joined where they share an input), vectors."""

    def __init__(self, model: AnyModel, device: Device, progress: Callable[[int, int], None] | None = None) -> None:
        self.device = device
        self.number = next(_numbers)
        self.pool: Pool = device.pool(f"weights of {model.name}")
        self._matrices: dict[tuple[str, ...], list[Matrix]] = {}
        self._vectors: dict[tuple[str, ...], Buffer] = {}
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
            for names in used.vectors:
                self._vectors[names] = self._vector(model, names)
        except BaseException:
            self.pool.close()
            raise

    def _load(self, model: AnyModel, names: tuple[str, ...]) -> None:
        same = len({model.tensors[n].type.name for n in names}) == 1
        self._matrices[names] = [self._matrix(model, names)] if same else [self._matrix(model, (n,)) for n in names]

    def _load_swiglu(self, model: AnyModel, gate: str, up: str) -> None:
        if model.tensors[gate].type.name == model.tensors[up].type.name:
            self._matrices[gate, up] = [self._matrix(model, (gate, up), interleaved=True)]
            self.joined_swiglu.add((gate, up))
        else:
            self._load(model, (gate, up))

    def _matrix(self, model: AnyModel, names: tuple[str, ...], *, interleaved: bool = False) -> Matrix:
        """One matrix of tensors of one type: their rows side by side, or taking turns."""
        assert isinstance(model, Model)
        first, counts = model.tensors[names[0]], [model.tensors[n].shape[0] for n in names]
        starts = [0, *itertools.accumulate(counts)]

        def take(start: int, stop: int) -> np.ndarray:
            if interleaved:  # pieces are whole tiles, so of even length
                return interleave(*(model.rows(n, start // 2, stop // 2) for n in names))
            parts = [
                model.rows(n, max(start - begin, 0), min(stop - begin, count))
                for n, begin, count in zip(names, starts[:-1], counts, strict=True)
                if start < begin + count and stop > begin
            ]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return stream(self.pool, take, starts[-1], first.shape[1], first.type.name, " | ".join(names))

    def _vector(self, model: AnyModel, names: tuple[str, ...]) -> Buffer:
        """Vectors side by side."""
        assert isinstance(model, Model)
        return self.pool.buffer(
            np.concatenate([model.array(n).astype(np.float32) for n in names]), label=" | ".join(names)
        )

    def matrices(self, *names: str) -> list[Matrix]:
        """The matrices of a group: one where the file's types agree, else one a tensor."""
        return self._matrices[names]

    def vector(self, *names: str) -> Buffer:
        """A float32 vector: a norm, or those of a group side by side."""
        return self._vectors[names]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held."""
        return self.pool.nbytes


_lock = threading.RLock()  # an engine may be collected, and give its weights back, while another takes some
_shared: dict[Any, tuple[ResidentWeights, list[int]]] = {}


def _loader(model: AnyModel) -> type[ResidentWeights]:
    if isinstance(model, ShapeModel):
        from labkit.engine.random_weights import RandomWeights

        return RandomWeights
    return ResidentWeights


def _key(model: AnyModel, device: Device) -> Any:
    if isinstance(model, ShapeModel):
        return (model.name, id(device))
    stats = [(str(path.resolve()), path.stat()) for path in model.files]
    return (*((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats), id(device))


def is_loaded(model: AnyModel, device: Device) -> bool:
    """Whether some engine holds the weights of `model` on `device` already."""
    with _lock:
        return _key(model, device) in _shared


def acquire(model: AnyModel, device: Device, progress: Callable[[int, int], None] | None = None) -> ResidentWeights:
    """The weights of `model` on `device`, loaded on first use and counted; give them back with `release`."""
    key = _key(model, device)
    with _lock:
        if key not in _shared:
            _shared[key] = (_loader(model)(model, device, progress), [0])
        entry = _shared[key]
        entry[1][0] += 1
        return entry[0]


def release(weights: ResidentWeights) -> None:
    """Give back weights taken with `acquire`; the last one out frees the memory."""
    with _lock:
        for key, (held, count) in list(_shared.items()):
            if held is weights:
                count[0] -= 1
                if count[0] == 0:
                    del _shared[key]
                    weights.pool.close()
