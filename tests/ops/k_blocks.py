"""Valid random super-blocks of K-quants, since the gguf package can read them but not make them; and their values."""

import gguf
import numpy as np

from labkit.models.tensor_types import tensor_type

K_TYPES = ["Q4_K", "Q5_K", "Q6_K"]
HALVES = {"Q4_K": {0: 0.01, 2: 0.1}, "Q5_K": {0: 0.005, 2: 0.1}, "Q6_K": {208: 0.0004}}  # float16 fields: their size


def random_rows(n: int, k: int, kind: str, seed: int = 0) -> np.ndarray:
    """Rows [n, k] as uint8 [n, bytes]: every code, scale and minimum random, d and d_min of either sign and finite."""
    chance, stored = np.random.default_rng(seed), tensor_type(kind)
    blocks = chance.integers(0, 256, (n * k // 256, stored.block_bytes), dtype=np.uint8)
    for offset, size in HALVES[kind].items():
        values = size * chance.uniform(0.5, 2.0, len(blocks)) * chance.choice([-1, 1], len(blocks), p=[0.1, 0.9])
        blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n, -1)


def float16_values(rows: np.ndarray, kind: str) -> np.ndarray:
    """The values of super-blocks as float16 matrices get them: scale and minimum rounded to float16, then a code times
    its scale, then that plus the minimum."""
    values = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    blocks = rows.reshape(-1, tensor_type(kind).block_bytes)
    if kind == "Q6_K":
        d = blocks[:, 208:].copy().view("<f2").astype(np.float32) * blocks[:, 192:208].view(np.int8)
        m = np.zeros_like(d)
    else:
        scales, minima = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
        d, d_min = (blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
        d, m = d * scales, -d_min * minima
    d, m = (np.repeat(part, 256 // part.shape[1], axis=1) for part in (d, m))
    codes = np.rint(np.divide(values.reshape(-1, 256) - m, d, out=np.zeros_like(d), where=d != 0))
    made: np.ndarray = codes.astype(np.float16) * d.astype(np.float16) + m.astype(np.float16)
    return made.reshape(values.shape)
