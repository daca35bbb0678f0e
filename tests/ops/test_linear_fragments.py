"""Products of matrices built in registers. No driver on a CPU has their shape: 32 invocations play a subgroup (EMULATED in
shaders/include/fragments.glsl), so that addresses, unpacking and what follows are those of the product's kernel."""

from dataclasses import replace

import numpy as np
import pytest
from float16_tiles import untiled
from products import CODE_TYPES, error, weights

from labkit.errors import ParameterError
from labkit.ops import coopmat_layout, linear_fragments, rope, rope_kv
from labkit.ops.coopmat_layout import Operands, understand_operands
from labkit.ops.kv_cache import PAGE
from labkit.ops.kv_cache import upload as upload_cache
from labkit.ops.linear import RopeKV, linear, record, reference, upload
from labkit.ops.linear_cuts import Coopmat, MatvecInt8, choose
from labkit.ops.linear_fragments import Fragments, choose_fragments
from labkit.ops.rounding import Rounding, place, scratch_bytes
from labkit.ops.rows import make_rows
from labkit.ops.weights import pack
from labkit.vulkan.hardware import MatrixShape
from labkit.vulkan.isa_machines import device_like

# rows of x; n, which is no multiple of a tile in half of them; k; the cut
CASES = [
    (2, 40, 512, Fragments(1, 1, 1, 1, 1)),
    (5, 96, 576, Fragments(2, 1, 1, 1, 2, pipe=False, paired=True)),
    (8, 72, 1536, Fragments(4, 1, 2, 1, 2, pipe_x=False)),
    (17, 136, 576, Fragments(2, 2, 1, 2, 3, paired=True)),
    (32, 64, 512, Fragments(1, 4, 2, 1, 4, pipe=False, pipe_x=False)),
    (40, 200, 544, Fragments(3, 4, 2, 1, 1, pipe_x=False, paired=True)),
    (64, 96, 1536, Fragments(2, 8, 1, 1, 4, pipe=False)),
]
CASE_IDS = [f"{rows}-{n}x{k}-{c.fr}{c.fc}{c.sr}{c.sc}{c.sk}" for rows, n, k, c in CASES]
# A code times its scale is rounded to float16, half a unit of 11 bits: an NMSE of 2^-22 / 12 to 2^-22 / 3, up to 8e-8. Q4_1
# is rounded before the minimum is added too, by drivers that do not fuse the two: of values up to twice as large.
# Against weights so rounded there is the order of float32 sums alone.
ROUNDED, SAME = {"F16": 1e-8, "Q8_0": 1e-7, "Q4_0": 1e-7, "Q4_1": 4e-7}, 1e-8


def numbers(rows: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    return (rng.standard_normal((rows, k)) * np.exp(rng.standard_normal((rows, 1)))).astype(np.float32)


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float64)


def rounded(blocks: np.ndarray, values: np.ndarray, kind: str) -> list[np.ndarray]:
    """The weights as float16: rounded once, and where there is a minimum, also as without fma."""
    once = half(values)
    if kind != "Q4_1":
        return [once]
    least = np.repeat(blocks.reshape(len(blocks), -1, 20)[..., 2:4].copy().view(np.float16)[..., 0], 32, axis=1)
    return [once, half(half(values - least.astype(np.float32)) + least)]


@pytest.mark.parametrize("kind", ["F16", *CODE_TYPES])
@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_products_match_float64(emulating, kind, case):
    rows, n, k, cut = case
    blocks, values = weights(n, k, kind)
    x = numbers(rows, k)
    got = linear(emulating, x, blocks, kind, cut=cut, exact=False)
    assert error(got, half(x) @ values.astype(np.float64).T) < ROUNDED[kind]
    assert min(error(got, half(x) @ weight.T) for weight in rounded(blocks, values, kind)) < SAME


