"""Gemma 3: norms before and behind each branch, GELU, a scaled embedding, windows on most layers (arXiv:2503.19786)."""

import math

from labkit.models.config import ModelConfig
from labkit.models.operations import Operations, V, forward_of


@forward_of("gemma3")
def forward(ops: Operations[V], config: ModelConfig) -> V:
    """Logits of the rows that want them: [L, vocab]."""
    x = ops.embedding("token_embd.weight", scale=math.sqrt(config.hidden))  # [R, hidden]
    for layer in range(config.layers):
        block = f"blk.{layer}"
        h = ops.rms_norm(x, f"{block}.attn_norm.weight")
        qkv = ops.linear(h, [f"{block}.attn_{part}.weight" for part in "qkv"])  # [R, (heads + 2 kv_heads) head_dim]
        h = ops.attention(qkv, layer, head_norms=[f"{block}.attn_{part}_norm.weight" for part in "qk"])
        x = ops.linear(h, [f"{block}.attn_output.weight"], norm=f"{block}.post_attention_norm.weight", add_to=x)
        h = ops.rms_norm(x, f"{block}.ffn_norm.weight")
        h = ops.geglu(h, f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight")  # [R, ffn]
        x = ops.linear(h, [f"{block}.ffn_down.weight"], norm=f"{block}.post_ffw_norm.weight", add_to=x)
    x = ops.rms_norm(x, "output_norm.weight", wanted_only=True)  # [L, hidden]
    return ops.linear(x, ["token_embd.weight" if config.tied else "output.weight"])
