"""What the files of dense decoders share: their metadata keys and tensor names, as llama.cpp's converter writes them."""

import math
import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from labkit.errors import ModelError
from labkit.models.config import Architecture, Metadata, ModelConfig, ModelFile, register_architecture
from labkit.ops.rope import yarn_factors, yarn_scale

# Changes of the computation other files may ask for, with the value that means "no change".
_NEUTRAL = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
}
_SCALINGS = ("none", "linear", "yarn", "llama3")
_IGNORED = re.compile(r"rope_freqs\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)(\.weight)?")
Shapes = dict[str, tuple[int, ...]]


def register_dense(
    name: str,
    pairing: Literal["interleaved", "half"],
    more: Callable[[ModelConfig], Shapes] = lambda config: {},
) -> Architecture:
    """Register a dense decoder. `more`: the tensors of a block that Llama does not have, without the block's name."""
    return register_architecture(
        Architecture(
            name,
            lambda file: read_dense(file, name, pairing),
            lambda config: dense_tensors(config, more(config)),
            ignored=lambda tensor: bool(_IGNORED.fullmatch(tensor)),
            pairing=pairing,
            folders=True,
        )
    )


def read_dense(file: ModelFile, name: str, pairing: Literal["interleaved", "half"]) -> ModelConfig:
    """The ModelConfig of a file. Raises ModelError for missing or impossible values and unsupported features."""
    metadata = Metadata(file, name)
    for key, neutral in _NEUTRAL.items():
        metadata.refuse(key, neutral)
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    if heads < 1 or (f"{name}.attention.key_length" not in file.metadata and hidden % heads):
        raise ModelError(f"{file.path}: {heads} heads do not divide the hidden size {hidden}")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    if (value_dim := metadata.integer("attention.value_length", head_dim)) != head_dim:
        raise ModelError(f"{file.path}: keys of {head_dim} and values of {value_dim} elements; labkit runs equal ones")
    rope_dim, theta = metadata.integer("rope.dimension_count", head_dim), metadata.number("rope.freq_base", 10000.0)
    layers, context = metadata.integer("block_count"), metadata.integer("context_length")
    factors, scale = _rotation(file, metadata, rope_dim, theta, context)
    return ModelConfig(
        architecture=name,
        layers=layers,
        hidden=hidden,
        ffn=metadata.integer("feed_forward_length"),
        heads=heads,
        kv_heads=metadata.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_theta=theta,
        rope_dim=rope_dim,
        rope_pairing=pairing,
        rope_freq_factors=factors,
        rms_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        vocab=_vocabulary(file, name),
        context=context,
        tied="output.weight" not in file.tensors,
        rope_scale=scale,
        windows=_windows(file, metadata, layers),
    )


