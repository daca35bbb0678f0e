"""How a linear operation is cut into work, and which cut a device takes for a width: the choice and its reason."""

from dataclasses import dataclass, replace

from labkit.ops.gemm_cuts import AMD, GEMM_LAYOUTS, Gemm, gemm_cut
from labkit.ops.linear_fragments import BLOCKS, MOST_ROWS, Fragments, choose_fragments, fragments_lack
from labkit.ops.linear_int8 import CoopmatInt8
from labkit.ops.linear_int8 import choose as choose_int8
from labkit.ops.linear_int8 import fits as fits_int8
from labkit.ops.linear_tuned import key_of, tuned
from labkit.vulkan.device import Device

STEP = {"f32": 8, "f16": 16, "bf16": 16, "q8": 32, "q4": 64, "q4m": 64}  # elements of K a matvec team takes at once
CODES = ("q8", "q4", "q4m")  # layouts of integer codes with scales
K_CODES = ("q4k", "q5k", "q6k")  # layouts of super-blocks
MANY_TILES = 1024  # row tiles from which a matrix fills a device without splitting K much


@dataclass(frozen=True)
class Lanes:
    """shaders/linear.comp: invocations own rows; for drivers on the CPU, and whatever has no other cut."""

    cols: int
    rpl: int
    ksplit: int
    lanes: int
    xshare: bool


@dataclass(frozen=True)
class Teams:
    """What mat-vecs by teams of 32 have in common: activation rows and row tiles a workgroup takes at once, its teams, loads
    of a team in flight, and whether the next are loaded while the last are multiplied."""

    cols: int
    tiles: int
    teams: int
    unroll: int
    pipe: bool = False
    repeat: int = 1  # groups of tiles a workgroup takes in turn, when it prepares x itself


class Matvec(Teams):
    """shaders/matvec.comp: teams of 32 read 512 bytes at once; float32 activations."""


class MatvecInt8(Teams):
    """shaders/matvec_int8.comp: as matvec, with activations rounded to int8 in blocks and integer dot products."""


class MatvecK(Teams):
    """shaders/matvec_k_int8.comp: a team of 32 takes a super-block of K-quants; activations rounded to int8 in blocks."""


@dataclass(frozen=True)
class Coopmat:
    """shaders/linear_coopmat.comp: cooperative matrices over activations rounded to float16."""

    fr: int
    fc: int
    sr: int
    sc: int
    sk: int
    unroll: int
    size: int  # M = K of the cooperative matrix
    subgroup: int
    pipe: bool = False
    columns: int = 0  # N of it, where that is not M

    @property
    def width(self) -> int:
        """N of the cooperative matrix: activation rows a fragment takes."""
        return self.columns or self.size


Cut = Lanes | Matvec | MatvecInt8 | MatvecK | Coopmat | CoopmatInt8 | Fragments | Gemm


TUNABLE = (Matvec, MatvecInt8, MatvecK, Coopmat, CoopmatInt8, Fragments)  # what `lab tune` may keep


def parts_bytes(cut: Matvec | MatvecInt8 | MatvecK) -> int:
    """Shared memory of a mat-vec that prepares its row itself, besides the row: its sums, those of squares, and of integer
    products the SwiGLU that they may leave rounded."""
    gated = 0 if isinstance(cut, Matvec) else cut.tiles * cut.repeat * 8
    return (32 * cut.teams * (cut.tiles * cut.cols + 1) + gated) * 4


