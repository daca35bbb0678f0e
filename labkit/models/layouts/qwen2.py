"""Qwen2 in a model file (llama.cpp's `LLM_ARCH_QWEN2`): biases on q, k and v; rows as trained, so pairs of halves."""

from labkit.models.config import ModelConfig
from labkit.models.layouts.dense import Shapes, register_dense


def _biases(config: ModelConfig) -> Shapes:
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {"attn_q.bias": (query,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}


register_dense("qwen2", "half", _biases)
