"""The tuner: every cut a matrix product may take on a device, timed as a step runs it, the fastest right one kept."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.errors import LabError, ParameterError
from labkit.measure.ops_bench.cases import Work, nmse
from labkit.measure.ops_bench.matrices import Shape, make_matrices, shapes_of
from labkit.measure.roofline import seconds_of
from labkit.models.shapes import AnyModel
from labkit.ops import linear, linear_int8
from labkit.ops.gemm_cuts import GEMM_LAYOUTS
from labkit.ops.linear_cuts import (
    CODES,
    K_CODES,
    Coopmat,
    Cut,
    Matvec,
    MatvecInt8,
    MatvecK,
    choose,
    subgroup_for_coopmat,
)
from labkit.ops.linear_fragments import Fragments, N, fragments_fit
from labkit.ops.linear_tuned import keep, key_of
from labkit.ops.rounding import Rounding, place, rounding_for, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Pool
from labkit.vulkan.program import Program

REPETITIONS = 3
SETTLE_S, EACH_SETTLE_S = 0.4, 0.003  # of work before the first cut is timed, and before each
ALIKE = 1e-3  # NMSE within which two cuts agree: some round activations to int8
WIDEST = 64  # activation rows tuned for; more are a matter of arithmetic, and have their own choice


@dataclass(frozen=True)
class Tuned:
    """What came of one product: microseconds of the cut taken until now and of the fastest, and how many were tried."""

    key: str
    matrix: str
    cut: Cut
    us: float
    before_us: float
    tried: int


def candidates(device: Device, layout: str, rows: int, n: int, k: int, *, swiglu: bool) -> Iterator[Cut]:
    """The cuts worth timing for `rows` activation rows of a matrix [n, k]."""
    if rows == 1:
        yield from _one_row(device, layout, n, k, leaving=swiglu and layout in (*CODES, *K_CODES))
        return
    if fragments_fit(device, layout, n, k):
        yield from _fragments(layout, rows)
    if layout in CODES:
        yield from _int8(device, layout, rows, n, k)
        return
    size = device.coopmat_size
    if not size or layout not in GEMM_LAYOUTS:
        return
    if layout != "f16":
        yield from _unpacked(device, layout, rows)
        return
    columns = 8 if rows <= 8 and 8 in device.coopmat_columns else size
    fc = -(-rows // columns)
    for fr, sr, sk, unroll, pipe in itertools.product((1, 2, 4), (1, 2), (4, 8, 16), (1, 2, 4), (False, True)):
        if sr * sk <= 16 and 2 <= fr * unroll <= 8 and fr * fc <= 16 and sr * sk * fc * columns * size * 4 <= 48 << 10:
            yield Coopmat(
                fr, fc, sr, 1, sk, unroll, size, subgroup_for_coopmat(device), pipe, columns if columns != size else 0
            )


def _fragments(layout: str, rows: int) -> Iterator[Cut]:
    """Matrices built in registers; float16 weights have no scales that neighbouring rows would share a word of."""
    fc = 1 << (-(-rows // N) - 1).bit_length()
    pairs = (False,) if layout == "f16" else (False, True)
    for fr, sr, sk, pipe, pipe_x, paired in itertools.product(
        (1, 2, 4), (1, 2), (2, 4, 8, 16), (False, True), (False, True), pairs
    ):
        if sr * sk <= 16 and fr * fc <= 16 and (sr == 1 or sk <= 2):
            yield Fragments(fr, fc, sr, 1, sk, pipe, pipe_x, paired)


def _one_row(device: Device, layout: str, n: int, k: int, *, leaving: bool) -> Iterator[Cut]:
    """Mat-vecs; with `leaving` those that leave a SwiGLU as int8 codes, which saves the next product from making them."""
    tiles = -(-n // 16)
    turns = [1, *(turn for turn in (2, 3, 4, 7, 8) if tiles // turn >= 110)]
    kind = Matvec if layout not in (*CODES, *K_CODES) else MatvecK if layout in K_CODES else MatvecInt8
    if kind is not Matvec and (not device.has("intdot") or k % 32):
        return
    for wide, teams, unroll, pipe, repeat in itertools.product((1, 2, 4), (8, 16), (1, 2, 4), (False, True), turns):
        if wide * unroll <= 4 and (wide * repeat % 4 == 0 if leaving else repeat == 1 or wide == 1):
            yield kind(1, wide, teams, unroll, pipe, repeat)


def _unpacked(device: Device, layout: str, rows: int) -> Iterator[Cut]:
    """Cooperative matrices over what linear_coopmat.comp makes float16 in shared memory; and few rows of K-quants by int8."""
    size, fc = device.coopmat_size, -(-rows // device.coopmat_size)
    bytes_each = 768 if layout == "bf16" else 2304  # of a unit of 16 rows
    for fr, sr, sk, unroll in itertools.product((1, 2, 4), (1, 2), (2, 4, 8, 16), (1, 2, 4)):
        shared = sr * sk * (-(-fr * size // 16) * unroll * bytes_each + fc * size * size * 4)
        if sr * sk <= 16 and fr * fc <= 16 and shared <= device.info.max_shared_bytes:
            yield Coopmat(fr, fc, sr, 1, sk, unroll, size, subgroup_for_coopmat(device))
    if layout in K_CODES and rows <= 8 and device.has("intdot"):
        for tiles, teams in itertools.product((1, 2), (8, 16)):
            yield MatvecK(rows, tiles, teams, 1)


def _int8(device: Device, layout: str, rows: int, n: int, k: int) -> Iterator[Cut]:
    if not linear_int8.fits(device, layout, n, k):
        return
    first = linear_int8.choose(device, layout, rows, n, k)
    for fr, sr, sk, group, ahead, ahead_x, pipe in itertools.product(
        (2, 4), (1, 2), (2, 4, 8, 16), (4, 8), (2, 4), (0, 1), (False, True)
    ):
        if sr * sk <= 16 and group <= first.kf and not (ahead == 2 and group == 4):
            yield replace(first, fr=fr, sr=sr, sk=sk, group=group, ahead=ahead, ahead_x=ahead_x, pipe=pipe)


def tune(
    model: AnyModel, device: Device, rows: Sequence[int], *, say: Callable[[str], None] = lambda line: None
) -> list[Tuned]:
    """Time the candidates of every matrix of a layer of `model` for each of `rows`, keep the fastest, and say which.

    The result of each is compared with the default's; a cut that differs is left out. Raises ParameterError on a CPU
    driver, where nothing is tuned, and for rows that programs do not come in.
    """
    if device.is_cpu:
        raise ParameterError(f"{device.name} is a driver on the CPU: only a GPU's cuts are tuned")
    if bad := [r for r in rows if r < 1 or r > WIDEST or r & (r - 1)]:
        raise ParameterError(f"rows={bad[0]} is not a power of two from 1 to {WIDEST}, the widths of decode programs")
    found = []
    work = Work(model, device, tuple(rows), ())
    for shape in shapes_of(model):
        with device.pool(f"tune {shape.name}") as pool:
            matrices, _ = make_matrices(work, pool, shape)
            for count in rows:
                best = _fastest(device, shape, matrices, count)
                if best is not None:
                    found.append(best)
                    say(
                        f"{best.key}  {shape.name}: {best.us:.1f} us, {best.before_us:.1f} before, of {best.tried} cuts: {best.cut}"
                    )
    if found:
        keep(device, {best.key: best.cut for best in found})
    return found


def _fastest(device: Device, shape: Shape, matrices: Sequence[linear.Matrix], rows: int) -> Tuned | None:
    """Every program is built and run once before the first is timed: a GPU that waits for its host slows down."""
    layout, n, k = matrices[0].layout, shape.n, shape.k
    before, _ = choose(device, layout, rows, n, k, exact=False, swiglu=shape.epilogue == "swiglu")
    with device.pool(f"tune {shape.name} x {rows}") as space:
        trial = _Trial(device, shape, matrices, rows, space)
        want: np.ndarray | None = None
        programs: dict[Cut, Program] = {}
        for cut in dict.fromkeys([before, *candidates(device, layout, rows, n, k, swiglu=shape.epilogue == "swiglu")]):
            try:
                got, program = trial.build(cut)
            except LabError:
                continue  # more shared memory or invocations than the device has
            want = got if want is None else want
            if nmse(got, want) <= ALIKE:
                programs[cut] = program
            else:
                program.close()
        if before not in programs:
            return None
        _settle(programs[before], SETTLE_S)
        timed = {}
        for cut, program in programs.items():
            _settle(program, EACH_SETTLE_S)
            timed[cut] = min(seconds_of(program) for _ in range(REPETITIONS)) / len(matrices)
        for program in programs.values():
            program.close()
    fastest = min(timed, key=lambda cut: timed[cut])
    return Tuned(key_of(layout, rows, n, k), shape.name, fastest, timed[fastest] * 1e6, timed[before] * 1e6, len(timed))


def _settle(program: Program, seconds: float) -> None:
    """Run it until clocks are up and its own pipelines are warm."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        program.submit(4).wait()


