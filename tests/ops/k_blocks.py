"""Valid random super-blocks of K-quants, since the gguf package can read them but not make them."""

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
