"""Gemma 3's text model in a GGUF file (llama.cpp's `LLM_ARCH_GEMMA3`), whose norms have their 1 added already."""

import math
from dataclasses import replace

from labkit.models.config import Architecture, Metadata, ModelConfig, ModelFile, register_architecture
from labkit.models.layouts.dense import Shapes, dense_tensors, read_dense

EVERY = 6  # of so many layers, the last sees all positions, where the file marks none
LARGEST = 62  # layers of the 27B model, whose scores are scaled by hidden / heads rather than by the heads' own size


def _read(file: ModelFile) -> ModelConfig:
    """The ModelConfig of a gemma3 file. Raises ModelError for what labkit does not compute."""
    metadata = Metadata(file, "gemma3")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        metadata.refuse(key, 0.0)
    config = read_dense(file, "gemma3", "half")
    windows = config.windows
    if windows and metadata.flags("attention.sliding_window_pattern") is None:
        windows = tuple(0 if (layer + 1) % EVERY == 0 else window for layer, window in enumerate(windows))
    large = config.layers == LARGEST
    return replace(
        config,
        windows=windows,
        rope_theta_windowed=metadata.number("rope.freq_base_swa", 10000.0),
        attention_scale=1 / math.sqrt(config.hidden / config.heads) if large else None,
    )


def _tensors(config: ModelConfig) -> Shapes:
    block: Shapes = {f"attn_{part}_norm.weight": (config.head_dim,) for part in "qk"}
    block |= {f"{name}.weight": (config.hidden,) for name in ("post_attention_norm", "post_ffw_norm")}
    return dense_tensors(config, block)


register_architecture(Architecture("gemma3", _read, _tensors, ignored=lambda name: False, pairing="half"))
