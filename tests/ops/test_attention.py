"""Attention against float64 softmax over the same cache: pages, companions, cuts and extreme scores."""

from types import SimpleNamespace

import numpy as np
import pytest
from float16_tiles import untiled
from scipy.special import softmax

from labkit.errors import ParameterError
from labkit.ops.attention import Shape, attention, partial_bytes, record, reference, shape, splits_for, ticket_bytes
from labkit.ops.kv_cache import PAGE, upload
from labkit.ops.rounding import Rounding, place, scratch_bytes
from labkit.ops.rows import make_rows

TOLERANCE = 1e-6  # normalised mean squared error of softmax
SHAPES = [(9, 3, 64), (4, 4, 24), (8, 1, 80), (6, 2, 128), (2, 1, 4), (5, 1, 20), (32, 2, 64)]  # heads, kv heads, dim
SLOTS, PAGES = 3, 3


class Case:
    """Rows at `positions` of `slots`; a cache filled up to each slot's last position, NaN behind it."""

    def __init__(self, shape, slots, positions, kind="f16", seed=0, scale=1.0, active=True) -> None:
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim = shape
        self.rows = make_rows(np.zeros(len(slots), int), slots, positions, active)
        self.qkv = (scale * rng.standard_normal((len(slots), (self.heads + 2 * self.kv_heads) * self.dim))).astype("f4")
        self.pages = rng.permutation(SLOTS * PAGES).reshape(SLOTS, PAGES).astype(np.uint32)
        self.k = np.full((SLOTS * PAGES, self.kv_heads, PAGE, self.dim), np.nan, "f2" if kind == "f16" else "f4")
        self.v = self.k.copy()
        for slot in range(SLOTS):
            own = [p for s, p in zip(slots, positions, strict=True) if s == slot]
            for cache in (self.k, self.v):
                for p in range(max(own, default=-1) + 1):
                    cache[self.pages[slot, p // PAGE], :, p % PAGE] = rng.standard_normal((self.kv_heads, self.dim))

    def run(self, device, **options) -> np.ndarray:
        return attention(device, self.qkv, self.rows, self.k, self.v, self.pages, heads=self.heads, **options)

    def seen(self, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [heads, dim] of row r, and k, v [T, kv_heads, dim] of its slot up to its position."""
        _, slot, position, *_ = self.rows[r].tolist()
        k, v = (c[self.pages[slot]].swapaxes(1, 2).reshape(-1, self.kv_heads, self.dim) for c in (self.k, self.v))
        return self.qkv[r, : self.heads * self.dim].reshape(self.heads, -1), k[: position + 1], v[: position + 1]

    def want(self, window: int = 0) -> np.ndarray:
        seen = [(q, k[-window:], v[-window:]) for q, k, v in map(self.seen, range(len(self.rows)))]
        return np.stack([reference(*each).reshape(-1) for each in seen])


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


def test_the_reference_is_scipys_softmax_head_by_head():
    case = Case((6, 2, 16), [0], [40], "f32")
    q, k, v = (a.astype(np.float64) for a in case.seen(0))
    got = reference(q, k, v)
    for head in range(6):
        p = softmax(k[:, head // 3] @ q[head] / 4)
        assert np.allclose(got[head], p @ v[:, head // 3], atol=1e-6)


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_at_every_edge_of_a_page_are_right(device, kind, shape):
    positions = [0, 1, 7, 8, 126, 127, 128, 129, 255, 256, 300, 383]
    case = Case(shape, [p % SLOTS for p in positions], positions, kind)
    got, want = case.run(device), case.want()
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < TOLERANCE


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 33])
def test_a_prompt_of_one_slot_attends_causally(device, count):
    case = Case((9, 3, 64), [1] * count, list(range(120, 120 + count)))
    keys = case.seen(count - 1)[1][:, 0].astype(np.float64)  # KV head 0
    scores = case.qkv[:, :64].astype(np.float64) @ keys.T / 8  # q head 0
    scores[np.arange(120 + count) > np.arange(120, 120 + count)[:, None]] = -np.inf
    want = softmax(scores, axis=1) @ case.seen(count - 1)[2][:, 0].astype(np.float64)
    assert error(case.run(device)[:, :64], want) < TOLERANCE


@pytest.mark.parametrize("shape", [(9, 3, 64), (8, 1, 80), (5, 1, 20)], ids=str)
@pytest.mark.parametrize("cut", [Shape(1, 8, 32), Shape(3, 4, 8), Shape(2, 8, 128), Shape(3, 8, 64, False)], ids=str)
def test_every_cut_of_the_work_gives_the_same_attention(device, shape, cut):
    case = Case(shape, [0, 1, 2], [5, 127, 290])
    assert error(case.run(device, cut=cut), case.want()) < TOLERANCE


@pytest.mark.parametrize("cut", [None, Shape(3, 8, 64)], ids=str)
@pytest.mark.parametrize("shape", [(9, 3, 64), (8, 1, 80)], ids=str)
def test_a_row_is_bitwise_the_same_in_any_company_and_at_any_number_of_splits(device, shape, cut):
    positions = [3, 127, 128, 200, 260, 383, 64]
    case = Case(shape, [0, 1, 2, 0, 1, 2, 0], positions)
    whole, qkv, rows = case.run(device, cut=cut), case.qkv, case.rows
    for r in range(len(positions)):
        case.qkv, case.rows = qkv[r : r + 1], rows[r : r + 1]
        for splits in range(splits_for(positions[r] + 1), PAGES + 1):  # one page alone is the direct form
            assert np.array_equal(case.run(device, splits=splits, cut=cut)[0], whole[r])
    case.qkv, case.rows = qkv[::-1].copy(), rows[::-1].copy()
    assert np.array_equal(case.run(device, cut=cut)[::-1], whole)


@pytest.mark.parametrize(
    ("kind", "cut", "window"),
    [("f16", None, 5), ("f32", None, 131), ("f16", Shape(3, 4, 16), 1), ("f32", Shape(2, 8, 64, False), 300)],
    ids=str,
)
def test_a_window_hides_all_positions_before_it(device, kind, cut, window):
    """What it hides may be anything: it is made large here. Pages before the window are joined as nothing."""
    positions = [0, 4, 5, 7, 127, 128, 132, 255, 256, 383]
    case = Case((6, 2, 24), [i % SLOTS for i in range(len(positions))], positions, kind)
    got, want = case.run(device, window=window, cut=cut), case.want(window)
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < TOLERANCE
    for hidden in range(383 + 1 - window):
        case.k[case.pages[9 % SLOTS, hidden // PAGE], :, hidden % PAGE] = 60000.0
    assert np.array_equal(case.run(device, window=window, cut=cut)[9], got[9])


def test_a_window_as_long_as_what_is_seen_changes_no_bit(device):
    case = Case((9, 3, 64), [0, 1, 2], [5, 127, 290])
    assert np.array_equal(case.run(device, window=291), case.run(device))
    with pytest.raises(ParameterError, match="window=-1"):
        case.run(device, window=-1)


@pytest.mark.parametrize("cut", [None, Shape(1, 4, 16)], ids=str)
@pytest.mark.parametrize("position", [32 * PAGE - 1, 32 * PAGE, 41 * PAGE + 5])
def test_many_pages_are_joined_right(device, cut, position):
    rng, pages = np.random.default_rng(3), 44
    k, v = (rng.standard_normal((pages, 1, PAGE, 16)).astype(np.float16) for _ in range(2))
    table = rng.permutation(pages)[None].astype(np.uint32)
    qkv = 4 * rng.standard_normal((1, 4 * 16)).astype(np.float32)
    rows = make_rows([0], [0], [position])
    got = [attention(device, qkv, rows, k, v, table, heads=2, cut=cut, splits=s) for s in (42, 44)]
    seen_k, seen_v = (c[table[0]].reshape(-1, 1, 16)[: position + 1] for c in (k, v))
    assert error(got[0], reference(qkv[0, :32].reshape(2, 16), seen_k, seen_v).reshape(-1)) < TOLERANCE
    assert np.array_equal(got[0], got[1])


@pytest.mark.parametrize("group", [1, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("head_dim", [20, 64, 80, 128, 256])
@pytest.mark.parametrize(("subgroup", "shared"), [(32, 49152), (32, 32768), (64, 65536), (8, 32768)])
def test_the_cut_for_a_gpu_fits_it_and_shares_heads_evenly(group, head_dim, subgroup, shared):
    info = SimpleNamespace(
        subgroup_size=subgroup, subgroup_min=subgroup, max_shared_bytes=shared, max_workgroup_invocations=1024
    )
    cut = shape(SimpleNamespace(is_cpu=False, info=info), group, head_dim)
    teams = cut.local // cut.team
    assert cut.team & (cut.team - 1) == 0
    assert 4 <= cut.team <= subgroup
    assert cut.local % max(subgroup, cut.team) == 0
    assert teams * cut.qpack * (head_dim + 2) * 4 <= shared
    packs = -(-group // cut.qpack)
    assert packs * cut.qpack - group < packs
    assert packs <= -(-group // 4)


def test_the_page_table_changes_no_bit(device):
    case = Case((9, 3, 64), [0, 2], [200, 383])
    whole = case.run(device)
    moved = np.roll(np.arange(SLOTS * PAGES), 4)
    k, v = case.k.copy(), case.v.copy()
    case.k[moved], case.v[moved] = k, v
    case.pages = moved[case.pages].astype(np.uint32)
    assert np.array_equal(case.run(device), whole)


@pytest.mark.parametrize("position", [40, 300])
def test_inactive_rows_are_zeros_and_their_indices_are_not_used(device, position):
    case = Case((9, 3, 64), [0, 1, 2], [position, 5, position], active=[True, False, True])
    want = case.want()
    case.rows[1, 1:3] = 0xFFFFFFF0
    got = case.run(device)
    assert not got[1].any()
    assert error(got[[0, 2]], want[[0, 2]]) < TOLERANCE


@pytest.mark.parametrize("position", [100, 350])
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-5, 3e3])
def test_extreme_queries_stay_finite_and_right(device, scale, position):
    case = Case((9, 3, 64), [0], [position], scale=scale)
    got = case.run(device)
    assert np.all(np.isfinite(got))
    assert error(got, case.want()) < TOLERANCE


@pytest.mark.parametrize("position", [100, 350])
@pytest.mark.parametrize("score", [1e4, -1e4, 3e37])
def test_one_extreme_score_takes_all_or_nothing(device, score, position):
    case = Case((4, 2, 64), [0], [position], "f32")
    case.qkv[:] = 0
    case.qkv[0, : 4 * 64 : 64] = 8 * score  # q = (8 score, 0, ...): the score of k is score * k[0]
    case.k[..., 0] = 0
    page, at = case.pages[0, 17 // PAGE], 17 % PAGE
    case.k[page, :, at, 0] = 1
    got, v = case.run(device).reshape(4, 64), case.seen(0)[2]
    others = np.delete(v, 17, axis=0).mean(axis=0)
    np.testing.assert_allclose(got, np.repeat(v[17] if score > 0 else others, 2, axis=0), rtol=1e-4, atol=1e-6)


def test_equal_keys_give_the_mean_of_the_values(device):
    case = Case((9, 3, 64), [0], [299], "f32")
    case.k[:] = 0.5
    got = case.run(device).reshape(3, 3, 64)
    np.testing.assert_allclose(got, np.repeat(case.seen(0)[2].mean(axis=0)[:, None], 3, axis=1), atol=1e-6)


def test_a_nan_in_one_slot_does_not_reach_another(device):
    case = Case((9, 3, 64), [0, 1], [150, 150])
    whole = case.run(device)
    case.k[case.pages[0, 0], :, 3] = np.nan
    got = case.run(device)
    assert np.all(np.isnan(got[0]))
    assert np.array_equal(got[1], whole[1])


def test_a_scale_of_ones_own_replaces_the_default(device):
    case = Case((2, 1, 16), [0], [200], "f32")
    with device.pool() as pool:
        cache = upload(pool, case.k, case.v, case.pages)
        qkv, rows, y = pool.buffer(case.qkv), pool.buffer(case.rows), pool.buffer(2 * 16 * 4)
        program = device.program()
        record(
            program, qkv, rows, cache, pool.buffer(partial_bytes(1, 2, 16, 2)), y, count=1, heads=2, qkv_stride=64,
            y_stride=32, splits=2, scale=0.5,
        )  # fmt: skip
        program.run()
        pool.check_guards()
        q, k, v = case.seen(0)
        assert error(y.download(np.float32, (2, 16)), reference(q * 2, k, v)) < TOLERANCE


def tiles_of(device, case: Case, cut: Shape, splits: int, order: int) -> np.ndarray:
    """Attention as float16 [rows of whole tiles, width], 0x1234 where nothing was written."""
    count, width = len(case.rows), case.heads * case.dim
    with device.pool("test") as pool:
        cache, qkv, rows = upload(pool, case.k, case.v, case.pages), pool.buffer(case.qkv), pool.buffer(case.rows)
        partial = pool.buffer(partial_bytes(count, case.heads, case.dim, splits))
        tickets = pool.buffer(ticket_bytes(count, case.heads)).fill(0)
        unset = np.full(scratch_bytes(count, width) // 2, 0x1234, np.uint16)
        tiles = place(pool.buffer(unset), Rounding("float16", order), count, width)
        program = device.program("test")
        record(
            program, qkv, rows, cache, partial, tiles, count=count, heads=case.heads, qkv_stride=case.qkv.shape[1],
            y_stride=width, splits=splits, tickets=tickets, cut=cut,
        )  # fmt: skip
        program.run()
        pool.check_guards()
        program.close()
        assert not tickets.download().any()  # zero again, for whoever comes next
        whole = tiles.data.buffer.download(np.float16)
    assert np.all(whole[tiles.data.nbytes // 2 :].view(np.uint16) == 0x1234)
    return untiled(whole[: tiles.data.nbytes // 2], count, width, order)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "cut"),
    [((9, 3, 64), Shape(3, 8, 64)), ((8, 1, 80), Shape(3, 8, 32)), ((4, 4, 24), Shape(1, 4, 16))],
    ids=str,
)
def test_attention_in_tiles_is_the_float32_one_rounded_once(device, shape, cut, splits, order):
    """Rows of several tiles, some of them inactive, which are zeros; rows behind the last are no one's."""
    positions = [(i * 37 + 5) % (splits * PAGE) for i in range(18)]
    active = np.arange(18) % 5 != 1
    case = Case(shape, [i % SLOTS for i in range(18)], positions, active=active)
    case.rows[~active, 1:3] = 0xFFFFFFF0
    straight = case.run(device, splits=splits, cut=cut)
    got = tiles_of(device, case, cut, splits, order)
    assert np.array_equal(got[:18], straight.astype(np.float16))
    assert not got[:18][~active].view(np.uint16).any()
    assert straight[active].any(axis=1).all()
    assert np.all(got[18:].view(np.uint16) == 0x1234)


def test_tiles_that_attention_cannot_leave_are_refused_in_one_line(device):
    case, narrow = Case((4, 2, 16), [0], [5]), Case((5, 1, 20), [0], [5])
    with pytest.raises(ParameterError, match="tiles of order 0 or 1 and a multiple of 16 columns"):
        tiles_of(device, case, Shape(2, 4, 16), 1, 2)
    with pytest.raises(ParameterError, match="of 1 x 100"):
        tiles_of(device, narrow, Shape(2, 4, 16), 1, 0)
    with pytest.raises(ParameterError, match="leaves float32, not tiles"):
        tiles_of(device, case, Shape(2), 1, 0)


def test_pages_without_tickets_are_refused_in_one_line(device):
    case = Case((4, 2, 16), [0], [200])
    with device.pool() as pool:
        cache, qkv, rows = upload(pool, case.k, case.v, case.pages), pool.buffer(case.qkv), pool.buffer(case.rows)
        partial, y = pool.buffer(partial_bytes(1, 4, 16, 3)), pool.buffer(4 * 16 * 4)
        options = {"count": 1, "heads": 4, "qkv_stride": 128, "y_stride": 64, "splits": 3, "cut": Shape(2, 4, 16)}
        for tickets in (None, pool.buffer(12)):
            with pytest.raises(ParameterError, match="16 bytes of zeros"):
                record(device.program(), qkv, rows, cache, partial, y, tickets=tickets, **options)


def test_wrong_arguments_are_refused_in_one_line(device):
    case = Case((4, 2, 16), [0], [200])
    with pytest.raises(ParameterError, match="a row sees 201"):
        case.run(device, splits=1)
    with pytest.raises(ParameterError, match="splits=4 is not between 1 and the 3 pages"):
        case.run(device, splits=4)
    case.heads = 3
    with pytest.raises(ParameterError, match="3 heads are not a multiple of the cache's 2"):
        case.run(device)
    case.rows[0, 1] = 3
    with pytest.raises(ParameterError, match="outside 3 slots"):
        case.run(device)
    with device.pool() as pool:
        cache = upload(pool, case.k, case.v, case.pages)
        qkv, rows, y = pool.buffer(case.qkv), pool.buffer(case.rows), pool.buffer(4 * 16 * 4)
        with pytest.raises(ParameterError, match=r"needs (576|864) bytes of scratch"):
            record(device.program(), qkv, rows, cache, None, y, count=1, heads=4, qkv_stride=128, y_stride=64, splits=3)
