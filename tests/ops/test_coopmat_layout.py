"""What is understood of the places of a cooperative matrix's elements: known devices by their manuals, and this one."""

import numpy as np
import pytest

from labkit.ops.coopmat_layout import Layout, layout_of, read, understand

NONE = 0xFFFFFFFF


def place(size, lanes, *uses):
    """`found` of three functions (lane, component) -> (row, column), with as many components as each gives."""
    found = np.full((3, lanes, 16), NONE, np.uint32)
    for use, (count, where) in enumerate(uses):
        for lane in range(lanes):
            for i in range(count):
                r, c = where(lane, i)
                found[use, lane, i] = r * size + c
    return found


def mma_rows(lane, i):
    """mma.m16n8k16's A, and two of its accumulators side by side (PTX ISA): pairs of columns, then 8 rows on."""
    return lane // 4 + i // 2 % 2 * 8, lane % 4 * 2 + i % 2 + i // 4 * 8


def mma_columns(lane, i):
    """Two of its B side by side."""
    return lane % 4 * 2 + i % 2 + i // 2 % 2 * 8, lane // 4 + i // 4 * 8


def test_nvidias_layout_keeps_p_where_it_is():
    found = place(16, 32, (8, mma_rows), (8, mma_rows), (8, mma_columns))
    assert understand(found, 16) == Layout(False, 2, 0x11001100, 0b11, True, 0x76543210)


def test_components_in_another_order_are_found_again():
    def swapped(lane, i):
        return mma_rows(lane, i ^ 2)

    layout = understand(place(16, 32, (8, mma_rows), (8, swapped), (8, mma_columns)), 16)
    assert layout is not None
    assert layout.direct
    assert layout.order == 0x54761032


def test_rdna4s_layout_is_direct_the_other_way_round():
    """RDNA 4 ISA, 7.9: an invocation has 8 rows of a column of the accumulator, and of B."""

    def columns(lane, i):
        return lane // 16 * 8 + i, lane % 16

    def rows(lane, i):
        return lane % 16, lane // 16 * 8 + i

    found = place(16, 32, (8, columns), (8, rows), (8, columns))
    assert understand(found, 16) == Layout(True, 1, 0, 0b10000, True, 0x76543210)


def test_operands_held_twice_as_by_rdna3_go_through_memory():
    def columns(lane, i):
        return 2 * i + lane // 16, lane % 16

    found = place(16, 32, (8, columns), (16, lambda lane, i: (lane % 16, i)), (16, lambda lane, i: (i, lane % 16)))
    layout = understand(found, 16)
    assert layout is not None
    assert not layout.direct


def test_a_scattered_matrix_is_not_understood():
    found = place(16, 32, (8, mma_rows), (8, mma_rows), (8, mma_columns))
    found[0, [3, 9], 1] = found[0, [9, 3], 1]
    assert understand(found, 16) is None


def test_what_the_device_says_covers_each_matrix_and_its_layout_agrees(coopmat_device):
    size, found = coopmat_device.coopmat_size, read(coopmat_device)
    for use in range(3):
        assert set(found[use][found[use] != NONE].tolist()) == set(range(size * size))
    layout = layout_of(coopmat_device)
    if layout is None:
        pytest.skip("the device's matrices lie irregularly")
    lanes = found.shape[1]
    line = found[0] % size if layout.transposed else found[0] // size
    for lane in range(lanes):
        for other in range(lanes):
            shared = (lane ^ other) & ~layout.shared_by == 0
            for e in range(size * size // lanes):
                same_row = line[lane, e] == line[other, e]
                assert bool(same_row) == shared
    assert len({(layout.row_of >> (4 * e)) & 15 for e in range(size * size // lanes)}) == layout.rows