@pytest.mark.parametrize("epilogue", ["add", "swiglu"])
@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: CASE_IDS[i])
def test_the_residual_and_swiglu_follow(emulating, epilogue, i):
    rows, n, k, cut = CASES[i]
    kind = CODE_TYPES[(i + (epilogue == "add")) % 3]
    blocks, values = weights(n, k, kind)
    x, y = numbers(rows, k), np.random.default_rng(1).standard_normal((rows, n)).astype(np.float32)
    got = linear(
        emulating, x, blocks, kind, epilogue=epilogue, y=y if epilogue == "add" else None, cut=cut, exact=False
    )
    wants = [reference(half(x), weight, epilogue, y) for weight in rounded(blocks, values, kind)]
    assert min(error(got, want) for want in wants) < SAME


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("i", [1, 3, 4, 6], ids=lambda i: CASE_IDS[i])
def test_a_swiglu_is_left_in_the_tiles_that_the_next_product_reads(emulating, order, i):
    rows, _, k, cut = CASES[i]
    kind, n = CODE_TYPES[(i + order) % 3], 96
    blocks, values = weights(n, k, kind)
    x, width = numbers(rows, k) * np.float32(0.1), n // 2  # within float16's range
    with emulating.pool("test") as pool:
        unset = np.full(scratch_bytes(rows, width) // 2, 0x1234, np.uint16)
        tiles = place(pool.buffer(unset), Rounding("float16", order), rows, width)
        program = emulating.program("test")
        record(
            program, upload(pool, pack(blocks, kind, k)), pool.buffer(x), pool.buffer(4), rows=rows, x_stride=k,
            y_stride=width, epilogue="swiglu", cut=cut, scratch=pool.buffer(scratch_bytes(rows, k)), tiled=tiles,
        )  # fmt: skip
        program.run()
        pool.check_guards()
        program.close()
        whole = tiles.data.buffer.download(np.float16)
    end = tiles.data.nbytes // 2
    got = untiled(whole[:end], rows, width, order)
    wants = [reference(half(x), weight, "swiglu") for weight in rounded(blocks, values, kind)]
    assert min(error(got[:rows], want) for want in wants) < 1e-7  # rounded to float16 itself
    assert np.all(got[rows:].view(np.uint16) == 0x1234)
    assert np.all(whole[end:].view(np.uint16) == 0x1234)


@pytest.mark.parametrize("cache_kind", ["f16", "f32"])
@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: CASE_IDS[i])
def test_q_and_k_turn_and_k_and_v_are_stored(emulating, cache_kind, i):
    rows, _, k, cut = CASES[i]
    heads, kv_heads, dim, turned = [(4, 2, 32, 32), (3, 1, 20, 12), (2, 2, 24, 8)][i % 3]
    kind, width, own = CODE_TYPES[(i + (cache_kind == "f32")) % 3], (heads + 2 * kv_heads) * dim, heads * dim
    blocks, values = weights(width, k, kind, 3)
    x, rng = numbers(rows, k), np.random.default_rng(rows)
    pages = rng.permutation(12).reshape(4, 3).astype(np.uint32)
    places, active = rng.permutation(4 * 3 * PAGE)[:rows], np.arange(rows) % 4 != 1
    described = make_rows(np.zeros(rows, int), places // (3 * PAGE), places % (3 * PAGE), active)
    described[~active, 1:3] = 0xFFFFFFF0  # what no one may use
    table = rope.table(3 * PAGE, turned, 1e4)
    unset = np.full((12, kv_heads, PAGE, dim), np.nan, np.float16 if cache_kind == "f16" else np.float32)
    with emulating.pool("test") as pool:
        cache, y = upload_cache(pool, unset, unset, pages), pool.buffer(np.full((rows, width), 7, np.float32))
        source, scratch = pool.buffer(x), pool.buffer(scratch_bytes(rows, k))
        row_words, angles = pool.buffer(described), pool.buffer(table)
        program = emulating.program("test")
        for first, end in [(0, width)] if i % 2 else [(0, own), (own, width)]:
            record(
                program, upload(pool, pack(blocks[first:end], kind, k)), source, y, rows=rows, x_stride=k, y_stride=width,
                y_offset=first, epilogue="rope_kv", cut=cut, scratch=scratch,
                rope=RopeKV(row_words, angles, cache, heads, turned, first),
            )  # fmt: skip
        program.run()
        pool.check_guards()
        program.close()
        got, got_keys, got_values = y.download(np.float32, (rows, width)), *cache.arrays()
    qkv, keys, kept = reference(half(x), values), unset.copy(), unset.copy()
    rope_kv.reference(qkv, described, table, keys, kept, pages, heads=heads, pairing="interleaved")
    limit = ROUNDED[kind] + (1e-7 if cache_kind == "f16" else 0)  # the cache rounds
    assert error(got[active, :own], qkv[active, :own]) < ROUNDED[kind]
    assert np.all(got[~active] == 7)
    assert np.all(got[:, own:] == 7)
    assert error(got_keys, keys) < limit
    assert error(got_values, kept) < limit


@pytest.mark.parametrize("shape", [(16384, 64), (64, 8256), (4112, 64), (64, 64)], ids=str)
@pytest.mark.parametrize("kind", ["F16", *CODE_TYPES])
def test_the_measured_cuts_are_right(emulating, kind, shape):
    n, k = shape
    blocks, values = weights(n, k, kind)
    for rows in (
        (3, 33) if max(n, k) < 8192 else (9,)
    ):  # Mesa 22.3 ends every loop after 65,535 turns of an invocation's
        cut = choose_fragments(emulating, pack(blocks[:1], kind, k).layout, rows, n, k)
        while cut.sk > 1 and cut.shared_bytes + 24 * cut.local > emulating.info.max_shared_bytes:
            cut = replace(cut, sk=cut.sk // 2)  # the emulation's own
        got = linear(emulating, numbers(rows, k), blocks, kind, cut=cut, exact=False)
        assert error(got, half(numbers(rows, k)) @ values.astype(np.float64).T) < ROUNDED[kind]


def mma(lane: int, i: int) -> tuple[int, int]:
    """Row and column of component i of A of mma.m16n8k16 (PTX ISA)."""
    return lane // 4 + i // 2 % 2 * 8, lane % 4 * 2 + i % 2 + i // 4 * 8


def held(swap: int = 0, move: int = 0) -> np.ndarray:
    """What the probe finds where A is as mma's with component i ^ `swap`, and lanes ^ `move`; B as mma's."""
    found = np.full((2, 32, 16), 0xFFFFFFFF, np.uint32)
    for lane in range(32):
        for i in range(8):
            r, c = mma(lane ^ move, i ^ swap)
            found[0, lane, i] = r * 16 + c
        for i in range(4):
            found[1, lane, i] = (lane % 4 * 2 + i % 2 + i // 2 * 8) * 16 + lane // 4
    return found


def test_the_order_of_components_is_asked_of_the_device():
    assert understand_operands(held()) == Operands(0x3120, 0x10)
    assert understand_operands(held(swap=2)) == Operands(0x1302, 0x10)
    assert understand_operands(held(swap=1)) is None  # not in pairs
    assert understand_operands(held(move=1)) is None
    twice = held()
    twice[0, :, 8:] = twice[0, :, :8]  # as some devices hold operands
    assert understand_operands(twice) is None


def test_a_device_with_the_shape_and_order_takes_them_and_no_other(monkeypatch):
    monkeypatch.setenv("LABKIT_DISABLE", "tuned")
    for layout, found, wanted in (
        ("q8", held(), Fragments), ("q4m", held(swap=2), Fragments), ("q4", held(move=1), Coopmat),
        ("q4", None, Coopmat), ("q4k", held(), Coopmat),
    ):  # fmt: skip
        device = device_like("gfx1201")
        if found is not None:
            device.listed_shapes.append(MatrixShape(16, 8, 16, "float16", "float16", "float32"))
            device.answers["fragment_layout"] = lambda found, known=found: np.copyto(
                found.array(np.uint32, known.shape), known
            )
        for rows in (2, 8, 32, 64):
            cut, why = choose(device, layout, rows, 4096, 4096, exact=False, swiglu=False)
            assert isinstance(cut, MatvecInt8 if layout == "q4" and rows == 2 else wanted), (layout, rows, cut)
            if layout == "q4":
                assert ("no 16x8x16 matrices" if found is None else "lie otherwise") in why
        for rows, exact in ((1, False), (65, False), (8, True)):
            assert not isinstance(choose(device, layout, rows, 4096, 4096, exact=exact, swiglu=False)[0], Fragments)
        assert device in coopmat_layout._known_operands or found is None or layout == "q4k"


def test_a_cut_that_does_not_fit_is_refused(device):
    blocks, _ = weights(32, 512, "Q8_0")
    with pytest.raises(ParameterError, match="no kernel of matrices built in registers"):
        linear(device, numbers(2, 512), *(weights(32, 512, "Q4_K")[:1]), "Q4_K", cut=Fragments(1, 1, 1, 1, 1))
    if linear_fragments.fragments_lack(device, "q8", 32, 512):
        with pytest.raises(ParameterError, match=r"is not for .*: the device"):
            linear(device, numbers(2, 512), blocks, "Q8_0", cut=Fragments(1, 1, 1, 1, 1))


def test_a_cut_over_the_devices_limits_is_refused(emulating):
    blocks, _ = weights(32, 512, "Q8_0")
    for cut, why in (
        (Fragments(5, 1, 1, 1, 1), "fr is 1 to 4"),
        (Fragments(1, 64, 1, 1, 16), "bytes of shared memory"),
    ):
        with pytest.raises(ParameterError, match=why):
            linear(emulating, numbers(2, 512), blocks, "Q8_0", cut=cut)
