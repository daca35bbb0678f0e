"""The device layouts of K-quants: every element where weights_k.glsl says it lies, at the file's bits per weight."""

import gguf
import numpy as np
import pytest
from k_blocks import K_TYPES, random_rows

from labkit.errors import ModelError
from labkit.models.tensor_types import tensor_type
from labkit.ops.weights import PackedWeights, pack

CODE_BYTES = {"Q4_K": 2048, "Q5_K": 2560, "Q6_K": 3072}  # of a tile of a super-block


def half(raw: np.ndarray, at: int) -> np.float32:
    return np.float32(raw[at : at + 2].view("<f2")[0])


def element(packed: PackedWeights, kind: str, row: int, column: int) -> np.float32:
    """One weight, read as the head of shaders/include/weights_k.glsl describes."""
    unit = row // 16 * (packed.k // 256) + column // 256
    own, block, e = row % 16, column % 256 // 32, column % 32
    j, parity, i, b, p = block // 2, block % 2, e // 8, e % 8 // 2, e % 2
    codes = packed.codes[unit * CODE_BYTES[kind] :]
    code = int(codes[(block * 16 + own) * 16 + e // 2]) >> (4 * p) & 15
    assert packed.scales is not None
    if kind == "Q6_K":
        word = 2048 + ((block // 4 * 2 + parity) * 16 + own) * 16 + (block % 4 // 2 * 2 + i // 2) * 4
        top = int(codes[word + b]) >> (4 * (i % 2) + 2 * p) & 3
        scales = packed.scales[unit * 288 :]
        scale = scales[(own * 2 + parity) * 8 + j * 2 + i // 2].view(np.int8)
        return half(scales, 256 + own * 2) * np.float32(scale) * np.float32((code | (top ^ 2) << 4) - 32)
    if kind == "Q5_K":
        word = 2048 + (parity * 16 + own) * 16 + j * 4
        code |= (int(codes[word + b]) >> (2 * i + p) & 1) << 4
    scales = packed.scales[(unit * 16 + own) * 16 :]
    first, second, third = int(scales[4 + j]), int(scales[8 + j]), int(scales[12 + j])
    if parity == 0:
        scale, minimum = first & 63, second & 63
    else:
        scale, minimum = third & 15 | first >> 6 << 4, third >> 4 | second >> 6 << 4
    return half(scales, 0) * np.float32(scale) * np.float32(code) - half(scales, 2) * np.float32(minimum)


@pytest.mark.parametrize("kind", K_TYPES)
def test_every_element_lies_where_the_layout_says(kind):
    n, k = 19, 512
    rows = random_rows(n, k, kind)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    packed = pack(rows, kind, k)
    got = [[element(packed, kind, row, column) for column in range(k)] for row in (0, 7, 15, 16, 18)]
    assert np.array_equal(np.array(got), want[[0, 7, 15, 16, 18]])


@pytest.mark.parametrize(("kind", "bits"), [("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625)])
def test_packing_keeps_the_bits_per_weight_of_the_file(kind, bits):
    packed = pack(random_rows(64, 768, kind), kind, 768)
    assert packed.nbytes * 8 / (64 * 768) == bits == tensor_type(kind).bits_per_weight


@pytest.mark.parametrize("kind", K_TYPES)
def test_rows_that_are_no_multiple_of_a_super_block_are_refused(kind):
    with pytest.raises(ModelError, match=f"rows of 288 elements .* 256, the super-block of {kind}"):
        pack(np.zeros((1, 200), np.uint8), kind, 288)
