"""K-quants taken apart: the fields of ggml's super-blocks of 256 elements, in the order of their elements.

Layouts follow ggml's `block_q4_K`, `block_q5_K` and `block_q6_K` (`ggml-common.h`). Every function takes uint8
[..., bytes of a super-block].
"""

from typing import NamedTuple

import numpy as np


class ScaledMin(NamedTuple):
    """Q4_K and Q5_K: x = (d · scales[j]) · codes[j] - d_min · minima[j] for the eight blocks j of 32 elements."""

    halves: np.ndarray  # uint8 [..., 4]: d and d_min as float16
    scales: np.ndarray  # uint8 [..., 8], six bits
    minima: np.ndarray  # uint8 [..., 8], six bits
    codes: np.ndarray  # uint8 [..., 8, 32]


class Scaled(NamedTuple):
    """Q6_K: x = (d · scales[i]) · (codes - 32) for the sixteen runs i of 16 elements."""

    half: np.ndarray  # uint8 [..., 2]: d as float16
    scales: np.ndarray  # int8 [..., 16]
    codes: np.ndarray  # uint8 [..., 8, 32], six bits


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twelve bytes of eight six-bit pairs: the last four pairs keep their high bits above the first four."""
    low_scales, low_minima, mixed = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low_scales & 63, (mixed & 15) | ((low_scales >> 2) & 48)], axis=-1)
    minima = np.concatenate([low_minima & 63, (mixed >> 4) | ((low_minima >> 2) & 48)], axis=-1)
    return scales, minima


def _nibbles(qs: np.ndarray) -> np.ndarray:
    """128 bytes to [..., 8, 32]: of every 32 bytes the low halves are one block, the high halves the next."""
    runs = qs.reshape(*qs.shape[:-1], 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=-2).reshape(*qs.shape[:-1], 8, 32)


def q4_k(blocks: np.ndarray) -> ScaledMin:
    """Fields of Q4_K super-blocks, uint8 [..., 144]."""
    return ScaledMin(blocks[..., :4], *_scales_and_minima(blocks[..., 4:16]), _nibbles(blocks[..., 16:]))


def q5_k(blocks: np.ndarray) -> ScaledMin:
    """Fields of Q5_K super-blocks, uint8 [..., 176]: the fifth bits of block j are bit j of 32 bytes."""
    fifth = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes = _nibbles(blocks[..., 48:]) | (fifth << 4)
    return ScaledMin(blocks[..., :4], *_scales_and_minima(blocks[..., 4:16]), codes)


def q6_k(blocks: np.ndarray) -> Scaled:
    """Fields of Q6_K super-blocks, uint8 [..., 210]: each half has 64 bytes of low and 32 of high bits for 4 blocks."""
    shape = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*shape, 2, 2, 32)
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    codes = np.concatenate([low & 15, low >> 4], axis=-2) | ((high & 3) << 4)
    return Scaled(blocks[..., 208:], blocks[..., 192:208].view(np.int8), codes.reshape(*shape, 8, 32))
