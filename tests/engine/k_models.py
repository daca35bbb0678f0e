"""Tiny models of K-quants, mixed as llama.cpp mixes them: made here, since the gguf package cannot quantise to them."""

from pathlib import Path

import gguf
import numpy as np
from tiny_models import TINY

from labkit.models.config import architecture_named
from labkit.models.shapes import _llama

HIDDEN, FFN, VOCAB = 256, 512, 768
CONFIG = _llama(2, HIDDEN, FFN, 4, 2, VOCAB, 1e5)
# what most tensors are; what token_embd, output, attn_v and ffn_down are
MIXES = {"q4_k": ("Q4_K", "Q4_K"), "q4_k_m": ("Q4_K", "Q6_K"), "q5_k_m": ("Q5_K", "Q6_K"), "q6_k": ("Q6_K", "Q6_K")}


def _halves(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2")[:, None].view(np.uint8)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Blocks [n, 8, 32] of four bits to 128 bytes: two blocks share 32 of them."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(len(codes), 128)


def _with_minimum(values: np.ndarray, bits: int) -> np.ndarray:
    """Q4_K or Q5_K super-blocks of float32 values [n, 256]."""
    blocks, top = values.reshape(-1, 8, 32), 2**bits - 1
    low = np.minimum(blocks.min(axis=2), 0)
    steps, minima = (blocks.max(axis=2) - low) / top, -low
    d, d_min = (part.max(axis=1) / 63 for part in (steps, minima))
    d, d_min = d.astype("<f2").astype(np.float32), d_min.astype("<f2").astype(np.float32)
    s, m = (np.clip(np.rint(_ratio(p, q[:, None])), 0, 63).astype(np.uint8) for p, q in ((steps, d), (minima, d_min)))
    scaled = _ratio(
        blocks + (d_min[:, None] * m)[..., None], np.broadcast_to((d[:, None] * s)[..., None], blocks.shape)
    )
    codes = np.clip(np.rint(scaled), 0, top).astype(np.uint8)
    packed = [
        s[:, :4] | (s[:, 4:] >> 4 << 6), m[:, :4] | (m[:, 4:] >> 4 << 6), (s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    ]  # fmt: skip
    fifth = [np.packbits(codes.swapaxes(1, 2) >> 4, axis=2, bitorder="little")[..., 0]] if bits == 5 else []
    return np.concatenate([_halves(d), _halves(d_min), *packed, *fifth, _nibbles(codes & 15)], axis=1)


def _q6_k(values: np.ndarray) -> np.ndarray:
    runs = values.reshape(-1, 16, 16)
    steps = np.abs(runs).max(axis=2) / 31
    d = (steps.max(axis=1) / 127).astype("<f2").astype(np.float32)
    scales = np.clip(np.rint(_ratio(steps, d[:, None])), 0, 127).astype(np.int8)
    codes = np.rint(_ratio(runs, np.broadcast_to((d[:, None] * scales)[..., None], runs.shape)))
    codes = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of four blocks
    low, high = codes & 15, codes >> 4
    ql = np.stack([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.concatenate([ql.reshape(-1, 128), qh.reshape(-1, 64), scales.view(np.uint8), _halves(d)], axis=1)


def quantise(values: np.ndarray, kind: str) -> np.ndarray:
    """Float32 [n, k] to uint8 [n, bytes] in super-blocks of `kind`: plainly rounded, without ggml's search."""
    flat = values.reshape(-1, 256)
    blocks = _q6_k(flat) if kind == "Q6_K" else _with_minimum(flat, 4 if kind == "Q4_K" else 5)
    return np.ascontiguousarray(blocks).reshape(len(values), -1)


def write(path: Path, mix: str) -> Path:
    """A GGUF file of random weights in `mix`, with the tokenizer of a tiny model of 768 tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    c, chance = CONFIG, np.random.default_rng(3)
    writer.add_block_count(c.layers)
    writer.add_context_length(1024)
    writer.add_embedding_length(c.hidden)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_rope_dimension_count(c.rope_dim)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    for field in gguf.GGUFReader(TINY / "llama-f32.gguf").fields.values():
        if field.name.startswith("tokenizer."):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    usual, special = MIXES[mix]
    for name, shape in architecture_named("llama").tensor_shapes(c).items():
        if len(shape) == 1:
            writer.add_tensor(name, (1 + 0.15 * chance.standard_normal(shape)).astype(np.float32))
            continue
        loud = 0.6 if name in ("token_embd.weight", "output.weight") else shape[1] ** -0.5
        kind = (
            special if name.startswith(("token_embd", "output.")) or "attn_v" in name or "ffn_down" in name else usual
        )
        rows = quantise((loud * chance.standard_normal(shape)).astype(np.float32), kind)
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
