"""Qwen3, dense, in a model file (llama.cpp's `LLM_ARCH_QWEN3`): norms of q's and k's heads; pairs of halves."""

from labkit.models.config import ModelConfig
from labkit.models.layouts.dense import Shapes, register_dense


def _norms(config: ModelConfig) -> Shapes:
    return {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}


register_dense("qwen3", "half", _norms)
