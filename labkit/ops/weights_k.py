"""Resident tiles of K-quants: super-blocks of 256 repacked into the layouts of shaders/include/weights_k.glsl.

A plane is uint8 [n, super-blocks, groups, bytes]: `groups` says how often the 16 rows of a tile take turns inside a
super-block. Blocks of 32 go by parity, since the two halves of a team of 32 invocations take the even and the odd ones.
"""

import numpy as np

from labkit.models import k_quants
from labkit.ops.layouts import Planes, layout


def _super_blocks(rows: np.ndarray, nbytes: int) -> np.ndarray:
    return rows.reshape(rows.shape[0], -1, nbytes)


def _low_bits(codes: np.ndarray) -> np.ndarray:
    """Four bits of each code [n, S, 8, 32] to bytes [n, S, 8, 16]: byte i has elements 2i (low) and 2i + 1 (high)."""
    packed: np.ndarray = (codes[..., 0::2] & 15) | (codes[..., 1::2] << 4)
    return packed


def _by_parity(blocks: np.ndarray) -> np.ndarray:
    """Blocks [n, S, 8, ...] to [n, S, 2, 4, ...]: the even ones, then the odd ones."""
    return blocks.reshape(*blocks.shape[:2], 4, 2, *blocks.shape[3:]).swapaxes(2, 3)


def _fifth_bits(codes: np.ndarray) -> np.ndarray:
    """Bit 4 of each code to a word a block, of byte b bit 2i + p for element 8i + 2b + p: bytes [n, S, 2, 16]."""
    bits = (codes >> 4).reshape(*codes.shape[:3], 4, 4, 2).swapaxes(3, 4)
    words = np.packbits(bits.reshape(*codes.shape[:3], 4, 8), axis=-1, bitorder="little")[..., 0]
    return _by_parity(words).reshape(*codes.shape[:2], 2, 16)


def _top_bits(codes: np.ndarray) -> np.ndarray:
    """Bits 4 and 5 of each code, the upper flipped: codes - 32 as two's complement. Two words a block: of byte b of
    word g, bits 4i + 2p for element 16g + 8i + 2b + p. Bytes [n, S, 4, 16]: groups by (pair of blocks, parity)."""
    bits = ((codes >> 4) ^ 2).reshape(*codes.shape[:3], 2, 2, 4, 2).swapaxes(4, 5)  # [.., g, b, i, p]
    slots = bits.reshape(*codes.shape[:3], 8, 4)
    words = slots[..., 0] | (slots[..., 1] << 2) | (slots[..., 2] << 4) | (slots[..., 3] << 6)  # [n, S, 8, 8]
    pairs = words.reshape(*codes.shape[:2], 2, 2, 2, 8).swapaxes(3, 4)  # [.., pair, parity, block of the pair, 8]
    return pairs.reshape(*codes.shape[:2], 4, 16)


def _scale_words(fields: k_quants.ScaledMin) -> np.ndarray:
    """d, d_min, and the eight six-bit pairs of a super-block in the file's twelve bytes, even blocks in front."""
    scales, minima = fields.scales, fields.minima
    even_scales, odd_scales = scales[..., 0::2], scales[..., 1::2]
    even_minima, odd_minima = minima[..., 0::2], minima[..., 1::2]
    return np.concatenate(
        [
            fields.halves,
            even_scales | ((odd_scales >> 4) << 6),
            even_minima | ((odd_minima >> 4) << 6),
            (odd_scales & 15) | (odd_minima << 4),
        ],
        axis=-1,
    )[:, :, None]


@layout("Q4_K", "q4k", 256)
def _q4k(rows: np.ndarray) -> tuple[Planes, Planes]:
    fields = k_quants.q4_k(_super_blocks(rows, 144))
    return (_low_bits(fields.codes),), (_scale_words(fields),)


@layout("Q5_K", "q5k", 256)
def _q5k(rows: np.ndarray) -> tuple[Planes, Planes]:
    fields = k_quants.q5_k(_super_blocks(rows, 176))
    return (_low_bits(fields.codes), _fifth_bits(fields.codes)), (_scale_words(fields),)


@layout("Q6_K", "q6k", 256)
def _q6k(rows: np.ndarray) -> tuple[Planes, Planes]:
    fields = k_quants.q6_k(_super_blocks(rows, 210))
    scales = fields.scales.view(np.uint8).reshape(*fields.scales.shape[:2], 8, 2)
    by_parity = _by_parity(scales).reshape(*fields.scales.shape[:2], 1, 16)
    return (_low_bits(fields.codes), _top_bits(fields.codes)), (by_parity, fields.half[:, :, None])
