"""What a matrix product takes on for its neighbours: the norm and the rounding of its row before it, and behind it the
rotation with the cache's write, or the tiles that the next product reads."""

import itertools
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from float16_tiles import untiled

from labkit.errors import ParameterError
from labkit.models.tensor_types import tensor_type
from labkit.ops import rope, rope_kv
from labkit.ops.kv_cache import PAGE
from labkit.ops.kv_cache import upload as upload_cache
from labkit.ops.linear import Norm, RopeKV, absorbs_norm, linear, record, reference, upload
from labkit.ops.linear_cuts import Coopmat, Lanes, Matvec, MatvecInt8, rounds_here, subgroup_for_coopmat
from labkit.ops.rounding import Rounding, as_int8, place, scratch_bytes
from labkit.ops.rows import PADDING, make_rows
from labkit.ops.weights import pack
from labkit.vulkan.compile import load_spirv
from labkit.vulkan.reflect import reflect

TYPES, CODE_TYPES = ["F16", "Q8_0", "Q4_0", "Q4_1"], ["Q8_0", "Q4_0", "Q4_1"]
EPS = 1e-5
# of matrix products; elementwise where there is an exponential
TOLERANCE = {"store": 1e-8, "add": 1e-8, "swiglu": 1e-7}
# tiles, teams, unroll, pipe and repeat of a cut of one column
PIECES = [
    (1, 4, 1, False, 3), (2, 4, 2, True, 1), (1, 8, 2, False, 1), (2, 8, 1, True, 1), (1, 16, 2, False, 1), (1, 16, 4, True, 1),
    (2, 4, 1, True, 2),
]  # fmt: skip
# n, k, epilogue: whole rounds of K, a tail, less than one round
CASES = [(80, 2048, "store"), (34, 544, "swiglu"), (33, 96, "add")]


def each_kind_and_case(kinds):
    """Every cut meets every type of weights, and every type every shape: a CPU driver takes a second to compile one."""
    return [
        (kind, pieces, *CASES[(i + j) % len(CASES)]) for i, pieces in enumerate(PIECES) for j, kind in enumerate(kinds)
    ]


