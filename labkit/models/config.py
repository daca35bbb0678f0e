"""ModelConfig, the shape of a model; the registry of architectures; checked reading of a file's metadata."""

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from labkit.errors import ModelError
from labkit.models.gguf import Tensor
from labkit.models.tensor_types import runnable_types


class ModelFile(Protocol):
    """What a model is read from: a GGUF file, or a folder that is read as one would be."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def files(self) -> list[Path]:
        """The files that decide what the model computes."""
        ...

    def raw(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes, uint8 [nbytes]."""
        ...

    def rows(self, tensor: Tensor, start: int, stop: int) -> np.ndarray:
        """Some rows of a matrix, uint8 [rows, bytes]."""
        ...

    def digest(self) -> str:
        """SHA-256 of what decides what the model computes."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


@dataclass(frozen=True)
class ModelConfig:
    """What an architecture needs to know of one model; lengths count elements.

    `rope_pairing`: dimensions (2i, 2i+1) rotate together if "interleaved", (i, i + rope_dim/2) if "half".
    `rope_freq_factors`: rope_dim/2 divisors of the rotation frequencies theta^(-2i/rope_dim), or None for all ones.
    `tied`: the output projection is the embedding table.
    `rope_scale`: what cosines and sines are multiplied with (YaRN's attention factor).
    `attention_scale`: what q k^T is multiplied with, None for 1/sqrt(head_dim).
    `rope_theta_windowed`: the base where a layer has a window, with no divisors of frequencies; None for `rope_theta`.
    `windows`: of each layer, the positions a row sees, its own included, 0 for all; () where all layers see all.
    """

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rope_dim: int
    rope_pairing: Literal["interleaved", "half"]
    rope_freq_factors: tuple[float, ...] | None
    rms_eps: float
    vocab: int
    context: int
    tied: bool
    rope_scale: float = 1.0
    windows: tuple[int, ...] = ()
    rope_theta_windowed: float | None = None
    attention_scale: float | None = None

    def __post_init__(self) -> None:
        """Refuse values no model has, so that nothing after this divides by zero or allocates without bound."""
        limits = {
            "layers": 4096,
            "hidden": 1 << 20,
            "ffn": 1 << 22,
            "heads": 1 << 14,
            "kv_heads": 1 << 14,
            "head_dim": 4096,
            "rope_dim": 4096,
            "vocab": 1 << 24,
            "context": 1 << 31,
        }
        for name, most in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ModelError(f"the model says {name} = {value}, outside 1 to {most}; the file is damaged")
        if self.heads % self.kv_heads:
            raise ModelError(f"the model has {self.heads} heads, not a multiple of its {self.kv_heads} KV heads")
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ModelError(f"the model rotates {self.rope_dim} of {self.head_dim} dimensions: not even, or too many")
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            raise ModelError(f"the model's RoPE base is {self.rope_theta}, not a positive number")
        if not 0 < self.rms_eps < 1:
            raise ModelError(f"the model's RMSNorm epsilon is {self.rms_eps}, not between 0 and 1")
        if (factors := self.rope_freq_factors) is not None:
            if len(factors) != self.rope_dim // 2:
                raise ModelError(f"the model has {len(factors)} RoPE factors for {self.rope_dim // 2} frequencies")
            if not all(math.isfinite(factor) and factor > 0 for factor in factors):
                raise ModelError("the model's RoPE factors are not all positive numbers; the file is damaged")
        if not (math.isfinite(self.rope_scale) and self.rope_scale > 0):
            raise ModelError(f"the model scales its rotation by {self.rope_scale}, not a positive number")
        for name in ("rope_theta_windowed", "attention_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ModelError(f"the model says {name} = {value}, not a positive number")
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise ModelError(
                f"the model has {len(self.windows)} sliding windows for {self.layers} layers, or negative ones"
            )

    def turns_apart(self, layer: int) -> bool:
        """Whether `layer` rotates by `rope_theta_windowed`."""
        return self.rope_theta_windowed is not None and bool(self.windows) and self.windows[layer] > 0

    def window(self, layer: int, context: int) -> int:
        """Positions a row of `layer` sees where slots hold `context`; 0 where it sees all there are."""
        window = self.windows[layer] if self.windows else 0
        return window if window < context else 0


@dataclass(frozen=True)
class Architecture:
    """How one architecture is written in a GGUF file.

    `pairing`: of its rotation there; `folders`: whether hub folders of this model_type are read too.

    `read_config` turns metadata and tensors into a ModelConfig; `tensor_shapes` names every tensor with its shape;
    `ignored` says which further tensors carry nothing the computation needs.
    """

    name: str
    read_config: Callable[[ModelFile], ModelConfig]
    tensor_shapes: Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]
    ignored: Callable[[str], bool]
    pairing: Literal["interleaved", "half"]
    folders: bool = False


ARCHITECTURES: dict[str, Architecture] = {}


def register_architecture(architecture: Architecture) -> Architecture:
    """Make `architecture` known under its name; each module of `labkit/models/layouts/` calls this once."""
    ARCHITECTURES[architecture.name] = architecture
    return architecture


def architecture_named(name: object) -> Architecture:
    """The architecture called `name`. Raises ModelError with the known ones where it is none of them."""
    import labkit.models.layouts as layouts

    for module in pkgutil.iter_modules(layouts.__path__):
        importlib.import_module(f"{layouts.__name__}.{module.name}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"architecture {str(name)[:80]!r} is not among those labkit runs: {known}")
    return ARCHITECTURES[name]


def architecture_of(file: ModelFile) -> Architecture:
    """The architecture `file` names. Raises ModelError with the known ones where it is none of them."""
    try:
        return architecture_named(file.metadata.get("general.architecture"))
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None


def read_config(file: ModelFile) -> ModelConfig:
    """The ModelConfig of `file`, its tensors checked. Raises ModelError where labkit cannot run it."""
    architecture = architecture_of(file)
    if (parts := file.metadata.get("split.count", 1)) not in (0, 1):
        raise ModelError(f"{file.path} is one of {parts} parts; join them first (llama-gguf-split --merge)")
    try:
        config = architecture.read_config(file)
    except ModelError as error:
        raise error if str(file.path) in str(error) else ModelError(f"{file.path}: {error}") from None
    check_tensors(file, architecture, config)
    return config


def check_tensors(file: ModelFile, architecture: Architecture, config: ModelConfig) -> None:
    """Raise ModelError unless `file` holds exactly the tensors of `config`, in shapes and types labkit runs."""
    expected = architecture.tensor_shapes(config)
    for name, shape in expected.items():
        if name not in file.tensors:
            raise ModelError(f"{file.path} lacks tensor {name!r}, which a {architecture.name} model needs")
        if (found := file.tensors[name].shape) != shape:
            raise ModelError(f"{file.path}: tensor {name!r} has shape {found}, and its metadata says {shape}")
        if not (kind := file.tensors[name].type).runnable:
            known = ", ".join(runnable_types())
            raise ModelError(
                f"{file.path}: tensor {name!r} is {kind}; {kind} is not among the types labkit runs: {known}"
            )
        if len(shape) == 1 and kind.name not in ("F32", "F16", "BF16"):
            raise ModelError(f"{file.path}: tensor {name!r} is a vector of {kind}; labkit runs F32, F16 or BF16 there")
    for name in file.tensors:
        if name not in expected and not architecture.ignored(name):
            raise ModelError(f"{file.path}: tensor {name[:80]!r} is not part of labkit's {architecture.name}")


class Metadata:
    """Typed reading of a file's metadata under one architecture's prefix; ModelError names the key that is wrong."""

    def __init__(self, file: ModelFile, prefix: str) -> None:
        self._file, self._prefix = file, prefix

    def _get(self, key: str, default: Any) -> Any:
        key = f"{self._prefix}.{key}"
        value = self._file.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self._file.path} lacks {key!r}, so the model's shape is unknown")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> ModelError:
        return ModelError(f"{self._file.path}: {self._prefix}.{key} is {str(value)[:80]!r}, not {wanted}")

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number at `key`; an array that repeats one number counts as that number."""
        value = self._get(key, default)
        if hasattr(value, "dtype") and len(value) and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "one whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The number at `key`, as a float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def flags(self, key: str) -> list[bool] | None:
        """The truth values at `key`, or None where it is absent."""
        value = self._file.metadata.get(f"{self._prefix}.{key}")
        if value is None:
            return None
        if getattr(getattr(value, "dtype", None), "kind", "") != "b":
            raise self._wrong(key, value, "a list of truth values")
        marks: list[bool] = value.tolist()
        return marks

    def refuse(self, key: str, neutral: Any) -> None:
        """Raise ModelError where `key` is present with any value but `neutral`: labkit does not compute it."""
        value = self._file.metadata.get(f"{self._prefix}.{key}", neutral)
        if hasattr(value, "dtype") or value != neutral:
            raise ModelError(f"{self._file.path}: labkit does not run {self._prefix}.{key} = {str(value)[:80]}")