class _Trial:
    """One product: its activations, and programs of it with one cut or another."""

    def __init__(self, device: Device, shape: Shape, matrices: Sequence[linear.Matrix], rows: int, space: Pool) -> None:
        self.device, self.shape, self.matrices, self.rows = device, shape, matrices, rows
        k = shape.k
        self.x = space.buffer(np.random.default_rng(rows).standard_normal((rows, k), np.float32))
        self.y = space.buffer(rows * shape.n * 4).fill(0)
        self.gain, self.scratch = space.buffer(np.ones(k, np.float32)), space.buffer(scratch_bytes(rows, k))
        self.left = space.buffer(scratch_bytes(rows, shape.n)).fill(0)

    def build(self, cut: Cut) -> tuple[np.ndarray, Program]:
        """The result over the first matrix, and a program over all, each product waiting for the one before."""
        device, shape, rows = self.device, self.shape, self.rows
        swiglu = shape.epilogue == "swiglu"
        width = shape.n // 2 if swiglu else shape.n
        wanted, rounded = rounding_for(cut, self.matrices[0].layout), None
        absorbs = shape.epilogue != "add" and linear.absorbs_norm(device, cut, self.matrices[0], rows)
        if wanted is not None and not absorbs:
            rounded = place(self.scratch, wanted, rows, shape.k)
            first = device.program("rounding")
            record_rounding(first, self.x.range(), rounded, x_stride=shape.k, label=shape.name)
            first.submit().wait()
            first.close()
        layout, tiled = self.matrices[0].layout, None
        codes = Rounding("int8", int(layout != "q8"))
        if swiglu and rows == 1 and linear.leaves(cut, self.matrices[0], rows, codes):
            tiled = place(self.left, codes, rows, width)
        programs = device.program("once"), device.program(f"tune {shape.name}")
        try:
            for program, over in zip(programs, (self.matrices[:1], self.matrices), strict=True):
                for matrix in over:
                    linear.record(
                        program, matrix, self.x, self.y, rows=rows, x_stride=shape.k, y_stride=width,
                        epilogue="swiglu" if swiglu else "store", exact=False, scratch=self.scratch, rounded=rounded,
                        cut=cut, norm=linear.Norm(self.gain, 1e-5) if absorbs else None, tiled=tiled,
                    )  # fmt: skip
            programs[0].submit().wait()
            programs[1].submit().wait()
        except LabError:
            programs[1].close()
            raise
        finally:
            programs[0].close()
        if tiled is not None:
            return self.left.download(np.int8)[:width].astype(np.float32), programs[1]
        got: np.ndarray = self.y.download(np.float32)[: rows * width].copy()
        return got, programs[1]
