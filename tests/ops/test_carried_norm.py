"""A norm between two products: the first leaves tiles and squares, the second takes them; nothing runs in between."""

from collections.abc import Callable

import numpy as np
import pytest
from float16_tiles import untiled
from products import coopmat, error, weights

from labkit.errors import ParameterError
from labkit.ops.carried_norm import ROWS, Carried, CarriedState, Carry, as_carried, stride
from labkit.ops.linear import carries, record, upload
from labkit.ops.linear_cuts import Coopmat, Cut, Matvec
from labkit.ops.linear_fragments import Fragments
from labkit.ops.rounding import rounding_for, scratch_bytes
from labkit.ops.weights import pack
from labkit.vulkan.device import Device

WIDTH, EPS = 96, 1e-5
# Both sides take the same rounded numbers as the reference: what is left is the order of float32 sums, and an element of a
# tile that the device's h, a last place away, rounds to the other neighbour: 2^-11 of one in some thousand.
SAME, TILE = 1e-8, 2**-10


def run(
    device: Device, kind: str, rows: int, first: Cut, second: Cut, h: np.ndarray, gain: np.ndarray, turn: int = 0
) -> dict[str, np.ndarray]:
    """y = h + x W^T leaves its norm; z = norm(y) V^T takes it. Also what both were made of."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 64)).astype(np.float32)
    before = (0.5 + rng.random(rows)).astype(np.float32)
    w, w_values = weights(WIDTH, 64, kind)
    v, v_values = weights(48, WIDTH, kind, seed=1)
    with device.pool("carried norm") as pool:
        matrix, reader = upload(pool, pack(w, kind, 64)), upload(pool, pack(v, kind, WIDTH))
        state = CarriedState.make(pool, WIDTH)
        numbers = np.full((2 + WIDTH // 8, stride(rows)), np.nan, np.float32)
        numbers[turn ^ 1, :rows] = before
        state.numbers.upload(numbers)
        source, y = pool.buffer(x), pool.buffer(h)
        z, gains, scratch = pool.buffer(rows * 48 * 4), pool.buffer(gain), pool.buffer(scratch_bytes(rows, WIDTH))
        rounding = rounding_for(second, reader.layout)
        assert rounding is not None
        tiles = state.placed(rounding, rows)
        program = device.program("carried norm")
        record(
            program, matrix, source, y, rows=rows, x_stride=64, y_stride=WIDTH, epilogue="add", exact=False, cut=first,
            scratch=scratch, carry=Carry(state, tiles, gains, turn),
        )  # fmt: skip
        record(
            program, reader, y, z, rows=rows, x_stride=WIDTH, y_stride=48, exact=False, cut=second, scratch=scratch,
            carried=Carried(state, tiles, EPS, turn, keep=True),
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        left = state.tiles.download(np.float16, (tiles.data.nbytes // 2,))
        return {
            "x": x, "w": w_values, "v": v_values, "before": before, "y": y.download(np.float32, (rows, WIDTH)),
            "z": z.download(np.float32, (rows, 48)), "tiles": untiled(left, rows, WIDTH, rounding.order)[:rows],
            "factors": state.numbers.download(np.float32, numbers.shape)[turn],
        }  # fmt: skip


def numbers(rows: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + rows)
    h = (scale * rng.standard_normal((rows, WIDTH))).astype(np.float32)
    return h, (0.2 + rng.random(WIDTH)).astype(np.float32)


def check(got: dict[str, np.ndarray], h: np.ndarray, gain: np.ndarray) -> None:
    y = h + got["x"].astype(np.float16).astype(np.float64) @ got["w"].astype(np.float16).astype(np.float64).T
    assert error(got["y"], y) < 1e-7  # codes times scales are rounded to float16 here, as tests/ops/test_linear*.py say
    held = as_carried(got["y"], gain, got["before"])
    assert np.all(np.abs(got["tiles"] - held) <= TILE * np.abs(held) + 1e-7)
    factors = 1 / np.sqrt((got["y"].astype(np.float64) ** 2).mean(axis=1) + EPS)
    np.testing.assert_allclose(got["factors"][: len(h)], factors, rtol=1e-6)
    normed = got["tiles"].astype(np.float64) * (factors / got["before"])[:, None]
    assert error(got["z"], normed @ got["v"].astype(np.float16).astype(np.float64).T) < SAME
    true = got["y"] * factors[:, None] * gain
    assert error(got["z"], true @ got["v"].astype(np.float64).T) < 1e-6  # float16 activations: 2^-22 / 3, on both sides


PIECES: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [
    (2, (1, 1, 1, 1, 2, 1), (1, 1, 1, 1, 4, 1)),
    (8, (2, 1, 1, 1, 4, 1), (1, 1, 2, 1, 1, 1)),
    (21, (1, 2, 1, 1, 2, 1), (2, 1, 1, 2, 2, 1)),
    (64, (2, 2, 1, 2, 1, 1), (1, 4, 1, 1, 2, 1)),
]


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("case", PIECES, ids=[str(rows) for rows, *_ in PIECES])
def test_products_of_matrices_carry_a_norm(coopmat_device, kind, case):
    rows, first, second = case
    h, gain = numbers(rows)
    cuts = coopmat(coopmat_device, first), coopmat(coopmat_device, second)
    check(run(coopmat_device, kind, rows, *cuts, h, gain, turn=rows % 3 % 2), h, gain)


BUILT = [
    (2, Fragments(1, 1, 1, 1, 1), Fragments(2, 1, 1, 1, 2, paired=True)),
    (8, Fragments(4, 1, 1, 1, 3, paired=True), Fragments(1, 1, 2, 1, 1, pipe=False)),
    (21, Fragments(2, 2, 1, 2, 2), Fragments(3, 4, 1, 1, 1, pipe_x=False)),
    (64, Fragments(2, 8, 1, 1, 2, paired=True), Fragments(1, 4, 1, 2, 1)),
]


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("case", BUILT, ids=[str(rows) for rows, *_ in BUILT])
def test_products_of_matrices_built_in_registers_carry_a_norm(emulating, kind, case):
    rows, first, second = case
    h, gain = numbers(rows)
    check(run(emulating, kind, rows, first, second, h, gain, turn=rows % 3 % 2), h, gain)


def small(device: Device) -> Callable[[int], tuple[Coopmat, Coopmat]]:
    return lambda rows: (coopmat(device, (1, 1, 1, 1, 2, 1)), coopmat(device, (1, 1, 1, 1, 2, 1)))


def test_a_residual_beyond_float16_is_carried_by_the_factor_before(coopmat_device):
    """Activations of 10^6 have squares and tiles in reach where the norm before saw some such; where it did not, the
    greatest are clamped and the result stays finite."""
    h, gain = numbers(4, scale=1e6)
    cuts = small(coopmat_device)(4)
    got = run(coopmat_device, "F16", 4, *cuts, h, gain)
    assert np.abs(h * gain).max() > 65504
    assert np.abs(got["tiles"]).max() == 65504
    assert np.isfinite(got["z"]).all()


def test_a_row_is_carried_alike_whoever_its_neighbours_are(coopmat_device):
    h, gain = numbers(8)
    other = h.copy()
    other[1:] *= 37
    cuts = small(coopmat_device)(8)
    one, two = (run(coopmat_device, "F16", 8, *cuts, values, gain) for values in (h, other))
    for name in ("y", "z", "tiles"):
        np.testing.assert_array_equal(one[name][0], two[name][0])


def test_what_cannot_carry_a_norm_is_refused(coopmat_device):
    matvec, (cut, _) = Matvec(2, 1, 4, 1), small(coopmat_device)(2)
    h, gain = numbers(2)
    with pytest.raises(ParameterError, match="Matvec over 2 rows of 64 carries no norm"):
        run(coopmat_device, "F16", 2, matvec, cut, h, gain)
    blocks, _ = weights(WIDTH, 64, "F16")
    with coopmat_device.pool("test") as pool:
        matrix = upload(pool, pack(blocks, "F16", 64))
        assert carries(cut, matrix, ROWS)
        assert not carries(cut, matrix, ROWS + 1)
