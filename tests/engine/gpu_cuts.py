"""Cuts of matrix products as a GPU takes them, for a CPU driver."""

from dataclasses import replace

import pytest

from labkit.ops import linear_cuts
from labkit.ops.gemm_cuts import Gemm
from labkit.ops.linear_cuts import Coopmat, MatvecInt8, MatvecK, subgroup_for_coopmat
from labkit.ops.linear_int8 import choose as choose_int8
from labkit.vulkan.device import Device


def as_on_a_gpu(patch: pytest.MonkeyPatch, device: Device) -> None:
    """Have a CPU driver run what a GPU would, in smaller pieces, for those take it half a minute to compile, and repeated as
    for large matrices, so that a SwiGLU is left rounded. What all pieces compute is what tests/ops/test_linear*.py are
    about."""
    patch.setattr(linear_cuts, "tuned", lambda device: {})
    if not device.is_cpu:
        return

    def coopmat(layout, rows, n, many, swiglu, size, columns, subgroup):
        return Coopmat(1, 1, 1, 1, 2, 1, size, subgroup, columns=columns)

    def int8(device, layout, rows, n, k):
        cut = choose_int8(device, layout, rows, n, k)
        return replace(cut, fr=1, fc=1, sr=64 // cut.m, sk=1, ahead=2)

    def gemm(device, layout, rows, n, k, swiglu):
        size = device.coopmat_size
        return Gemm(2, 1, 2, 2, size=size, subgroup=subgroup_for_coopmat(device)) if size else None

    choose_k = linear_cuts._choose_k

    def k_quants(device, rows, k, many, exact):
        cut, why = choose_k(device, rows, k, many, exact)
        return (replace(cut, repeat=4) if rows == 1 and isinstance(cut, MatvecK) else cut), why

    patch.setattr(linear_cuts, "_matvec_int8", lambda layout, n, k: MatvecInt8(1, 1, 4, 1, repeat=4))
    patch.setattr(linear_cuts, "_choose_k", k_quants)
    patch.setattr(Device, "is_cpu", property(lambda self: False))
    patch.setattr(linear_cuts, "_coopmat", coopmat)
    patch.setattr(linear_cuts, "gemm_cut", gemm)
    patch.setattr(linear_cuts, "choose_int8", int8)
