"""Small pictures for endpoints that take them: PNG of a given size, rectangles on a slope of colour, from a seed."""

import random
import struct
import zlib

import numpy as np

from labkit.errors import ParameterError

MOST_SIDE = 8192
RECTANGLES = 12


def make_png(width: int, height: int, seed: str | int = 0) -> bytes:
    """A PNG of `width` x `height` pixels, 8 bits of red, green and blue; the same for the same seed. ParameterError for a
    side that is not 1 to 8,192."""
    for name, side in (("width", width), ("height", height)):
        if not 1 <= side <= MOST_SIDE:
            raise ParameterError(f"{name}: {side} pixels; give 1 to {MOST_SIDE:,}")
    chance = random.Random(f"image {seed}")
    across, down = np.linspace(0, 1, width)[None, :, None], np.linspace(0, 1, height)[:, None, None]
    corner, right, below = (np.array([chance.randrange(256) for _ in range(3)], dtype=np.float64) for _ in range(3))
    pixels = (corner + (right - corner) * across / 2 + (below - corner) * down / 2).astype(
        np.uint8
    )  # [height, width, 3]
    for _ in range(RECTANGLES):
        x, y = chance.randrange(width), chance.randrange(height)
        w, h = chance.randrange(1, max(2, width // 3)), chance.randrange(1, max(2, height // 3))
        pixels[y : y + h, x : x + w] = [chance.randrange(256) for _ in range(3)]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)  # no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG: length, kind, data, checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
