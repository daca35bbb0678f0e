"""Machines by description: the cards whose code can be had without them, and others whose programs use other kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.vulkan.device import OPTIONAL, REQUIRED, Device, DeviceInfo
from labkit.vulkan.hardware import MatrixShape, matrix_shapes
from labkit.vulkan.recording import RecordingDevice


def _info(
    name: str, kind: str, vendor: int, subgroups: tuple[int, int, int], shared_bytes: int, features: tuple[str, ...]
) -> DeviceInfo:
    usual, least, most = subgroups
    return DeviceInfo(
        index=0, name=name, type=kind, vendor_id=vendor, device_id=0, uuid="", api_version="1.4.0", driver_name="", driver_info="",
        driver_version=0, memory_bytes=32 << 30, subgroup_size=usual, subgroup_min=least, subgroup_max=most,
        max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 1024), max_grid=(1 << 31, 65535, 65535),
        max_shared_bytes=shared_bytes, max_push_bytes=256, max_storage_range_bytes=(1 << 32) - 1,
        max_allocation_bytes=(1 << 32) - 4, timestamp_period_ns=10.0, timestamp_bits=64, features=features, extensions=(),
    )  # fmt: skip


def _rdna4(found: np.ndarray) -> None:
    """gfx12 in waves of 32: component e of lane l is row 8 (l / 16) + e of its column; B lies as the accumulator."""
    lane, e = np.mgrid[0:32, 0:8]
    across = (8 * (lane // 16) + e) * 16 + lane % 16
    found[:] = 0xFFFFFFFF
    found[:, :, :8] = across, lane % 16 * 16 + 8 * (lane // 16) + e, across


def _rdna3(found: np.ndarray) -> None:
    """gfx11 in waves of 32: component e of lane l is row 2e + l / 16; A and B are held twice, by either half."""
    lane, e = np.mgrid[0:32, 0:16]
    found[:] = 0xFFFFFFFF
    found[0, :, :8] = ((2 * e + lane // 16) * 16 + lane % 16)[:, :8]
    found[1], found[2] = lane % 16 * 16 + e, e * 16 + lane % 16


def _mma(found: np.ndarray) -> None:
    """mma.m16n8k16 (PTX ISA), two accumulators and two B side by side."""
    lane, e = np.mgrid[0:32, 0:8]
    found[:] = 0xFFFFFFFF
    found[:2, :, :8] = (lane // 4 + e // 2 % 2 * 8) * 16 + lane % 4 * 2 + e % 2 + e // 4 * 8
    found[2, :, :8] = (lane % 4 * 2 + e % 2 + e // 2 % 2 * 8) * 16 + lane // 4 + e // 4 * 8


FLOAT16 = (("float16", "float32"), ("float16", "float16"))
INT8 = (("int8", "int32"), ("uint8", "uint32"))


@dataclass(frozen=True)
class Machine:
    """What tells a machine from others: the products it offers (elements, sums), how they lie, what features it lacks."""

    about: str
    products: tuple[tuple[str, str], ...] = ()
    layout: Callable[[np.ndarray], None] | None = None
    lacks: tuple[str, ...] = ()
    cpu: bool = False
    narrow: bool = False  # it multiplies float16 as 16x8x16 too, A and B of the same layout


AMD = 0x1002
_ON_CPU = ("coopmat", "executable_statistics", "subgroup_size_control")
# RADV's names stand for its cards; matrices are 16x16x16, also where the Mesa here does not offer them yet
MACHINES = {
    "gfx1201": Machine("Radeon AI PRO R9700 (RDNA 4)", FLOAT16 + INT8, _rdna4),
    "gfx1151": Machine("Radeon 8060S (RDNA 3.5)", FLOAT16 + INT8, _rdna3),
    "float16 matrices": Machine("a card with matrices of float16 alone", FLOAT16, _rdna4),
    "mma": Machine("a card whose matrices lie as PTX's", FLOAT16 + INT8, _mma, narrow=True),
    "no matrices": Machine("an R9700 with a Mesa before 25.2, or an older card", lacks=("coopmat",)),
    "cpu": Machine("a driver on the CPU", lacks=_ON_CPU, cpu=True),
    "small cpu": Machine("one without 64-bit integers", lacks=(*_ON_CPU, "int64"), cpu=True),
}


def _narrow(layout: Callable[[np.ndarray], None], found: np.ndarray) -> None:
    """A, and the left half of B, of a layout whose first four components of B are in that half."""
    square = np.empty((3, *found.shape[1:]), np.uint32)
    layout(square)
    found[0], found[1, :, :4], found[1, :, 4:] = square[1], square[2, :, :4], 0xFFFFFFFF


def device_like(name: str) -> RecordingDevice:
    """A device that records for the machine of this name. Raises ParameterError for one that is not described."""
    if name not in MACHINES:
        raise ParameterError(f"there is no description of {name!r}, only of {', '.join(MACHINES)}")
    machine = MACHINES[name]
    features = tuple(sorted({*OPTIONAL, *REQUIRED} - set(machine.lacks)))
    if machine.cpu:
        return RecordingDevice(_info(name, "cpu", 0, (8, 8, 8), 32 << 10, features))
    shapes = [MatrixShape(16, 16, 16, element, element, total) for element, total in machine.products]
    shapes += [MatrixShape(16, 8, 16, "float16", "float16", "float32")] * machine.narrow
    device = RecordingDevice(_info(name, "discrete", AMD, (64, 32, 64), 64 << 10, features), shapes)
    if layout := machine.layout:
        device.answers["coopmat_layout"] = lambda found: layout(found.array(np.uint32, (3, 32, 16)))
    if layout and machine.narrow:
        device.answers["fragment_layout"] = lambda found: _narrow(layout, found.array(np.uint32, (2, 32, 16)))
    return device


def like(device: Device) -> RecordingDevice:
    """A device that answers as `device` does, asked now."""
    made = RecordingDevice(device.info, matrix_shapes(device))
    if device.coopmat_size:
        from labkit.ops import coopmat_layout

        found = coopmat_layout.read(device)

        def answer(*, found: object, known: np.ndarray = found) -> None:
            found.array(np.uint32, known.shape)[:] = known  # type: ignore[attr-defined]

        made.answers["coopmat_layout"] = answer
        if any((s.m, s.n, s.k, s.a) == (16, 8, 16, "float16") for s in matrix_shapes(device)):
            operands = coopmat_layout.read_operands(device)

            def answer_operands(*, found: object, known: np.ndarray = operands) -> None:
                found.array(np.uint32, known.shape)[:] = known  # type: ignore[attr-defined]

            made.answers["fragment_layout"] = answer_operands
    return made