def rounds_here(device: Device, cut: MatvecInt8 | MatvecK, rows: int, k: int) -> bool:
    """Whether the mat-vec rounds its one row of float32 activations itself, in shared memory."""
    return rows == 1 and -(-k // 32) * 40 + parts_bytes(cut) <= device.info.max_shared_bytes


def subgroup_for_coopmat(device: Device) -> int:
    """The subgroup size cooperative matrices run with: 32 where the driver lets one choose, else what it has."""
    return 32 if device.info.subgroup_min <= 32 <= device.info.subgroup_max else device.info.subgroup_size


def choose(device: Device, layout: str, rows: int, n: int, k: int, *, exact: bool, swiglu: bool) -> tuple[Cut, str]:
    """The cut for `rows` activation rows of a matrix [n, k], and why not a faster one.

    With `exact` the order of an element's sums depends on matrix and device only, never on `rows`.
    """
    if device.is_cpu:
        return _lanes(device, rows, k), "a driver on the CPU"
    many = -(-n // 16) >= MANY_TILES
    if not exact and (kept := tuned(device).get(key_of(layout, rows, n, k))) is not None:
        return kept, "tuned on this device"
    if layout in K_CODES and (exact or rows == 1 or not device.coopmat_size):
        return _choose_k(device, rows, k, many, exact)
    if exact:
        return _matvec(rows, n, many), "exact: float32 activations"
    size = device.coopmat_size
    if layout in CODES and rows == 1 and device.has("intdot") and k % 32 == 0:
        return _matvec_int8(layout, n, k), ""
    lack = ""
    if layout in BLOCKS and 1 < rows <= MOST_ROWS:
        if not (lack := fragments_lack(device, layout, n, k)):
            return choose_fragments(device, layout, rows, n, k), ""
        spills = device.info.vendor_id == AMD  # AMD's compiler what is on its way to an int8 matrix
        if layout in CODES and fits_int8(device, layout, n, k) and not spills:
            return choose_int8(device, layout, rows, n, k), lack
    if layout in CODES and rows <= 4 and device.has("intdot") and k % 32 == 0:
        tiles = (4 if layout == "q8" and rows == 2 else 2) if many else 1
        return MatvecInt8(_columns(rows), tiles, 16, 1 if many or layout == "q8" else 2), lack
    if rows == 1:
        return _matvec(rows, n, many), "one row: as fast as a matrix unit, and exact"
    if layout not in GEMM_LAYOUTS:
        return _matvec(rows, n, many), f"{layout} weights have no cooperative-matrix kernel"
    if not size:
        return _matvec(rows, n, many), "the device has no cooperative matrices (or LABKIT_DISABLE turns them off)"
    staged = gemm_cut(device, layout, rows, n, k, swiglu) if rows > 64 else None
    if staged is not None:
        return staged, ""
    columns = 8 if rows <= 8 and layout == "f16" and 8 in device.coopmat_columns else 0
    found = _coopmat(layout, rows, n, many, swiglu, size, columns, subgroup_for_coopmat(device))
    if device.info.vendor_id == AMD and found.fr * found.fc >= 4:  # else its registers spill
        found = replace(found, unroll=min(found.unroll, 2))
    return found, lack


def _choose_k(device: Device, rows: int, k: int, many: bool, exact: bool) -> tuple[Cut, str]:
    if exact:
        return _lanes(device, rows, k), "exact: float32 activations, which K-quants have no teams for"
    if not device.has("intdot"):
        return _lanes(device, rows, k), "the device has no integer dot products (or LABKIT_DISABLE turns them off)"
    cols, supers = _columns(rows), k // 256
    teams = next((t for t in (16, 8, 4) if supers % t == 0), 16 if supers > 16 else 8 if supers > 4 else 4)
    why = (
        ""
        if rows <= 8
        else "the device has no cooperative matrices (or LABKIT_DISABLE turns them off): 8 rows at a time"
    )
    if rows == 1:
        return MatvecK(1, 1, teams, 1, pipe=not many, repeat=4 if many else 1), why
    return MatvecK(cols, 2 if many and cols <= 4 else 1, teams, 1), why


def _columns(rows: int) -> int:
    """Activation rows a workgroup takes at once: a power of two, at most 8."""
    return 1 << min(max(rows - 1, 0).bit_length(), 3)


def _lanes(device: Device, rows: int, k: int) -> Lanes:
    if device.info.subgroup_size == 8:
        return Lanes(_columns(rows), 4, 1, 8, True)
    ksplit = 8
    while ksplit > 1 and ksplit * 32 > k:
        ksplit //= 2
    return Lanes(_columns(rows), 2, ksplit, 8, False)


def _matvec(rows: int, n: int, many: bool) -> Matvec:
    """Teams are always 16: the order of sums depends on their number."""
    cols = _columns(rows)
    if rows == 1:
        if n > 16384:
            return Matvec(1, 1, 16, 4, repeat=_repeat(-(-n // 16)))
        return Matvec(1, 2 if n > 4096 else 1, 16, 2)
    return Matvec(cols, 2 if many and cols <= 4 else 1, 16, 1)


def _repeat(tiles: int) -> int:
    """Turns that leave about two workgroups of 512 a multiprocessor of a large device (264 of an H200)."""
    return max(1, min(8, tiles // 220))


def _matvec_int8(layout: str, n: int, k: int) -> MatvecInt8:
    """One row, measured on an H200: K of a layer's width needs no more loads in flight, a longer one does."""
    repeat = _repeat(-(-n // 16))
    if layout == "q8":
        return MatvecInt8(1, 1, 16, 4, pipe=k > 8192 or repeat > 1, repeat=repeat)
    if n > 16384:
        return MatvecInt8(1, 4, 8, 1)
    return MatvecInt8(1, 1, 16, 2 if k > 8192 else 1, pipe=True)


def _coopmat(
    layout: str, rows: int, n: int, many: bool, swiglu: bool, size: int, columns: int, subgroup: int
) -> Coopmat:
    """Measured on an H200 (16x16x16): fewer, taller pieces for large matrices, K split 16 ways for small ones."""

    def cut(fr: int, fc: int, sr: int, sc: int, sk: int, unroll: int) -> Coopmat:
        return Coopmat(fr, fc, sr, sc, sk, unroll, size, subgroup, columns=columns)

    if layout == "bf16" and rows <= 64:  # as f16's, within the shared memory that its float16 takes
        if rows <= 16:
            return cut(2, 1, 1, 1, 8, 2) if many else cut(1, 1, 1, 1, 16, 2)
        if rows <= 32:
            return cut(4, 2, 1, 1, 4, 2) if many else cut(2, 2, 1, 1, 8, 2)
        return cut(2, 4, 1, 1, 8, 1)
    if layout != "f16":
        if rows <= 16:
            return cut(4 if layout == "q8" and many else 2, 1, 1, 1, 4 if many and layout == "q8" else 8, 1)
        if rows <= 32:
            unroll = 2 if (layout == "q8") == many else 1
            return cut(4, 2, 1, 1, 4, unroll) if many else cut(2, 2, 1, 1, 4, unroll)
        if rows <= 64:
            return cut(2, 4, 1, 1, 4, 1)
        return cut(2, 4, 4, 1 if swiglu else 2, 1, 1)
    if columns:
        return cut(1, 1, 1, 1, 16, 4)
    if rows <= 16:
        return cut(2, 1, 1, 1, 8, 4) if many else cut(1, 1, 1, 1, 16, 4)
    if rows <= 32:
        if many:
            return cut(4, 2, 1, 1, 4, 1)
        return cut(2, 2, 1, 1, 16, 4) if n <= 4096 else cut(1, 2, 1, 1, 8, 4)
    if rows <= 64:
        return cut(2, 4, 1, 1, 8, 1)
    return cut(4, 4, 2, 4, 1, 2)
