"""Llama in a GGUF file: its metadata keys and tensor names (llama.cpp's `LLM_ARCH_LLAMA`).

Its converter permutes the rows of Q and K so that rotated dimensions lie side by side: RoPE pairing "interleaved".
"""

import math
import re

import numpy as np

from labkit.errors import ModelError
from labkit.models.config import Architecture, Metadata, ModelConfig, register_architecture
from labkit.models.gguf import GgufFile

# Changes of the computation other files of this architecture may ask for, with the value that means "no change".
_NEUTRAL = {
    "expert_count": 0,
    "attention.sliding_window": 0,
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
}


def read_llama(file: GgufFile) -> ModelConfig:
    """The ModelConfig of a llama file. Raises ModelError for missing or impossible values and unsupported features."""
    metadata = Metadata(file, "llama")
    for key, neutral in _NEUTRAL.items():
        metadata.refuse(key, neutral)
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    if heads < 1 or ("llama.attention.key_length" not in file.metadata and hidden % heads):
        raise ModelError(f"{file.path}: {heads} heads do not divide the hidden size {hidden}")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    if (value_dim := metadata.integer("attention.value_length", head_dim)) != head_dim:
        raise ModelError(f"{file.path}: keys of {head_dim} and values of {value_dim} elements; labkit runs equal ones")
    rope_dim = metadata.integer("rope.dimension_count", head_dim)
    return ModelConfig(
        architecture="llama",
        layers=metadata.integer("block_count"),
        hidden=hidden,
        ffn=metadata.integer("feed_forward_length"),
        heads=heads,
        kv_heads=metadata.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_theta=metadata.number("rope.freq_base", 10000.0),
        rope_dim=rope_dim,
        rope_pairing="interleaved",
        rope_freq_factors=_rope_factors(file, metadata, rope_dim),
        rms_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        vocab=_vocabulary(file),
        context=metadata.integer("context_length"),
        tied="output.weight" not in file.tensors,
    )


def _vocabulary(file: GgufFile) -> int:
    """Rows of the embedding table, checked against the token list where the file has one."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise ModelError(f"{file.path} lacks tensor 'token_embd.weight', which a llama model needs")
    if len(table.shape) != 2:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' has shape {table.shape}, not two dimensions")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and hasattr(tokens, "__len__") and len(tokens) != table.shape[0]:
        raise ModelError(f"{file.path}: {len(tokens)} tokens for {table.shape[0]} rows of 'token_embd.weight'")
    return table.shape[0]


def _rope_factors(file: GgufFile, metadata: Metadata, rope_dim: int) -> tuple[float, ...] | None:
    """Divisors of the rotation frequencies: the file's own (llama 3.1 and later), times a linear scaling factor."""
    scaling = metadata.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ModelError(
            f"{file.path}: RoPE scaling {scaling[:40]!r} is not among those labkit runs: none, linear, llama3"
        )
    linear = metadata.number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
    if not (math.isfinite(linear) and linear > 0):
        raise ModelError(f"{file.path}: RoPE scaling factor {linear} is not a positive number")
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None if linear == 1.0 else (linear,) * (rope_dim // 2)
    if tensor.type.name != "F32" or tensor.shape != (rope_dim // 2,):
        raise ModelError(
            f"{file.path}: 'rope_freqs.weight' is {tensor.type} {tensor.shape}, not F32 ({rope_dim // 2},)"
        )
    factors = file.raw(tensor).view("<f4") * np.float32(linear)
    return tuple(factors.tolist())


def llama_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a llama model with its shape, in NumPy order: (out, in) for a matrix."""
    hidden, ffn = config.hidden, config.ffn
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block = {
        "attn_norm": (hidden,),
        "attn_q": (query, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, query),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden), "output_norm.weight": (hidden,)}
    if not config.tied:
        shapes["output.weight"] = (config.vocab, hidden)
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


_IGNORED = re.compile(r"rope_freqs\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)(\.weight)?")

register_architecture(
    Architecture("llama", read_llama, llama_tensors, ignored=lambda name: bool(_IGNORED.fullmatch(name)))
)
