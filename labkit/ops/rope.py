"""Rotary position embedding: the table of angles, and the rotation itself in NumPy (arXiv:2104.09864)."""

from collections.abc import Sequence

import numpy as np

from labkit.errors import ParameterError

PAIRINGS = ("interleaved", "half")


def table(context: int, rope_dim: int, theta: float, freq_factors: Sequence[float] | None = None) -> np.ndarray:
    """(cos, sin) of position * theta^(-2i/rope_dim) / freq_factors[i]: float32 [context, rope_dim/2, 2].

    Computed in float64 and rounded once, so that far positions keep their angle. Raises ParameterError.
    """
    if context < 1 or rope_dim < 2 or rope_dim % 2 or theta <= 0:
        raise ParameterError(
            f"a rotation table of {context} positions, {rope_dim} dimensions, base {theta} has no meaning"
        )
    if freq_factors is not None and len(freq_factors) != rope_dim // 2:
        raise ParameterError(f"{len(freq_factors)} frequency factors were given for {rope_dim // 2} frequencies")
    frequency = float(theta) ** (-np.arange(0, rope_dim, 2) / rope_dim)
    if freq_factors is not None:
        frequency = frequency / np.asarray(freq_factors, np.float64)
    angle = np.arange(context)[:, None] * frequency  # [context, rope_dim/2]
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


def reference(x: np.ndarray, angles: np.ndarray, pairing: str) -> np.ndarray:
    """x [R, heads, head_dim] with its first rope_dim dimensions rotated by angles [R, rope_dim/2, 2]; float32.

    pairing "interleaved": dimensions (2i, 2i+1) rotate together; "half": (i, i + rope_dim/2).
    """
    half = angles.shape[1]
    a, b = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if pairing == "interleaved"
        else (slice(half), slice(half, 2 * half))
    )
    cos, sin = angles[:, None, :, 0], angles[:, None, :, 1]  # [R, 1, rope_dim/2]
    out = x.astype(np.float32)
    out[..., a], out[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., a] * sin + x[..., b] * cos
    return out
