"""Flash attention against float64 softmax over the same cache: shapes, cuts, layouts, ragged blocks, poisoned pages."""

import dataclasses

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.ops import attention as attention_op
from labkit.ops import flash_attention as op
from labkit.ops.coopmat_layout import read, regular
from labkit.ops.flash_attention import Cut, blocks_of, choose, flash_attention, most_blocks, record, reference
from labkit.ops.kv_cache import PAGE, upload
from labkit.ops.linear_cuts import subgroup_for_coopmat
from labkit.ops.rounding import Rounding, place, scratch_bytes
from labkit.ops.rows import make_rows

TOLERANCE = 1e-6  # normalised mean squared error of softmax; rounding p to float16 costs about 2e-8 of it
SLOTS, PAGES = 4, 3
RUNS = ((1, 0, 20), (3, 100, 37), (2, 253, 9), (0, 5, 1))  # slot, first position, rows
SMALL = (4, 1, 32)  # heads, kv heads, head_dim


class Case:
    """Runs of rows; a cache filled up to each slot's last position, in pages of any order, NaN behind it."""

    def __init__(self, shape, runs=RUNS, kind="f16", seed=0, scale=1.0) -> None:
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim = shape
        self.slots = np.concatenate([np.full(count, slot) for slot, _, count in runs])
        self.positions = np.concatenate([np.arange(first, first + count) for _, first, count in runs])
        self.rows = make_rows(np.zeros(len(self.slots), int), self.slots, self.positions)
        self.qkv = rng.standard_normal((len(self.rows), (self.heads + 2 * self.kv_heads) * self.dim)).astype("f4")
        self.qkv[:, : self.heads * self.dim] *= scale
        self.pages = rng.permutation(SLOTS * PAGES).reshape(SLOTS, PAGES).astype(np.uint32)
        self.k = np.full((SLOTS * PAGES, self.kv_heads, PAGE, self.dim), np.nan, "f2" if kind == "f16" else "f4")
        self.v = self.k.copy()
        for slot in range(SLOTS):
            for p in range(max(self.positions[self.slots == slot], default=-1) + 1):
                for cache in (self.k, self.v):
                    cache[self.pages[slot, p // PAGE], :, p % PAGE] = rng.standard_normal((self.kv_heads, self.dim))

    def run(self, device, **options) -> np.ndarray:
        options = {"cut": small_cut(device, self.heads // self.kv_heads)} | options
        return flash_attention(device, self.qkv, self.rows, self.k, self.v, self.pages, heads=self.heads, **options)

    def seen(self, slot) -> tuple[np.ndarray, np.ndarray]:
        """k, v [T, kv_heads, dim] of a slot, all pages."""
        return tuple(c[self.pages[slot]].swapaxes(1, 2).reshape(-1, self.kv_heads, self.dim) for c in (self.k, self.v))

    def want(self, window: int = 0) -> np.ndarray:
        out = np.empty((len(self.rows), self.heads * self.dim))
        for slot in set(self.slots.tolist()):
            mine = self.slots == slot
            q = self.qkv[mine, : self.heads * self.dim].reshape(-1, self.heads, self.dim)
            out[mine] = reference(q, *self.seen(slot), self.positions[mine], window=window).reshape(len(q), -1)
        return out


def small_cut(device, group, **changes) -> Cut:
    """A cut that compiles quickly on a driver on the CPU, whose time goes into unrolled matrices."""
    size = device.coopmat_size
    pack = max(n for n in (1, 2, 3, 4) if group % n == 0)
    cut = Cut(pack, 1, size, pack, 1, size, subgroup_for_coopmat(device))
    return dataclasses.replace(cut, **changes)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


# blocks: no device


@pytest.mark.parametrize("block_rows", [1, 7, 16, 32])
def test_blocks_cover_every_row_once_in_one_slot_at_consecutive_positions(block_rows):
    slots = np.repeat([2, 2, 0, 1, 1], [5, 40, 1, 33, 16])
    positions = np.concatenate([np.arange(a, a + n) for a, n in ((0, 5), (90, 40), (7, 1), (0, 33), (50, 16))])
    blocks = blocks_of(slots, positions, block_rows, first_row=3).astype(int)
    covered = []
    for first, count, slot, position in blocks:
        assert 1 <= count <= block_rows
        own = np.arange(first - 3, first - 3 + count)
        assert (slots[own] == slot).all()
        assert (positions[own] == position + np.arange(count)).all()
        covered += own.tolist()
    assert sorted(covered) == list(range(len(slots)))
    ends = blocks[:, 1] + blocks[:, 3]
    assert (np.diff(ends) <= 0).all()  # the longest first
    assert len(blocks) <= most_blocks(len(slots), 5, block_rows)


def test_no_rows_make_no_blocks_and_unequal_lengths_are_refused():
    assert blocks_of(np.zeros(0), np.zeros(0), 16).shape == (0, 4)
    with pytest.raises(ParameterError, match="as many rows"):
        blocks_of(np.zeros(2), np.zeros(3), 16)


def test_the_reference_is_attentions_over_rounded_inputs():
    case = Case((6, 2, 32), kind="f32")
    want = case.want().reshape(-1, 6, 32)
    for r in (0, 11, 40, 66):
        k, v = (c[: case.positions[r] + 1].astype(np.float16) for c in case.seen(case.slots[r]))
        q = case.qkv[r, : 6 * 32].reshape(6, 32).astype(np.float16)
        assert error(attention_op.reference(q, k, v), want[r]) < 1e-13


# on the device


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_ragged_blocks_of_several_slots_are_right_over_pages_in_any_order(coopmat_device, kind):
    case = Case(SMALL, kind=kind)
    got, want = case.run(coopmat_device), case.want()
    print(f"rounding p to float16 costs {error(got, want):.1e}")
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < TOLERANCE


@pytest.mark.parametrize("window", [3, 130])
def test_a_window_hides_all_positions_before_it(coopmat_device, window):
    """Within a tile, over tiles that a row has nothing in, and over whole pages; scores are as steep as a maximum's rise."""
    case = Case(SMALL, runs=((1, 0, 20), (3, 250, 37)), scale=3.0)
    got, want = case.run(coopmat_device, window=window), case.want(window)
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2, 64), (3, 1, 64), (8, 2, 128), (8, 1, 80), (6, 2, 96), (5, 1, 16)], ids=str)
def test_every_shape_of_heads_is_right(coopmat_device, shape):
    case = Case(shape, runs=((1, 0, 9), (2, 120, 18)))
    assert error(case.run(coopmat_device), case.want()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"subgroups": 2, "tiles": 2, "held": 0},
        {"subgroups": 3, "pack": 3, "held": 2},  # a pack reaches beyond the group of 4
        {"subgroups": 2, "tiles": 2, "pack": 1, "columns": 2},
        {"subgroups": 1, "pack": 1, "columns": 4},
    ],
    ids=str,
)
def test_every_cut_of_the_work_gives_the_same_attention(coopmat_device, changes):
    case, size = Case(SMALL), coopmat_device.coopmat_size
    changes = changes | {"columns": changes.get("columns", 1) * size}
    cut = small_cut(coopmat_device, 4, **changes)
    for window in (0, 30):
        assert error(case.run(coopmat_device, cut=cut, window=window), case.want(window)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("window", [0, 30])
def test_layouts_that_send_p_through_memory_give_the_same_attention(coopmat_device, transposed, window, monkeypatch):
    layout = regular(read(coopmat_device), coopmat_device.coopmat_size, transposed)
    if layout is None:
        pytest.skip("this device's accumulators are irregular that way round")
    monkeypatch.setattr(op, "layout_of", lambda device: dataclasses.replace(layout, direct=False))
    case = Case(SMALL)
    assert error(case.run(coopmat_device, window=window), case.want(window)) < TOLERANCE


@pytest.mark.slow
def test_the_cut_chosen_for_the_device_runs(coopmat_device):
    cut, why = choose(coopmat_device, 4, 32)
    assert cut is not None, why
    case = Case(SMALL)
    assert error(case.run(coopmat_device, cut=cut), case.want()) < TOLERANCE


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_float16_tiles_are_the_float32_result_rounded_and_ordered(coopmat_device, order):
    case = Case(SMALL, runs=((1, 0, 20), (2, 250, 12)))
    whole = case.run(coopmat_device).astype(np.float16).reshape(2, 16, 8, 16).swapaxes(1, 2)
    neighbours = {0: list(range(16)), 1: [0, 2, 1, 3], 2: [0, 4, 1, 5, 2, 6, 3, 7]}[order]
    places = [base + n for base in range(0, 16, len(neighbours)) for n in neighbours]
    assert np.array_equal(case.run(coopmat_device, order=order), whole[..., places])


def test_rows_of_no_block_keep_what_they_have(coopmat_device):
    case = Case(SMALL)
    blocks = blocks_of(case.slots, case.positions, small_cut(coopmat_device, 4).block_rows)
    left_out = blocks[:, 2] == 2
    blocks[left_out, 1] = 0
    blocks[left_out, 2:] = 0xFFFFFFF0  # not looked at
    got, want = case.run(coopmat_device, blocks=blocks, fill=7.0), case.want()
    assert (got[case.slots == 2] == 7.0).all()
    assert error(got[case.slots != 2], want[case.slots != 2]) < TOLERANCE


def test_a_block_is_bitwise_the_same_in_any_company_and_in_any_pages(coopmat_device):
    case = Case(SMALL)
    whole = case.run(coopmat_device)
    blocks = blocks_of(case.slots, case.positions, small_cut(coopmat_device, 4).block_rows)
    moved = np.roll(np.arange(SLOTS * PAGES), 5)
    k, v = case.k.copy(), case.v.copy()
    case.k[moved], case.v[moved] = k, v
    case.pages = moved[case.pages].astype(np.uint32)
    for block in blocks:
        got = case.run(coopmat_device, blocks=block[None])
        own = slice(block[0], block[0] + block[1])
        assert np.array_equal(got[own], whole[own])
        assert np.isnan(np.delete(got, own, axis=0)).all()


@pytest.mark.parametrize("scale", [0.0, 1e-3, 300.0])
def test_flat_and_steep_softmax_are_right(coopmat_device, scale):
    case = Case(SMALL, scale=scale)
    got = case.run(coopmat_device)
    assert np.isfinite(got).all()
    assert error(got, case.want()) < TOLERANCE


def test_a_maximum_that_rises_late_and_far_takes_all(coopmat_device):
    case = Case(SMALL, runs=((1, 270, 12),))
    case.qkv[:, : 4 * 32] = 0
    case.qkv[:, : 4 * 32 : 32] = 40.0
    for at, key in ((0, -200.0), (130, 90.0), (268, 200.0)):
        case.k[case.pages[1, at // PAGE], :, at % PAGE, 0] = key
    got = case.run(coopmat_device)
    assert error(got, case.want()) < TOLERANCE
    np.testing.assert_allclose(got[0, :32], case.seen(1)[1][268, 0], rtol=1e-3)


def test_a_query_beyond_float16_is_held_at_its_edge(coopmat_device):
    case = Case(SMALL, runs=((1, 30, 4),), scale=1e6)
    assert error(case.run(coopmat_device), case.want()) < TOLERANCE


def test_a_scale_of_ones_own_replaces_the_default(coopmat_device):
    case = Case(SMALL, runs=((1, 30, 4),))
    got = case.run(coopmat_device, scale=0.5)
    q = case.qkv[:, : 4 * 32].reshape(-1, 4, 32)
    assert error(got, reference(q, *case.seen(1), case.positions, scale=0.5).reshape(4, -1)) < TOLERANCE


def test_wrong_arguments_are_refused_in_one_line(coopmat_device):
    case = Case(SMALL, runs=((1, 30, 4),))
    cut = small_cut(coopmat_device, 4)
    with pytest.raises(ParameterError, match="pack divides"):
        case.run(coopmat_device, cut=dataclasses.replace(cut, pack=5))
    with pytest.raises(ParameterError, match="that divides 128"):
        case.run(coopmat_device, cut=dataclasses.replace(cut, columns=24))
    with pytest.raises(ParameterError, match="bytes of shared memory"):
        case.run(coopmat_device, cut=dataclasses.replace(cut, subgroups=16, tiles=64, held=0))
    with pytest.raises(ParameterError, match="is not for"):
        case.run(coopmat_device, cut=dataclasses.replace(cut, size=32))
    with pytest.raises(ParameterError, match="scale=-1 is not a positive number"):
        case.run(coopmat_device, scale=-1)
    with pytest.raises(ParameterError, match="multiple of 16, not 24"):
        Case((4, 1, 24), runs=((1, 30, 4),)).run(coopmat_device, cut=cut)
    with coopmat_device.pool() as pool:
        cache = upload(pool, case.k, case.v, case.pages)
        qkv, blocks, y = pool.buffer(case.qkv), pool.buffer(16), pool.buffer(4 * 128 * 4)
        program = coopmat_device.program()
        shape = {"rows": 4, "heads": 4, "qkv_stride": 192, "y_stride": 128, "cut": cut}
        with pytest.raises(ParameterError, match="2 blocks were asked for and the table holds 1"):
            record(program, qkv, blocks, cache, y, count=2, **shape)
        with pytest.raises(ParameterError, match="y needs 2096 bytes"):
            record(program, qkv, blocks, cache, y, count=1, **(shape | {"y_stride": 132}))
        narrow = place(pool.buffer(scratch_bytes(4, 64)), Rounding("float16", 0), 4, 64)
        with pytest.raises(ParameterError, match=r"not float16 \[4, 128\]"):
            record(program, qkv, blocks, cache, narrow, count=1, **shape)
