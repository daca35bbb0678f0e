"""Rotary position embedding: the table of angles, and the rotation itself in NumPy (arXiv:2104.09864)."""

import math
from collections.abc import Sequence

import numpy as np

from labkit.errors import ParameterError

PAIRINGS = ("interleaved", "half")


def table(
    context: int, rope_dim: int, theta: float, freq_factors: Sequence[float] | None = None, scale: float = 1.0
) -> np.ndarray:
    """scale * (cos, sin) of position * theta^(-2i/rope_dim) / freq_factors[i]: float32 [context, rope_dim/2, 2].

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
    return (np.stack([np.cos(angle), np.sin(angle)], axis=-1) * scale).astype(np.float32)


def yarn_factors(
    rope_dim: int, theta: float, factor: float, original: int, *, beta_fast: float = 32.0, beta_slow: float = 1.0,
    whole: bool = True,
) -> tuple[float, ...]:  # fmt: skip
    """YaRN's divisors of the frequencies (arXiv:2309.00071, section 3.2): 1 for those that turn more than `beta_fast` times
    in the `original` context, `factor` for those under `beta_slow` turns, a ramp between, whose ends are `whole` dimensions.
    """

    def dimension(turns: float) -> float:
        return rope_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope_dim - 1)
    ramp = np.clip((np.arange(rope_dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return tuple((1 / (ramp / factor + (1 - ramp))).tolist())


def yarn_scale(factor: float) -> float:
    """YaRN's attention factor, which q and k are both multiplied with: 0.1 ln(factor) + 1."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


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
