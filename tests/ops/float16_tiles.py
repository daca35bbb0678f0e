"""Float16 tiles [rows / 16, width / 16, 16, 16] as shaders/tile_f16.comp lays them out, read back into rows."""

import numpy as np

ORDERS = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 1, 3, 4, 6, 5, 7], [0, 4, 1, 5, 2, 6, 3, 7]]  # of the elements in an eight


def untiled(tiles: np.ndarray, rows: int, width: int, order: int) -> np.ndarray:
    """Every row and column that flat `tiles` of `rows` rows of `width` elements hold, padding too."""
    down, across = -(-rows // 16), -(-width // 16)
    held = tiles.reshape(down, across, 16, 2, 8)
    placed = np.empty_like(held)
    placed[..., ORDERS[order]] = held
    return placed.reshape(down, across, 16, 16).transpose(0, 2, 1, 3).reshape(down * 16, across * 16)
