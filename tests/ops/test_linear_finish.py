"""What a matrix product takes on behind itself: the rotation with the cache's write, and the rounding that the next product
wants, as one row of int8 or as tiles of float16."""

import itertools

import numpy as np
import pytest
from float16_tiles import untiled
from k_blocks import K_TYPES
from products import CODE_TYPES, EPS, TYPES, coopmat, error, seen_by, weights

from labkit.errors import ParameterError
from labkit.ops import rope, rope_kv
from labkit.ops.kv_cache import PAGE
from labkit.ops.kv_cache import upload as upload_cache
from labkit.ops.linear import Norm, RopeKV, linear, record, reference, upload
from labkit.ops.linear_cuts import Coopmat, Lanes, Matvec, MatvecInt8, MatvecK
from labkit.ops.rounding import Rounding, as_int8, place, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.ops.rows import make_rows
from labkit.ops.weights import pack

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


@pytest.mark.parametrize("i", range(3), ids=lambda i: f"{K_TYPES[i]}-{ROTATED[i]}")
def test_they_do_behind_products_of_k_quants(device, i):
    count, pieces = ROTATED[i]
    case = Attending(K_TYPES[i], SHAPES[i], ["f16", "f32", "f16"][i], count, 768)
    case.check(case.run(device, MatvecK(*pieces), case.parts()[i]), as_int8(case.x), 1e-8)


# rows, and fr, fc, sr, sc, sk, unroll of the cut
MATRIX = [(13, (1, 1, 1, 1, 1, 1)), (29, (2, 2, 1, 1, 2, 1)), (16, (2, 1, 1, 1, 3, 1)), (8, (1, 1, 2, 1, 1, 1))]


@pytest.mark.parametrize("cache", ["f16", "f32"])
@pytest.mark.parametrize("i", range(len(MATRIX)), ids=lambda i: str(MATRIX[i]))
def test_they_do_behind_cooperative_matrices(coopmat_device, cache, i):
    (count, pieces), kind = MATRIX[i], TYPES[i if cache == "f16" else 3 - i]
    case = Attending(kind, SHAPES[i if cache == "f16" else i - 1], cache, count)
    found = case.run(coopmat_device, coopmat(coopmat_device, pieces), case.parts()[i % 3])
    # a code times its scale is rounded to float16 as well
    case.check(found, case.x.astype(np.float16), 1e-8 if kind == "F16" else 2e-6)


# the rounding of what is left, and tiles


def codes_of(whole: np.ndarray, rounded) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes [blocks, 32] and float32 scales [blocks, 2] of a buffer's bytes."""
    parts = (whole[part.offset : part.offset + part.nbytes] for part in (rounded.data, rounded.scales))
    codes, scales = (part.view(kind) for part, kind in zip(parts, (np.int8, np.float32), strict=True))
    return codes.reshape(-1, 32).astype(int), scales.reshape(-1, 2)


# type of the weights; tiles, teams, unroll, pipe and repeat; n (a whole number of workgroups, and not), k; order left
LEFT = [
    ("Q8_0", (1, 4, 1, False, 4), 192, 544, 0), ("Q4_0", (2, 8, 2, True, 2), 256, 544, 1), ("Q4_1", (4, 4, 1, True, 1), 64, 96, 0),
    ("Q4_K", (1, 4, 1, True, 4), 128, 512, 1), ("Q6_K", (2, 4, 1, False, 2), 192, 256, 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "pieces", "n", "k", "order"), LEFT, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_a_swiglu_left_as_int8_is_the_float32_one_rounded_behind_it(device, kind, pieces, n, k, order, normed):
    cut = (MatvecK if kind in K_TYPES else MatvecInt8)(1, *pieces)
    rows, _ = weights(n, k, kind)
    rng = np.random.default_rng(8)
    x, gain = rng.standard_normal((1, k)).astype(np.float32), rng.standard_normal(k).astype(np.float32)
    width, options = n // 2, {"rows": 1, "x_stride": k, "y_stride": n // 2, "epilogue": "swiglu", "cut": cut}
    with device.pool("test") as pool:
        matrix, source, target = upload(pool, pack(rows, kind, k)), pool.buffer(x), pool.buffer(width * 4)
        norm = Norm(pool.buffer(gain), EPS) if normed else None
        inside, behind = (
            place(pool.buffer(scratch_bytes(1, width)), Rounding("int8", order), 1, width) for _ in range(2)
        )
        program = device.program("test")
        record(program, matrix, source, pool.buffer(4), norm=norm, tiled=inside, **options)
        assert len(program.dispatches) == 1
        record(program, matrix, source, target, norm=norm, **options)
        record_rounding(program, target.range(), behind, x_stride=width, label="test")
        program.run()
        pool.check_guards()
        program.close()
        (got, got_scales), (want, want_scales) = (codes_of(r.data.buffer.download(), r) for r in (inside, behind))
    np.testing.assert_allclose(got_scales[:, 0], want_scales[:, 0], rtol=1e-6)
    assert np.abs(got - want).max() <= 1
    assert (got != want).mean() < 0.01  # halves may round to either side
    np.testing.assert_allclose(got_scales[:, 1], got_scales[:, 0] * got.sum(axis=1), rtol=1e-5, atol=1e-6)
    assert np.abs(got).max(axis=1).min() == 127


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
@pytest.mark.parametrize(("count", "pieces"), [(21, (2, 1, 1, 1, 2, 1)), (5, (1, 1, 2, 1, 1, 1))], ids=str)
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
        with pytest.raises(ParameterError, match="Matvec over 2 rows does not leave"):
            record(program, matrix, x, y, epilogue="swiglu", tiled=tiles, **given)
        for cut in (MatvecInt8(1, 1, 4, 1, repeat=2), MatvecInt8(2, 4, 4, 1)):
            with pytest.raises(ParameterError, match="MatvecInt8 over 2 rows does not leave"):
                record(program, matrix, x, y, epilogue="swiglu", tiled=tiles, **given | {"cut": cut})
        given["cut"] = Coopmat(1, 1, 1, 1, 1, 1, 16, 32)
        with pytest.raises(ParameterError, match="not store of 64"):
            record(program, matrix, x, y, tiled=tiles, **given)
        with pytest.raises(ParameterError, match=r"\[2, 32\] are not float16 \[3, 32\]"):
            record(program, matrix, x, y, epilogue="swiglu", tiled=tiles, **given | {"rows": 3})
        narrow = upload(pool, pack(rows[:48], "F16", 64))
        with pytest.raises(ParameterError, match="not swiglu of 24"):
            record(program, narrow, x, y, epilogue="swiglu", tiled=tiles, **given)
        program.close()
