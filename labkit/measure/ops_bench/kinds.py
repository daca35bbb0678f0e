"""The kinds of product kernels, each with a cut for any number of rows, so that one can be measured against another."""

from collections.abc import Callable
from dataclasses import replace

from labkit.errors import ParameterError
from labkit.ops import linear_int8
from labkit.ops.gemm_cuts import GEMM_LAYOUTS, gemm_cut
from labkit.ops.linear_cuts import (
    CODES,
    K_CODES,
    Coopmat,
    Cut,
    Matvec,
    MatvecInt8,
    MatvecK,
    choose,
    subgroup_for_coopmat,
)
from labkit.vulkan.device import Device

MOST_COLUMNS = 8  # rows a mat-vec takes at once: as many passes over the weights as there are such groups
CPU_TEAMS = 4  # a software driver runs a workgroup's invocations one after another

Chooser = Callable[[Device, str, int, int, int, bool], "Cut | str"]


def _columns(rows: int) -> int:
    return min(1 << (rows - 1).bit_length(), MOST_COLUMNS)


def _engine(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    return choose(device, layout, rows, n, k, exact=False, swiglu=swiglu)[0]


def _float(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    if layout in K_CODES:
        return "K-quants have a mat-vec over int8 activations only"
    cut, _ = choose(device, layout, rows, n, k, exact=True, swiglu=swiglu)
    return cut if isinstance(cut, Matvec) else Matvec(_columns(rows), 1, CPU_TEAMS, 1)


def _integer(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    if layout not in (*CODES, *K_CODES):
        return f"{layout} weights are no integers"
    if not device.has("intdot") or k % 32:
        return f"k={k} is no multiple of 32" if k % 32 else "the device has no integer dot products"
    cut, _ = choose(device, layout, rows, n, k, exact=False, swiglu=swiglu)
    if isinstance(cut, MatvecInt8 | MatvecK):
        return cut
    teams = CPU_TEAMS if device.is_cpu else 16
    return (MatvecK if layout in K_CODES else MatvecInt8)(_columns(rows), 1, teams, 1)


def _matrices(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    size = device.coopmat_size
    if not size:
        return "the device has no cooperative matrices"
    if layout not in GEMM_LAYOUTS:
        return f"{layout} weights have no kernel of cooperative matrices"
    cut, _ = choose(device, layout, rows, n, k, exact=False, swiglu=swiglu)
    if isinstance(cut, Coopmat):
        return cut
    columns = min(4, -(-rows // size))
    split = 8 if columns == 1 else 4
    while split > 1 and split * columns * size * size * 4 > device.info.max_shared_bytes:
        split //= 2
    return Coopmat(2, columns, 1, 1, split, 1, size, subgroup_for_coopmat(device))


def _int8_matrices(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    if not linear_int8.fits(device, layout, n, k):
        return f"the device has no int8 matrices for {layout} weights [{n}, {k}]"
    cut, _ = choose(device, layout, rows, n, k, exact=False, swiglu=swiglu)
    if isinstance(cut, linear_int8.CoopmatInt8):
        return replace(cut, magic=True)
    return linear_int8.choose(device, layout, rows, n, k)


def _int8_converted(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    cut = _int8_matrices(device, layout, rows, n, k, swiglu)
    return replace(cut, magic=False) if isinstance(cut, linear_int8.CoopmatInt8) else cut


def _gemm(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Cut | str:
    return gemm_cut(device, layout, rows, n, k, swiglu) or f"no staged tiles for {layout} weights [{n}, {k}] here"


KINDS: dict[str, tuple[str, Chooser]] = {
    "engine": ("what the engine takes", _engine),
    "float": ("mat-vec over float32 activations", _float),
    "integer-dot": ("mat-vec over int8 activations", _integer),
    "matrices": ("float16 cooperative matrices", _matrices),
    "int8-matrices": ("int8 cooperative matrices, sums through the magic bias", _int8_matrices),
    "int8-converted": ("int8 cooperative matrices, sums converted by the device", _int8_converted),
    "gemm": ("tiles staged in shared memory", _gemm),
}


def cut_of(kind: str, device: Device, layout: str, rows: int, n: int, k: int, *, swiglu: bool = False) -> Cut:
    """The cut of `kind` for `rows` activation rows of weights [n, k]. ParameterError that says why there is none."""
    if kind not in KINDS:
        raise ParameterError(f"{kind!r} is not a kind of product; there are {', '.join(KINDS)}")
    found = KINDS[kind][1](device, layout, rows, n, k, swiglu)
    if isinstance(found, str):
        raise ParameterError(f"{kind} on {device.name}: {found}")
    return found
