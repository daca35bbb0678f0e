"""Llama in a model file (llama.cpp's `LLM_ARCH_LLAMA`), which is also what its converter makes of Mistral.

It permutes the rows of Q and K so that rotated dimensions lie side by side: RoPE pairing "interleaved".
"""

from labkit.models.layouts.dense import register_dense

register_dense("llama", "interleaved")
