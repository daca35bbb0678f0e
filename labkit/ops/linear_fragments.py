"""Products of matrices built in registers: how one is cut into work, where a device allows it, and the measured choice."""

from dataclasses import dataclass, replace

from labkit.errors import ParameterError
from labkit.vulkan.device import Device

BLOCKS = {
    "f16": 16,
    "q8": 32,
    "q4": 32,
    "q4m": 32,
}  # layouts of shaders/linear_fragments.comp, and columns of their blocks
WHOLE = 32  # columns that k is a multiple of
M, N, K = 16, 8, 16  # the product's shape
LANES = 32
MOST_ROWS = 64  # of x: from there on, tiles staged in shared memory serve more rows with each weight
_MOST_FRAGMENTS = 16  # sums a subgroup keeps in registers, in fragments


@dataclass(frozen=True)
class Fragments:
    """shaders/linear_fragments.comp: float16 matrices built in registers, over activations rounded to float16.

    fr, fc: fragments of W and of x a subgroup owns; sr, sc, sk: subgroups of a workgroup along W, x and K; pipe, pipe_x:
    the next weights, the next x are loaded while the last are multiplied; paired: a lane's two rows are neighbours.
    """

    fr: int
    fc: int
    sr: int
    sc: int
    sk: int
    pipe: bool = True
    pipe_x: bool = True
    paired: bool = False

    @property
    def local(self) -> int:
        """Invocations of a workgroup."""
        return LANES * self.sr * self.sc * self.sk

    @property
    def shared_bytes(self) -> int:
        """Shared memory a workgroup takes: the sums of one row of fragments."""
        return self.sr * self.sc * self.sk * self.fc * M * N * 4


def fragments_lack(device: Device, layout: str, n: int, k: int) -> str:
    """Why weights [n, k] of `layout` are not multiplied by `Fragments` here; "" where they are. Asks the device once."""
    from labkit.ops.coopmat_layout import operands_of
    from labkit.vulkan.hardware import matrix_shapes

    if layout not in BLOCKS or n < 1 or k < WHOLE or k % WHOLE:
        return f"{layout} weights [{n}, {k}] have no kernel of matrices built in registers"
    if not device.has("coopmat", "fp16", "storage16") or not any(
        (s.m, s.n, s.k, s.a, s.b, s.c) == (M, N, K, "float16", "float16", "float32") for s in matrix_shapes(device)
    ):
        return f"the device has no {M}x{N}x{K} matrices to build in registers"
    if not device.info.subgroup_min <= LANES <= device.info.subgroup_max:
        return f"the device has no subgroups of {LANES} to build matrices in"
    return "" if operands_of(device) else f"the device's {M}x{N}x{K} matrices lie otherwise than any that can be built"


def fragments_fit(device: Device, layout: str, n: int, k: int) -> bool:
    """Whether some `Fragments` multiplies weights [n, k] of `layout` here."""
    return not fragments_lack(device, layout, n, k)


def check_fragments(cut: Fragments, device: Device, layout: str, n: int, k: int) -> None:
    """Raise ParameterError, in one line, for a cut that cannot multiply weights [n, k] of `layout` on `device`."""
    if why := fragments_lack(device, layout, n, k):
        raise ParameterError(f"{cut} is not for {device.name}: {why}")
    if min(cut.fr, cut.fc, cut.sr, cut.sc, cut.sk) < 1 or cut.fr > 4:
        raise ParameterError(f"{cut}: fr is 1 to 4, the other counts at least 1")
    info = device.info
    if cut.shared_bytes > info.max_shared_bytes or cut.local > info.max_workgroup_invocations:
        raise ParameterError(
            f"{cut} takes {cut.shared_bytes} bytes of shared memory of {info.max_shared_bytes} and {cut.local} "
            f"invocations of {info.max_workgroup_invocations}"
        )


def choose_fragments(device: Device, layout: str, rows: int, n: int, k: int) -> Fragments:
    """The cut for 2 to `MOST_ROWS` activation rows, where `fragments_fit`: measured on an H200, of codes at 32 rows.

    Columns of fragments cover the rows, rounded up to a power of two; where these are more than four, fewer rows of
    weights a subgroup keep the sums in registers.
    """
    fc = 1 << (-(-min(rows, MOST_ROWS) // N) - 1).bit_length()
    q8 = layout == "q8"
    if layout == "f16":
        cut = _float16(fc, n, k)
    elif n >= 16384:
        cut = Fragments(4, fc, 1 if q8 else 2, 1, 2, paired=True)
    elif k > 8192:
        cut = Fragments(2, fc, 1, 1, 16, pipe=not q8, paired=not q8)
    elif n > 4096:
        cut = Fragments(4, fc, 1, 1, 8, pipe=False, pipe_x=False)
    else:
        cut = Fragments(2, fc, 1, 1, 8, pipe=not q8, paired=not q8)
    cut = replace(cut, fr=min(cut.fr, max(1, _MOST_FRAGMENTS // fc)))
    info = device.info
    while cut.sk > 1 and (cut.shared_bytes > info.max_shared_bytes or cut.local > info.max_workgroup_invocations):
        cut = replace(cut, sk=cut.sk // 2)
    return cut


def _float16(fc: int, n: int, k: int) -> Fragments:
    """Measured on an H200 at 4, 16 and 32 rows: 1, 2 and 4 columns of fragments."""
    if fc == 1:
        return Fragments(2 if n >= 16384 else 1, 1, 1, 1, 16, pipe=False, pipe_x=False)
    if fc == 2:
        if n >= 16384:
            return Fragments(2, 2, 1, 1, 8, pipe=False, pipe_x=False)
        return Fragments(2, 2, 1, 1, 16, pipe_x=False) if n > 4096 else Fragments(1, 2, 1, 1, 16, False, False)
    if n > 4096:
        return Fragments(2, fc, 1, 1, 8)
    return Fragments(2, fc, 1, 1, 16, pipe=False) if k > 8192 else Fragments(1, fc, 1, 1, 8, pipe=False)
