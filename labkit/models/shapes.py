"""Models of a known shape with random weights: for speed only, when the real file is not at hand."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import ModelError, ParameterError
from labkit.models.config import ModelConfig, architecture_named
from labkit.models.gguf import Tensor
from labkit.models.model import Model
from labkit.models.tensor_types import tensor_type

QUANTS = {
    "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1", "q4_k": "Q4_K", "q5_k": "Q5_K",
    "q6_k": "Q6_K",
}  # fmt: skip


def _llama(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, theta: float) -> ModelConfig:
    return ModelConfig(
        architecture="llama", layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads,
        head_dim=hidden // heads, rope_theta=theta, rope_dim=hidden // heads, rope_pairing="interleaved",
        rope_freq_factors=None, rms_eps=1e-5, vocab=vocab, context=32768, tied=False,
    )  # fmt: skip


def _qwen(architecture: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int) -> ModelConfig:
    config = _llama(layers, hidden, ffn, heads, kv_heads, vocab, 1e6)
    return replace(config, architecture=architecture, head_dim=128, rope_dim=128, rope_pairing="half", rms_eps=1e-6)


def _gemma(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, window: int) -> ModelConfig:
    return replace(
        _qwen("gemma3", layers, hidden, ffn, heads, kv_heads, 262144), head_dim=256, rope_dim=256, tied=True,
        rope_freq_factors=(8.0,) * 128, rope_theta_windowed=1e4,
        windows=tuple(0 if (layer + 1) % 6 == 0 else window for layer in range(layers)),
    )  # fmt: skip


SHAPES = {
    "mistral-7b": _llama(32, 4096, 14336, 32, 8, 32000, 1e6),
    "llama-3.1-8b": _llama(32, 4096, 14336, 32, 8, 128256, 5e5),
    "llama-2-7b": _llama(32, 4096, 11008, 32, 32, 32000, 1e4),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, 8, 128256, 5e5),
    "qwen2.5-7b": _qwen("qwen2", 28, 3584, 18944, 28, 4, 152064),
    "qwen3-8b": _qwen("qwen3", 36, 4096, 12288, 32, 8, 151936),
    "gemma-3-4b": _gemma(34, 2560, 10240, 8, 4, 1024),
    "tiny": _llama(2, 128, 256, 4, 2, 512, 1e4),
}


class ShapeTokenizer:
    """A stand-in: text becomes ids by its bytes, ids become no text."""

    add_bos = False
    bos_id = None
    eos_ids: frozenset[int] = frozenset()

    def encode(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """One id a byte."""
        return list(text.encode())

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Nothing: random weights have nothing to say."""
        return ""

    def stream(self) -> "ShapeTokenizer":
        """Itself."""
        return self

    def push(self, token_id: int) -> str:
        """Nothing."""
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""


class ShapeModel:
    """A model that is only a shape: what `Engine` needs of a `Model`, without a file.."""

    def __init__(self, shape: str, quant: str = "f16") -> None:
        if shape not in SHAPES:
            raise ParameterError(f"shape {shape!r} is not one of {', '.join(SHAPES)}")
        if quant not in QUANTS:
            raise ParameterError(f"quant {quant!r} is not one of {', '.join(QUANTS)}")
        self.shape, self.quant, self.config = shape, quant, SHAPES[shape]
        self.name = f"{shape} {quant} of random weights"
        self.path = Path(f"{shape}-{quant}.random")
        self.tokenizer = ShapeTokenizer()
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, dims in architecture_named(self.config.architecture).tensor_shapes(self.config).items():
            kind = tensor_type(QUANTS[quant] if len(dims) == 2 else "F32")
            rows = dims[0] if len(dims) == 2 else 1
            self.tensors[name] = Tensor(name, dims, kind, 0, rows * kind.row_bytes(dims[-1]))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of the tensors of each type."""
        sums: dict[str, int] = {}
        for t in self.tensors.values():
            sums[t.type.name] = sums.get(t.type.name, 0) + t.nbytes
        return sums

    def describe(self) -> dict[str, Any]:
        """What a run record keeps."""
        return {
            "name": self.name, "sha256": None, "random_weights": True, "architecture": self.config.architecture,
            "bytes_by_type": self.bytes_by_type,
        }  # fmt: skip

    def chat(self, messages: object) -> str:
        """There is no template in a shape."""
        raise ModelError(f"{self.name} has no chat template; give token ids or raw text")

    def close(self) -> None:
        """Nothing to close."""

    def __repr__(self) -> str:
        return f"<ShapeModel {self.name}: {self.nbytes / 1e9:.2f} GB>"


AnyModel = Model | ShapeModel