def _vocabulary(file: ModelFile, name: str) -> int:
    """Rows of the embedding table, checked against the token list where the file has one."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise ModelError(f"{file.path} lacks tensor 'token_embd.weight', which a {name} model needs")
    if len(table.shape) != 2:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' has shape {table.shape}, not two dimensions")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and hasattr(tokens, "__len__") and len(tokens) != table.shape[0]:
        raise ModelError(f"{file.path}: {len(tokens)} tokens for {table.shape[0]} rows of 'token_embd.weight'")
    return table.shape[0]


def _windows(file: ModelFile, metadata: Metadata, layers: int) -> tuple[int, ...]:
    """The sliding window of each layer: one size, of all layers or of those that `sliding_window_pattern` marks."""
    window = metadata.integer("attention.sliding_window", 0)
    if not 0 <= window <= 1 << 31:
        raise ModelError(f"{file.path}: a sliding window of {window} positions is not from 0 to {1 << 31}")
    slides = metadata.flags("attention.sliding_window_pattern")
    if not window or layers > 4096:  # that many the ModelConfig refuses
        return ()
    if slides is not None and len(slides) != layers:
        raise ModelError(f"{file.path}: {len(slides)} marks of sliding windows for {layers} layers")
    return tuple(window if slides is None or slides[layer] else 0 for layer in range(layers))


def _rotation(
    file: ModelFile, metadata: Metadata, rope_dim: int, theta: float, context: int
) -> tuple[tuple[float, ...] | None, float]:
    """Divisors of the rotation frequencies, and what cosines and sines are multiplied with: by the scaling the metadata
    names, times the file's own divisors (llama 3.1 and later)."""
    scaling = metadata.text("rope.scaling.type", "none")
    if scaling not in _SCALINGS:
        raise ModelError(
            f"{file.path}: RoPE scaling {scaling[:40]!r} is not among those labkit runs: {', '.join(_SCALINGS)}"
        )
    factor = metadata.number("rope.scaling.factor", 1.0) if scaling != "none" else 1.0
    if not (math.isfinite(factor) and factor > 0):
        raise ModelError(f"{file.path}: RoPE scaling factor {factor} is not a positive number")
    scale = metadata.number("rope.scaling.attn_factor", 1.0)
    half, factors = rope_dim // 2, np.ones(max(rope_dim // 2, 0))
    if scaling == "linear":
        factors = np.full(half, factor)
    elif scaling in ("yarn", "llama3"):
        original = metadata.integer("rope.scaling.original_context_length", context)
        if not (0 < rope_dim <= 4096 and math.isfinite(theta) and theta > 1 and 0 < original <= 1 << 31):
            raise ModelError(f"{file.path}: {scaling} over {rope_dim} dimensions, base {theta}, context {original}")
        if scaling == "yarn":
            factors = _yarn(file, metadata, rope_dim, theta, factor, original)
            scale *= yarn_scale(factor)
        else:
            factors = _llama3(file, metadata, theta ** (-np.arange(0, rope_dim, 2) / rope_dim), factor, original)
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is not None:
        if tensor.type.name != "F32" or tensor.shape != (half,):
            raise ModelError(f"{file.path}: 'rope_freqs.weight' is {tensor.type} {tensor.shape}, not F32 ({half},)")
        factors = factors * file.raw(tensor).view("<f4")
    return (None if (factors == 1).all() else tuple(factors.tolist())), scale


def _yarn(file: ModelFile, metadata: Metadata, rope_dim: int, theta: float, factor: float, original: int) -> np.ndarray:
    metadata.refuse("rope.scaling.yarn_ext_factor", 1.0)
    metadata.refuse("rope.scaling.yarn_attn_factor", 1.0)
    metadata.refuse("rope.scaling.yarn_log_multiplier", 0.0)
    fast, slow = (
        metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        metadata.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    if not (math.isfinite(fast) and math.isfinite(slow) and fast > 0 and slow > 0):
        raise ModelError(f"{file.path}: YaRN's ramp runs from {fast} to {slow} turns, not between positive numbers")
    return np.array(yarn_factors(rope_dim, theta, factor, original, beta_fast=fast, beta_slow=slow))


def _llama3(file: ModelFile, metadata: Metadata, frequencies: np.ndarray, factor: float, original: int) -> np.ndarray:
    """Llama 3.1's rule (llama-models, `apply_scaling`), where a file states it rather than holding the divisors."""
    low, high = (metadata.number(f"rope.scaling.{end}_freq_factor") for end in ("low", "high"))
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low < high):
        raise ModelError(
            f"{file.path}: llama3's frequency factors {low} and {high} are not two rising positive numbers"
        )
    smooth = np.clip((original * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
    divisors: np.ndarray = 1 / ((1 - smooth) / factor + smooth)
    return divisors


def dense_tensors(config: ModelConfig, more: Shapes) -> Shapes:
    """Every tensor of a dense model with its shape, in NumPy order: (out, in) for a matrix; `more` in each block."""
    hidden, ffn = config.hidden, config.ffn
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block: Shapes = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    } | more
    shapes: Shapes = {"token_embd.weight": (config.vocab, hidden), "output_norm.weight": (hidden,)}
    if not config.tied:
        shapes["output.weight"] = (config.vocab, hidden)
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes
