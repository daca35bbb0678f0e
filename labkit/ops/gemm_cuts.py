"""How a product with many activation rows is cut into staged tiles, and which cut a device takes."""

from dataclasses import dataclass, replace

from labkit.errors import ParameterError
from labkit.ops.layouts import TILE
from labkit.vulkan.device import Device

GEMM_LAYOUTS = ("f16", "bf16", "q8", "q4", "q4m", "q4k", "q5k", "q6k")  # what shaders/linear_gemm.comp has variants for
AMD = 0x1002  # PCI vendor
_MOST_COLUMNS = 8  # fragments of x a subgroup may own: the rounds its epilogue is written out for


@dataclass(frozen=True)
class Gemm:
    """shaders/linear_gemm.comp: tiles of both operands staged in shared memory; activations rounded to float16.

    fr, fc: fragments of W and of x a subgroup owns; sr, sc: subgroups of a workgroup along W and x; bk: columns of K
    staged at once; buffers: 1, or 2 to stage the next beside them; ahead: fragments are loaded a step before they are
    multiplied; put: with 2 buffers, the next columns are put 0 before, 1 among, 2 behind the steps; spread: invocations go
    down a tile's rows first; group: tiles of W a panel of workgroups is high; size: M = N = K of a fragment.
    """

    fr: int
    fc: int
    sr: int
    sc: int
    bk: int = 32
    buffers: int = 2
    ahead: bool = False
    put: int = 0
    spread: bool = False
    group: int = 8
    size: int = 16
    subgroup: int = 32

    @property
    def bm(self) -> int:
        """Rows of W a workgroup owns."""
        return self.sr * self.fr * self.size

    @property
    def bn(self) -> int:
        """Rows of x a workgroup owns."""
        return self.sc * self.fc * self.size

    @property
    def local(self) -> int:
        """Invocations of a workgroup."""
        return self.sr * self.sc * self.subgroup

    @property
    def shared_bytes(self) -> int:
        """Shared memory a workgroup takes at most (the staged sums of an epilogue included)."""
        staged = self.buffers * (self.bm + self.bn) * (self.bk // 8 + 1)
        sums = self.sr * self.sc * self.size * (self.fr * self.size // 4 + 1)
        return 16 * max(staged, sums)

    def tiles(self, rows: int, n: int) -> int:
        """Workgroups of a product [rows, n]."""
        return -(-n // self.bm) * -(-rows // self.bn)


def check_gemm(cut: Gemm, device: Device, layout: str) -> None:
    """Raise ParameterError, in one line, for a cut that the device or the layout does not allow."""
    if layout not in GEMM_LAYOUTS:
        raise ParameterError(f"{layout} weights have no staged product; these have: {', '.join(GEMM_LAYOUTS)}")
    if cut.size != device.coopmat_size or cut.subgroup != _subgroup(device):
        raise ParameterError(f"{cut} is not for {device.name}, whose matrices are of {device.coopmat_size}")
    if min(cut.fr, cut.fc, cut.sr, cut.sc, cut.group) < 1 or cut.fc > _MOST_COLUMNS:
        raise ParameterError(f"{cut}: pieces are at least 1, fc at most {_MOST_COLUMNS}")
    if cut.bm % TILE or cut.bn % TILE or cut.fr * cut.size % TILE:
        raise ParameterError(f"{cut}: a subgroup's rows of W and a workgroup's of x are multiples of {TILE}")
    block = TILE if layout in ("f16", "bf16") else 32
    if cut.bk < block or cut.bk % block or cut.buffers not in (1, 2) or cut.put not in (0, 1, 2):
        raise ParameterError(f"{cut}: bk is a multiple of {block}, buffers are 1 or 2, put is 0 to 2")
    if cut.shared_bytes > device.info.max_shared_bytes:
        have = device.info.max_shared_bytes
        raise ParameterError(f"{cut} needs {cut.shared_bytes} bytes of shared memory; {device.name} has {have}")


def _subgroup(device: Device) -> int:
    """As `linear_cuts.subgroup_for_coopmat`."""
    return 32 if device.info.subgroup_min <= 32 <= device.info.subgroup_max else device.info.subgroup_size


def gemm_cut(device: Device, layout: str, rows: int, n: int, k: int, swiglu: bool) -> Gemm | None:
    """The cut for `rows` activation rows of a matrix [n, k], or None where the device or the layout has none.

    The largest tile that still gives every compute unit something to do; small ones where the product is small.
    """
    size = device.coopmat_size
    if not size or layout not in GEMM_LAYOUTS:
        return None
    codes = layout not in ("f16", "bf16")
    if device.info.vendor_id == AMD:  # 256 registers an invocation, and 64 KiB of shared memory
        tried = [Gemm(4, 2, 2, 4), Gemm(4, 2, 2, 2, 32, 1)]
    elif size < 16:  # a driver on the CPU
        tried = [Gemm(2, 2, 2, 2, 32, 1)]
    elif codes:
        wide = Gemm(4, 4, 4, 2, 32, 1, ahead=True, spread=True) if layout != "q8" else Gemm(4, 4, 2, 4, 32, 1, group=4)
        tried = [wide, Gemm(4, 4, 2, 2, 64, 1), Gemm(4, 2, 2, 2, 32, 1)]
    else:
        tried = [Gemm(4, 4, 2, 2, 32, 1, group=2), Gemm(4, 2, 2, 2, 32, 1, group=2)]
    tried = [replace(cut, size=size, subgroup=_subgroup(device)) for cut in tried]
    units = 128
    for cut in tried:
        if cut.shared_bytes <= device.info.max_shared_bytes and (cut is tried[-1] or cut.tiles(rows, n) >= units):
            return cut
    return None
