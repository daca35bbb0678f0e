"""What a matrix product takes on before itself: the norm and the rounding of its one row."""

from types import SimpleNamespace

import numpy as np
import pytest
from k_blocks import K_TYPES
from products import CODE_TYPES, EPS, TYPES, error, seen_by, weights

from labkit.ops.linear import Norm, absorbs_norm, linear, record, reference, upload
from labkit.ops.linear_cuts import Matvec, MatvecInt8, MatvecK, rounds_here
from labkit.ops.rows import PADDING
from labkit.ops.weights import pack
from labkit.vulkan.compile import load_spirv
from labkit.vulkan.reflect import reflect

# of matrix products; elementwise where there is an exponential
TOLERANCE = {"store": 1e-8, "add": 1e-8, "swiglu": 1e-7}
# tiles, teams, unroll, pipe and repeat of a cut of one column
PIECES = [
    (1, 4, 1, False, 3), (2, 4, 2, True, 1), (1, 8, 2, False, 1), (2, 8, 1, True, 1), (1, 16, 2, False, 1), (1, 16, 2, True, 1),
    (2, 4, 1, True, 2),
]  # fmt: skip
# n, k, epilogue: whole rounds of K, a tail, less than one round
CASES = [(80, 2048, "store"), (34, 544, "swiglu"), (33, 96, "add")]


def each_kind_and_case(kinds):
    """Every cut meets every type of weights, and every type every shape: a CPU driver takes a second to compile one."""
    return [
        (kind, pieces, *CASES[(i + j) % len(CASES)]) for i, pieces in enumerate(PIECES) for j, kind in enumerate(kinds)
    ]


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


K_PIECES = [(1, 4, 1, False, 3), (2, 4, 1, True, 1)]
K_CASES = [(80, 1024, "store"), (34, 1280, "swiglu"), (33, 256, "add")]


@pytest.mark.parametrize("kind", range(len(K_TYPES)), ids=lambda i: K_TYPES[i])
@pytest.mark.parametrize("pieces", range(len(K_PIECES)), ids=lambda i: str(K_PIECES[i]))
def test_k_quants_norm_and_round_their_row_too(device, kind, pieces):
    check_norm(device, K_TYPES[kind], MatvecK(1, *K_PIECES[pieces]), *K_CASES[(kind + pieces) % 3])


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


@pytest.mark.parametrize("kind", K_TYPES)
def test_a_row_rounded_in_the_product_of_k_quants_is_the_row_rounded_before(device, monkeypatch, kind):
    rows, _ = weights(50, 1280, kind)
    x, cut = np.random.default_rng(2).standard_normal((1, 1280)).astype(np.float32), MatvecK(1, 2, 4, 1, True, 2)
    inside = linear(device, x, rows, kind, cut=cut)
    monkeypatch.setattr("labkit.ops.linear.rounds_here", lambda *_: False)
    assert error(inside, linear(device, x, rows, kind, cut=cut)) < 1e-12


@pytest.mark.parametrize("limit", [16384, 32768, 49152])
@pytest.mark.parametrize(("op", "kind"), [("matvec", "q8"), ("matvec_int8", "q8"), ("matvec_k_int8", "q5k")])
@pytest.mark.parametrize("pieces", [(1, 4, 1, False, 4), (1, 16, 2, False, 1), (2, 16, 1, False, 2)], ids=str)
def test_a_row_is_prepared_inside_only_where_it_fits_in_shared_memory(limit, op, kind, pieces):
    """What the shader itself declares for the longest row allowed, and all else it can do, against the limit."""
    device = SimpleNamespace(info=SimpleNamespace(max_shared_bytes=limit))
    cut = {"matvec": Matvec, "matvec_int8": MatvecInt8, "matvec_k_int8": MatvecK}[op](1, *pieces)
    k = max(k for k in range(32, limit, 32) if absorbs_norm(device, cut, SimpleNamespace(k=k), 1))
    assert not absorbs_norm(device, cut, SimpleNamespace(k=32), 2)
    constants = {
        "COLS": 1, "TILES": cut.tiles, "TEAMS": cut.teams, "UNROLL": cut.unroll, "REPEAT": cut.repeat,
        "LOCAL": 32 * cut.teams,
    }  # fmt: skip
    constants |= {"NORM_WIDTH": k} if op == "matvec" else {"SOURCE_WIDTH": k, "NORM": 1, "OUT": 1}
    taken = reflect(load_spirv(op, kind), op, constants).shared_bytes
    assert limit - 128 < taken <= limit
    assert op == "matvec" or rounds_here(device, cut, 1, k)