def weights(n: int, k: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random rows [n, k] in the file's blocks, as uint8 [n, bytes], and the values they stand for."""
    data = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    rows = np.ascontiguousarray(gguf.quantize(data, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(n, -1)
    return rows, tensor_type(kind).dequantise(rows)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean squared error; NaN in the same places is equal."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    return float(np.nansum((got - want) ** 2) / np.nansum(want**2))


# the norm and the rounding of one row


def seen_by(cut, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """The row x [k] as the product has it: normed, and rounded before the factor is multiplied where it is rounded."""
    factor = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + EPS)
    return (as_int8((x * gain)[None]) if isinstance(cut, MatvecInt8) else (x * gain)[None]) * factor


def normed_product(device, kind, rows, x, gain, cut, epilogue, *, wanted=None, y=None) -> np.ndarray:
    """One row of x [R, stride], the first or the one wanted, normed inside the product."""
    width = len(rows) // 2 if epilogue == "swiglu" else len(rows)
    with device.pool("test") as pool:
        target = pool.buffer(width * 4)
        if y is not None:
            target.upload(y)
        gathered = None if wanted is None else pool.buffer(np.array([wanted], np.uint32))
        program = device.program("test")
        record(
            program, upload(pool, pack(rows, kind, len(gain))), pool.buffer(x), target, rows=1, x_stride=x.shape[1],
            y_stride=width, epilogue=epilogue, cut=cut, norm=Norm(pool.buffer(gain), EPS, gathered),
        )  # fmt: skip
        assert len(program.dispatches) == 1
        program.run()
        pool.check_guards()
        program.close()
        return target.download(np.float32, (1, width))


def check_norm(device, kind, cut, n, k, epilogue) -> None:
    rng = np.random.default_rng(n)
    rows, values = weights(n, k, kind)
    x = np.full((5, k + 4), np.nan, np.float32)  # NaN between the rows
    x[:, :k] = rng.standard_normal((5, k)) * np.array([[1], [2], [0.3], [30], [1]])
    gain, y = (rng.standard_normal(count).astype(np.float32) for count in (k, n))
    old = y[None] if epilogue == "add" else None
    for wanted in (None, 3):
        want = reference(seen_by(cut, x[wanted or 0, :k], gain), values, epilogue, old)
        got = normed_product(device, kind, rows, x, gain, cut, epilogue, wanted=wanted, y=old)
        assert error(got, want) < TOLERANCE[epilogue]
    x[0] = np.nan  # of no row, nothing: not even of the first
    got = normed_product(device, kind, rows, x, gain, cut, epilogue, wanted=PADDING, y=old)
    assert np.array_equal(got, np.zeros_like(got) if old is None else old)


@pytest.mark.parametrize(("kind", "pieces", "n", "k", "epilogue"), each_kind_and_case(TYPES), ids=str)
def test_a_row_normed_in_the_product_is_the_norm_then_the_product(device, kind, pieces, n, k, epilogue):
    check_norm(device, kind, Matvec(1, *pieces), n, k, epilogue)


@pytest.mark.parametrize(("kind", "pieces", "n", "k", "epilogue"), each_kind_and_case(CODE_TYPES), ids=str)
def test_a_row_normed_and_rounded_in_the_product_is_rounded_before_the_factor(device, kind, pieces, n, k, epilogue):
    check_norm(device, kind, MatvecInt8(1, *pieces), n, k, epilogue)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("k", [4, 20, 100, 1028])
def test_normed_rows_that_are_no_multiple_of_a_block_are_not_read_past_their_end(device, kind, k):
    check_norm(device, kind, Matvec(1, 1, 16, 2, True), 19, k, "store")


@pytest.mark.parametrize("cut", [Matvec(1, 1, 16, 2), MatvecInt8(1, 1, 16, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1e15])
def test_large_and_tiny_rows_are_normed_right(device, cut, scale):
    rows, values = weights(32, 128, "Q8_0")
    x = (scale * np.random.default_rng(1).standard_normal((1, 128))).astype(np.float32)
    gain = np.ones(128, np.float32)
    got = normed_product(device, "Q8_0", rows, x, gain, cut, "store")
    np.testing.assert_allclose(got, reference(seen_by(cut, x[0], gain), values), rtol=1e-4, atol=1e-4 * min(scale, 1))


@pytest.mark.parametrize("kind", CODE_TYPES)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_a_row_rounded_in_the_product_is_the_row_rounded_before(device, monkeypatch, kind, pieces):
    rows, _ = weights(50, 544, kind)
    x = np.random.default_rng(2).standard_normal((1, 544)).astype(np.float32)
    x[0, 64:96], x[0, 96:128] = 0, 1e4  # a block of zeros, and one whose codes are all the highest
    inside = linear(device, x, rows, kind, cut=MatvecInt8(1, *pieces))
    monkeypatch.setattr("labkit.ops.linear.rounds_here", lambda *_: False)
    before = linear(device, x, rows, kind, cut=MatvecInt8(1, *pieces))
    assert error(inside, before) < 1e-12


@pytest.mark.parametrize("limit", [16384, 32768, 49152])
@pytest.mark.parametrize("op", ["matvec", "matvec_int8"])
@pytest.mark.parametrize("pieces", [(1, 4, 1), (1, 16, 2), (2, 16, 1)], ids=str)
def test_a_row_is_prepared_inside_only_where_it_fits_in_shared_memory(limit, op, pieces):
    """What the shader itself declares for the longest row allowed, against the limit."""
    device = SimpleNamespace(info=SimpleNamespace(max_shared_bytes=limit))
    cut = (Matvec if op == "matvec" else MatvecInt8)(1, *pieces)
    k = max(k for k in range(32, limit, 32) if absorbs_norm(device, cut, SimpleNamespace(k=k), 1))
    assert not absorbs_norm(device, cut, SimpleNamespace(k=32), 2)
    own = {"NORM_WIDTH": k} if op == "matvec" else {"SOURCE_WIDTH": k, "NORM": 1}
    constants = {
        "COLS": 1,
        "TILES": cut.tiles,
        "TEAMS": cut.teams,
        "UNROLL": cut.unroll,
        "LOCAL": 32 * cut.teams,
        **own,
    }
    taken = reflect(load_spirv(op, "q8"), op, constants).shared_bytes
    assert limit - 128 < taken <= limit
    assert op == "matvec" or rounds_here(device, cut, 1, k)


# the rotation and the cache's write

SHAPES = [
    (4, 2, 32, 32),
    (3, 1, 20, 12),
    (2, 2, 64, 32),
    (8, 1, 24, 24),
]  # heads, kv heads, head size, dimensions that turn


class Attending:
    """Rows over 4 slots of 3 pages each, scattered, some inactive, and weights of q, k and v; the cache starts as NaN."""

    def __init__(self, kind: str, shape: tuple[int, int, int, int], cache: str, count: int, k: int = 96) -> None:
        rng = np.random.default_rng(count)
        self.kind, (self.heads, self.kv_heads, self.dim, self.turned) = kind, shape
        self.width, self.q = (self.heads + 2 * self.kv_heads) * self.dim, self.heads * self.dim
        self.file_rows, self.values = weights(self.width, k, kind, 3)
        self.x = rng.standard_normal((count, k)).astype(np.float32)
        self.pages = rng.permutation(12).reshape(4, 3).astype(np.uint32)
        places = rng.permutation(4 * 3 * PAGE)[:count]
        active = np.arange(count) % 4 != 1
        self.rows = make_rows(np.zeros(count, int), places // (3 * PAGE), places % (3 * PAGE), active)
        self.rows[~active, 1:3] = 0xFFFFFFF0  # what no one may use
        self.active, self.table = active, rope.table(3 * PAGE, self.turned, 1e4)
        self.cache = np.full((12, self.kv_heads, PAGE, self.dim), np.nan, np.float16 if cache == "f16" else np.float32)

    def run(self, device, cut, cuts_at=(), gain=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """y, keys and values; the rows of q, k and v as several matrices, parted at `cuts_at`."""
        count, k = self.x.shape
        edges = [0, *cuts_at, self.width]
        with device.pool("test") as pool:
            cache = upload_cache(pool, self.cache, self.cache, self.pages)
            y = pool.buffer(np.full((count, self.width), 7, np.float32))
            x, described, angles = pool.buffer(self.x), pool.buffer(self.rows), pool.buffer(self.table)
            scratch = pool.buffer(scratch_bytes(count, k))
            norm = None if gain is None else Norm(pool.buffer(gain), EPS)
            program = device.program("test")
            for first, end in itertools.pairwise(edges):
                matrix = upload(pool, pack(self.file_rows[first:end], self.kind, k))
                rotation = RopeKV(described, angles, cache, self.heads, self.turned, first)
                record(
                    program, matrix, x, y, rows=count, x_stride=k, y_stride=self.width, y_offset=first,
                    epilogue="rope_kv", cut=cut, rope=rotation, scratch=scratch, norm=norm,
                )  # fmt: skip
            program.run()
            pool.check_guards()
            program.close()
            return y.download(np.float32, (count, self.width)), *cache.arrays()

    def check(self, found, seen: np.ndarray, tolerance: float) -> None:
        """`found` of `run` against the product with x as the cut sees it, then rope_kv in NumPy."""
        qkv, keys, values = reference(seen, self.values), self.cache.copy(), self.cache.copy()
        rope_kv.reference(qkv, self.rows, self.table, keys, values, self.pages, heads=self.heads, pairing="interleaved")
        y, got_keys, got_values = found
        assert error(y[self.active, : self.q], qkv[self.active, : self.q]) < tolerance
        assert np.all(y[~self.active] == 7)  # inactive rows touch nothing
        assert np.all(y[:, self.q :] == 7)  # k and v go nowhere but into the cache
        rounding = 1e-7 if self.cache.dtype == np.float16 else 0  # now and then to the other neighbour
        assert error(got_keys, keys) < tolerance + rounding
        assert error(got_values, values) < tolerance + rounding

    def parts(self) -> list[tuple[int, ...]]:
        """q, k and v as one matrix, as three, and as two."""
        return [(), (self.q, self.q + self.kv_heads * self.dim), (self.q + self.kv_heads * self.dim,)]


# rows, and columns, tiles, teams, unroll, pipe and repeat of the cut
ROTATED = [
    (1, (1, 1, 4, 2, False, 2)), (5, (4, 2, 4, 1, False, 1)), (13, (8, 1, 8, 1, True, 1)), (2, (2, 2, 16, 1, False, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=lambda i: str(SHAPES[i]))
@pytest.mark.parametrize("i", range(len(ROTATED)), ids=lambda i: str(ROTATED[i]))
def test_q_and_k_turn_and_k_and_v_are_stored_behind_the_product(device, shape, i):
    count, pieces = ROTATED[i]
    case = Attending([*TYPES, "BF16"][(shape + i) % 5], SHAPES[shape], ["f16", "f32"][(shape + i) % 2], count)
    case.check(case.run(device, Matvec(*pieces), case.parts()[(shape + i) % 3]), case.x, 1e-8)


@pytest.mark.parametrize("cache", ["f16", "f32"])
@pytest.mark.parametrize("i", range(len(ROTATED)), ids=lambda i: str(ROTATED[i]))
def test_they_do_behind_integer_dot_products(device, cache, i):
    count, pieces = ROTATED[i]
    case = Attending(CODE_TYPES[(i + (cache == "f32")) % 3], SHAPES[i if cache == "f16" else 3 - i], cache, count)
    case.check(case.run(device, MatvecInt8(*pieces), case.parts()[i % 3]), as_int8(case.x), 1e-8)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("cut", [Matvec(1, 1, 16, 1), MatvecInt8(1, 2, 8, 2, True)], ids=str)
def test_one_row_is_normed_before_and_turned_behind_the_same_product(device, kind, cut):
    if isinstance(cut, MatvecInt8) and kind == "F16":
        kind = "Q4_1"
    case = Attending(kind, SHAPES[0], "f32", 1, 544)
    gain = np.random.default_rng(5).standard_normal(544).astype(np.float32)
    for parts in case.parts():
        case.check(case.run(device, cut, parts, gain), seen_by(cut, case.x[0], gain), 1e-8)


# rows, and fr, fc, sr, sc, sk, unroll of the cut
MATRIX = [(13, (1, 1, 1, 1, 1, 1)), (29, (2, 2, 1, 1, 2, 1)), (16, (2, 1, 1, 1, 3, 1)), (8, (1, 1, 2, 1, 1, 1))]


def coopmat(device, pieces, columns: int = 0) -> Coopmat:
    return Coopmat(*pieces, size=device.coopmat_size, subgroup=subgroup_for_coopmat(device), columns=columns)


@pytest.mark.parametrize("cache", ["f16", "f32"])
@pytest.mark.parametrize("i", range(len(MATRIX)), ids=lambda i: str(MATRIX[i]))
def test_they_do_behind_cooperative_matrices(coopmat_device, cache, i):
    (count, pieces), kind = MATRIX[i], TYPES[i if cache == "f16" else 3 - i]
    case = Attending(kind, SHAPES[i if cache == "f16" else i - 1], cache, count)
    found = case.run(coopmat_device, coopmat(coopmat_device, pieces), case.parts()[i % 3])
    # a code times its scale is rounded to float16 as well
    case.check(found, case.x.astype(np.float16), 1e-8 if kind == "F16" else 2e-6)


# tiles


def tiles_behind(device, kind, rows, x, cut, order: int) -> np.ndarray:
    """SwiGLU of the product as float16 [rows of whole tiles, n / 2]; 0x1234 where nothing was written."""
    (count, k), width = x.shape, len(rows) // 2
    with device.pool("test") as pool:
        unset = np.full(scratch_bytes(count, width) // 2, 0x1234, np.uint16)
        tiles = place(pool.buffer(unset), Rounding("float16", order), count, width)
        program = device.program("test")
        record(
            program, upload(pool, pack(rows, kind, k)), pool.buffer(x), pool.buffer(4), rows=count, x_stride=k,
            y_stride=width, epilogue="swiglu", cut=cut, scratch=pool.buffer(scratch_bytes(count, k)), tiled=tiles,
        )  # fmt: skip
        program.run()
        pool.check_guards()
        program.close()
        whole = tiles.data.buffer.download(np.float16)
    assert np.all(whole[tiles.data.nbytes // 2 :].view(np.uint16) == 0x1234)
    return untiled(whole[: tiles.data.nbytes // 2], count, width, order)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(("count", "pieces"), [(21, (2, 2, 1, 1, 2, 1)), (5, (1, 1, 2, 1, 1, 1))], ids=str)
def test_a_swiglu_in_tiles_is_the_float32_one_rounded_once(coopmat_device, order, count, pieces):
    kind, cut = TYPES[(order + count) % 4], coopmat(coopmat_device, pieces)
    rows, _ = weights(96, 160, kind)
    x = np.random.default_rng(6).standard_normal((count, 160)).astype(np.float32)
    x[0] *= 1e-3  # small enough for numbers that float16 has no whole precision for
    straight = linear(coopmat_device, x, rows, kind, epilogue="swiglu", cut=cut)
    got = tiles_behind(coopmat_device, kind, rows, x, cut, order)
    assert np.array_equal(got[:count], straight.astype(np.float16))
    assert np.all(got[count:].view(np.uint16) == 0x1234)  # rows that are no one's


@pytest.mark.parametrize("count", [3, 8, 13])
def test_every_width_of_a_matrix_that_the_device_lists_gives_all_of_it(coopmat_device, count):
    """M = K = 16, N = 8 (`columns=8`) is only run where the device lists it: Mesa's software driver has 8x8x8 alone, so
    there this is the square matrix once more."""
    device = coopmat_device
    assert device.coopmat_size in device.coopmat_columns
    case = Attending("F16", SHAPES[0], "f16", count)
    rounded = case.x.astype(np.float16)
    for columns in sorted(device.coopmat_columns):
        cut = coopmat(device, (1, 1, 1, 1, 2, 1), columns)
        assert cut.width == columns
        case.check(case.run(device, cut), rounded, 1e-8)
        got = linear(device, case.x, case.file_rows, "F16", cut=cut)
        assert error(got, reference(rounded, case.values)) < 1e-8
        straight = linear(device, case.x, case.file_rows, "F16", epilogue="swiglu", cut=cut)
        assert error(straight, reference(rounded, case.values, "swiglu")) < 1e-7
        tiles = tiles_behind(device, "F16", case.file_rows, case.x, cut, 0)
        assert np.array_equal(tiles[:count], straight.astype(np.float16))


def test_what_a_cut_cannot_take_on_is_refused_in_one_line(device):
    rows, _ = weights(64, 64, "F16")
    with device.pool("test") as pool:
        x, y, gain = pool.buffer(2 * 64 * 4), pool.buffer(2 * 64 * 4), pool.buffer(64 * 4)
        matrix = upload(pool, pack(rows, "F16", 64))
        tiles = place(pool.buffer(4096), Rounding("float16", 0), 2, 32)
        program = device.program("test")
        given = {"rows": 2, "x_stride": 64, "y_stride": 64, "cut": Matvec(2, 1, 16, 1)}
        with pytest.raises(ParameterError, match="Matvec over 2 rows does not norm"):
            record(program, matrix, x, y, norm=Norm(gain, EPS), **given)
        with pytest.raises(ParameterError, match="Lanes over 1 rows does not norm"):
            record(program, matrix, x, y, norm=Norm(gain, EPS), **given | {"rows": 1, "cut": Lanes(1, 2, 1, 8, False)})
        with pytest.raises(ParameterError, match="rope_kv goes with `rope`"):
            record(program, matrix, x, y, epilogue="rope_kv", **given)
        with pytest.raises(ParameterError, match="Matvec has no rope_kv epilogue and no tiles"):
            record(program, matrix, x, y, epilogue="swiglu", tiled=tiles, **given)
        given["cut"] = Coopmat(1, 1, 1, 1, 1, 1, 16, 32)
        with pytest.raises(ParameterError, match="not store of 64"):
            record(program, matrix, x, y, tiled=tiles, **given)
        with pytest.raises(ParameterError, match=r"\[2, 32\] are not float16 \[3, 32\]"):
            record(program, matrix, x, y, epilogue="swiglu", tiled=tiles, **given | {"rows": 3})
        narrow = upload(pool, pack(rows[:48], "F16", 64))
        with pytest.raises(ParameterError, match="not swiglu of 24"):
            record(program, narrow, x, y, epilogue="swiglu", tiled=tiles, **given)
        program.close()
