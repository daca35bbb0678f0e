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
_known_operands: "weakref.WeakKeyDictionary[Device, Operands | None]" = weakref.WeakKeyDictionary()


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


@dataclass(frozen=True)
class Operands:
    """In what order invocations hold the operands of a 16x8x16 float16 product (shaders/include/fragments.glsl).

    Lane g * 4 + t has pairs of columns 2t and 2t + 8 in rows g and g + 8 of A, and of rows of B in column g, as of
    mma.sync (PTX ISA). Bits 4p to 4p + 3 say which pair components 2p and 2p + 1 are: of A 2 * (row g + 8) + (column 2t +
    8), of B (row 2t + 8).
    """

    a: int
    b: int


def read_operands(device: Device) -> np.ndarray:
    """uint32 [2, 32, 16]: index r * 16 + c of each component of A and B of 16x8x16; all ones where none."""
    with device.pool("fragment layout") as pool:
        found = pool.buffer(2 * 32 * _HELD * 4)
        device.kernel("fragment_layout", "", {}, 32).run(1, found=found)
        return found.download(np.uint32, (2, 32, _HELD))


def understand_operands(found: np.ndarray) -> Operands | None:
    """The order in what `read_operands` found, or None where an invocation holds other elements."""
    a, b = _pairs(found[0], 4, transposed=False), _pairs(found[1], 2, transposed=True)
    return None if a is None or b is None else Operands(a, b)


def operands_of(device: Device) -> Operands | None:
    """`understand_operands` of what the device says, asked once; it lists 16x8x16 float16 products."""
    if device not in _known_operands:
        _known_operands[device] = understand_operands(read_operands(device))
    return _known_operands[device]


def _pairs(held: np.ndarray, count: int, *, transposed: bool) -> int | None:
    """The pairs an operand has, 4 bits each, if they are `count`, each once and the same in all lanes."""
    lane = np.arange(32)[:, None]
    if (held[:, 2 * count :] != _NONE).any() or (held[:, : 2 * count] == _NONE).any():
        return None
    across, along = np.divmod(held[:, : 2 * count].astype(int), 16)
    if transposed:
        across, along = along, across
    half, of = np.divmod(across - lane // 4, 8)
    far, within = np.divmod(along - lane % 4 * 2, 8)
    which = half * 2 + far
    if of.any() or (within != np.arange(2 * count) % 2).any() or (which != which[0]).any():
        return None
    pairs: list[int] = which[0, ::2].tolist()
    if pairs != which[0, 1::2].tolist() or sorted(pairs) != list(range(count)):
        return None
    return sum(pair << (4 * p) for p, pair in enumerate(pairs))


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
