"""Which element of a cooperative matrix each invocation holds, asked of the device, and what a kernel may make of it."""

import weakref
from dataclasses import dataclass

import numpy as np

from labkit.ops.linear_cuts import subgroup_for_coopmat
from labkit.vulkan.device import Device

_HELD = 16  # components of a matrix an invocation may have
_NONE = 0xFFFFFFFF
_NIBBLES = 8  # components that fit a constant, 4 bits each
_known: "weakref.WeakKeyDictionary[Device, Layout | None]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Layout:
    """How the rows of an accumulator lie in a subgroup, where they lie regularly; of its columns if `transposed`.

    An invocation has elements of `rows` rows; bits 4e to 4e + 3 of `row_of` say which of them component e belongs to.
    The invocations that share a row differ in the bits `shared_by`, all of these. `direct`: the operand that takes the
    accumulator's place in a product that follows, A (B if transposed), has its elements in the same invocations:
    component e of it is the accumulator's component in bits 4e to 4e + 3 of `order`.
    """

    transposed: bool
    rows: int
    row_of: int
    shared_by: int
    direct: bool
    order: int


def read(device: Device) -> np.ndarray:
    """uint32 [3, subgroup, 16]: index r * size + c of each component of accumulator, A and B; all ones where none."""
    subgroup = subgroup_for_coopmat(device)
    kernel = device.kernel(
        "coopmat_layout", "", {"SIZE": device.coopmat_size, "HELD": _HELD, "SUBGROUP": subgroup}, subgroup
    )
    with device.pool("coopmat layout") as pool:
        found = pool.buffer(3 * subgroup * _HELD * 4)
        kernel.run(1, found=found)
        return found.download(np.uint32, (3, subgroup, _HELD))


def understand(found: np.ndarray, size: int) -> Layout | None:
    """The layout that serves best in what `read` found, or None where rows and columns lie irregularly.

    Direct layouts come first, then those by rows.
    """
    layouts = [layout for transposed in (False, True) if (layout := regular(found, size, transposed))]
    return min(layouts, key=lambda layout: not layout.direct, default=None)


def layout_of(device: Device) -> Layout | None:
    """`understand` of what the device says, asked once; None without cooperative matrices too."""
    if device not in _known:
        _known[device] = understand(read(device), device.coopmat_size) if device.coopmat_size else None
    return _known[device]


def regular(found: np.ndarray, size: int, transposed: bool) -> Layout | None:
    """The layout by rows, or by columns if `transposed`, where it is regular."""
    lanes = found.shape[1]
    count = size * size // lanes
    acc, operand = found[0, :, :count], found[2 if transposed else 1]
    if count > _NIBBLES or sorted(acc.reshape(-1).tolist()) != list(range(size * size)):
        return None
    line = acc % size if transposed else acc // size  # [lane, component]
    first = list(dict.fromkeys(line[0].tolist()))  # the rows of lane 0, in order
    row_of = [first.index(r) for r in line[0].tolist()]
    owners: dict[int, list[tuple[int, int]]] = {}  # row -> (lane, which of its rows)
    for lane in range(lanes):
        own = list(dict.fromkeys(line[lane].tolist()))
        if len(own) != len(first) or [own.index(r) for r in line[lane].tolist()] != row_of:
            return None
        for i, r in enumerate(own):
            owners.setdefault(r, []).append((lane, i))
    shared_by = 0
    for lane, _ in owners[first[0]]:
        shared_by |= lane ^ owners[first[0]][0][0]
    span = [bits for bits in range(lanes) if bits & ~shared_by == 0]
    for held in owners.values():
        lane, i = held[0]
        if sorted(held) != sorted((lane ^ bits, i) for bits in span):
            return None
    row_nibbles = sum(i << (4 * e) for e, i in enumerate(row_of))
    order = _order(acc, operand, count)
    return Layout(
        transposed, len(first), row_nibbles, shared_by, order is not None,
        0 if order is None else sum(e << (4 * i) for i, e in enumerate(order)),
    )  # fmt: skip


def _order(acc: np.ndarray, operand: np.ndarray, count: int) -> list[int] | None:
    """The accumulator's component that is each of the operand's, if they are in the same invocations everywhere."""
    if (operand[:, count:] != _NONE).any():
        return None
    order = None
    for mine, other in zip(acc.tolist(), operand[:, :count].tolist(), strict=True):
        if sorted(mine) != sorted(other):
            return None
        here = [mine.index(element) for element in other]
        if order is not None and here != order:
            return None
        order = here
    return order
