"""Weights, errors and cuts that the tests of matrix products share."""

import gguf
import numpy as np
from k_blocks import K_TYPES, random_rows

from labkit.models.tensor_types import tensor_type
from labkit.ops.linear_cuts import Coopmat, MatvecInt8, MatvecK, subgroup_for_coopmat
from labkit.ops.rounding import as_int8

TYPES, CODE_TYPES = ["F16", "Q8_0", "Q4_0", "Q4_1"], ["Q8_0", "Q4_0", "Q4_1"]
EPS = 1e-5  # of a norm


def weights(n: int, k: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random rows [n, k] in the file's blocks, as uint8 [n, bytes], and the values they stand for."""
    if kind in K_TYPES:
        rows = random_rows(n, k, kind, seed)
        return rows, gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    data = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    rows = np.ascontiguousarray(gguf.quantize(data, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(n, -1)
    return rows, tensor_type(kind).dequantise(rows)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error; NaN in the same places is equal."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    return float(np.nansum((got - want) ** 2) / np.nansum(want**2))


def seen_by(cut, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """The row x [k] as the product has it: normed, and rounded before the factor is multiplied where it is rounded."""
    factor = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + EPS)
    return (as_int8((x * gain)[None]) if isinstance(cut, MatvecInt8 | MatvecK) else (x * gain)[None]) * factor


def coopmat(device, pieces, columns: int = 0) -> Coopmat:
    return Coopmat(*pieces, size=device.coopmat_size, subgroup=subgroup_for_coopmat(device), columns=columns)
