"""The forward pass that dense decoders share: pre-norm attention with RoPE and grouped queries, SwiGLU feed-forward."""

from labkit.models.config import ModelConfig
from labkit.models.operations import Operations, V


def forward(ops: Operations[V], config: ModelConfig, *, biases: bool = False, head_norms: bool = False) -> V:
    """Logits of the rows that want them: [L, vocab]. `biases`: on q, k and v; `head_norms`: of q and k before RoPE."""
    x = ops.embedding("token_embd.weight")  # [R, hidden]
    for layer in range(config.layers):
        block = f"blk.{layer}"
        h = ops.rms_norm(x, f"{block}.attn_norm.weight")
        qkv = ops.linear(  # [R, (heads + 2 kv_heads) head_dim]
            h, [f"{block}.attn_{part}.weight" for part in "qkv"],
            biases=[f"{block}.attn_{part}.bias" for part in "qkv"] if biases else [],
        )  # fmt: skip
        norms = [f"{block}.attn_{part}_norm.weight" for part in "qk"] if head_norms else []
        h = ops.attention(qkv, layer, head_norms=norms)  # [R, heads * head_dim]
        x = ops.linear(h, [f"{block}.attn_output.weight"], add_to=x)
        h = ops.rms_norm(x, f"{block}.ffn_norm.weight")
        h = ops.swiglu(h, f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight")  # [R, ffn]
        x = ops.linear(h, [f"{block}.ffn_down.weight"], add_to=x)
    x = ops.rms_norm(x, "output_norm.weight", wanted_only=True)  # [L, hidden]
    return ops.linear(x, ["token_embd.weight" if config.tied else "output.weight"])
