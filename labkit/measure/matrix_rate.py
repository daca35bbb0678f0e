"""How fast a device multiplies matrices held in registers: every listed shape in a few cuts, checked, the best kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from labkit.errors import DeviceError, ParameterError
from labkit.measure.roofline import MatrixRate, seconds_of, stamp, warm_up
from labkit.ops.linear_cuts import subgroup_for_coopmat
from labkit.vulkan.device import Device
from labkit.vulkan.hardware import MatrixShape, matrix_shapes
from labkit.vulkan.memory import Buffer, Pool
from labkit.vulkan.program import Program

KINDS = ("float16", "int8", "float32")
# (rows of A, columns of B, subgroups) a workgroup holds
_CUTS = ((2, 2, 4), (2, 4, 4), (4, 2, 4), (4, 4, 4), (2, 4, 8), (1, 4, 8), (1, 8, 4))
_CUTS_CPU = ((2, 2, 1), (2, 4, 1))
# (invocations, chains of 4, whether as fma)
_CHAINS = ((256, 4, True), (256, 8, True), (128, 8, True), (64, 8, True), (256, 4, False))
_CHAINS_CPU = ((8, 2, True), (8, 4, True), (64, 4, True), (8, 2, False), (8, 4, False), (64, 4, False))
_MOST_TURNS_CPU = 60_000  # of a loop: Mesa 22.3's software driver ends every one after 65,535
_GROUPS, _GROUPS_CPU = 2048, 16
_LONG_S = 0.005  # a run at least this long is timed
_LARGEST = 3  # of the elements, so that float32 sums stay exact: 9 k FR FC rounds < 2^24
_MOST_ROUNDS = 1 << 15


@dataclass
class _Trial:
    """A loop ready to run: a program of `rounds`, what it computes, and whether it is right."""

    cut: str
    shape: tuple[int, ...]
    flops_a_round: int
    most: int  # rounds that keep sums exact
    build: Callable[[int], Program]
    check: Callable[[int], bool]


def best_kind(device: Device) -> str:
    """The floating-point kind this device is fastest in: float16 on matrix units where it has them."""
    return "float16" if device.has("fp16", "storage16") and _shapes(device, "float16") else "float32"


def kinds(device: Device) -> list[str]:
    """The kinds that can be measured here."""
    return [kind for kind in KINDS if kind == "float32" or _shapes(device, kind)]


def _shapes(device: Device, kind: str) -> list[MatrixShape]:
    needs, total = {"float16": (("fp16",), "float32"), "int8": (("int8",), "int32")}[kind]
    if not device.has(*needs):
        return []
    return [shape for shape in matrix_shapes(device) if (shape.a, shape.b, shape.c) == (kind, kind, total)]


def measure(device: Device, kind: str, repetitions: int = 7) -> MatrixRate:
    """Measured now. ParameterError for an unknown kind, DeviceError where the device lacks it or computes it wrong."""
    if kind not in KINDS:
        raise ParameterError(f"a matrix rate of {kind!r} is not one of {', '.join(KINDS)}")
    if kind not in kinds(device):
        raise DeviceError(f"{device.name} lists no {kind} matrix product; there are {', '.join(kinds(device))}")
    with device.pool("matrix rate") as pool:
        made = _fused(device, pool) if kind == "float32" else _matrices(device, pool, kind)
        warm_up(device)
        best, found = 0.0, None
        for trial in made:
            program, rounds = _long_enough(device, trial)
            rate = trial.flops_a_round * rounds / seconds_of(program)
            if rate > best:
                if found is not None:
                    found[1].close()
                best, found = rate, (trial, program, rounds)
            else:
                program.close()
        assert found is not None
        trial, program, rounds = found
        rates = np.array([trial.flops_a_round * rounds / seconds_of(program) for _ in range(repetitions)]) / 1e12
        program.close()
    return MatrixRate(
        kind, float(np.median(rates)), float(rates.max()), trial.shape, trial.cut, repetitions, *stamp(device)
    )


def _long_enough(device: Device, trial: _Trial) -> tuple[Program, int]:
    """The trial's program with rounds multiplied until a run takes long enough; its result is checked."""
    rounds = 16
    while True:
        program = trial.build(rounds)
        program.submit().wait()
        seconds = seconds_of(program)
        if seconds >= _LONG_S or rounds * 2 > trial.most:
            if trial.check(rounds):
                return program, rounds
            program.close()
            raise DeviceError(f"{device.name} computes {trial.cut} wrong: do not trust it")
        program.close()
        rounds = min(trial.most, rounds * max(2, min(16, int(_LONG_S / max(seconds, 1e-6)))))


def _matrices(device: Device, pool: Pool, kind: str) -> Iterator[_Trial]:
    subgroup, cpu = subgroup_for_coopmat(device), device.is_cpu
    groups = _GROUPS_CPU if cpu else _GROUPS
    element, variant = (np.float16, "f16") if kind == "float16" else (np.int8, "s8")
    total = np.float32 if kind == "float16" else np.int32
    chance = np.random.default_rng(0)
    for shape in _shapes(device, kind):
        for fr, fc, subgroups in _CUTS_CPU if cpu else _CUTS:
            if subgroup * subgroups > device.info.max_workgroup_invocations:
                continue
            a = chance.integers(-_LARGEST, _LARGEST + 1, (fr, shape.m, shape.k)).astype(element)
            b = chance.integers(-_LARGEST, _LARGEST + 1, (fc, shape.n, shape.k)).astype(element)
            left, right = pool.buffer(a), pool.buffer(b)
            count = groups * subgroups * shape.m * shape.n
            out = pool.buffer(count * 4)
            kernel = device.kernel(
                "matrix_rate", variant,
                {
                    "CM": shape.m, "CN": shape.n, "CK": shape.k, "FR": fr, "FC": fc, "SUBGROUPS": subgroups,
                    "LOCAL": subgroups * subgroup,
                },
                subgroup,
            )  # fmt: skip
            truth = np.einsum("rmk,cnk->mn", a.astype(np.int64), b.astype(np.int64))
            most = min(_MOST_ROUNDS, (1 << 24) // (_LARGEST**2 * shape.k * fr * fc))

            def build(
                rounds: int, kernel: object = kernel, buffers: tuple[Buffer, ...] = (left, right, out)
            ) -> Program:
                x, y, z = buffers
                program = device.program("matrix rate")
                push = {"a": x, "b": y, "y": z, "rounds": rounds}
                program.dispatch(kernel, groups, push, reads=[x, y], writes=[z])  # type: ignore[arg-type]
                return program

            def check(rounds: int, out: Buffer = out, truth: np.ndarray = truth) -> bool:
                return bool((out.download(total).reshape(-1, *truth.shape) == truth * rounds).all())

            yield _Trial(
                f"{kind} {shape.m}x{shape.n}x{shape.k}, {fr}x{fc} a subgroup, {subgroups} subgroups",
                (shape.m, shape.n, shape.k), shape.flops * fr * fc * groups * subgroups, most, build, check,
            )  # fmt: skip


def _fused(device: Device, pool: Pool) -> Iterator[_Trial]:
    groups = _GROUPS_CPU if device.is_cpu else _GROUPS
    limit = _MOST_TURNS_CPU if device.is_cpu else 1 << 24
    for local, chains, fused in _CHAINS_CPU if device.is_cpu else _CHAINS:
        if local > device.info.max_workgroup_invocations:
            continue
        out = pool.buffer(groups * local * 4)
        kernel = device.kernel("fma_rate", "", {"LOCAL": local, "CHAINS": chains, "FUSED": fused})
        start = sum(range(4 * chains))

        def build(rounds: int, kernel: object = kernel, out: Buffer = out) -> Program:
            program = device.program("fma rate")
            push = {"y": out, "scale": 1.0, "step": 1.0, "rounds": rounds}
            program.dispatch(kernel, groups, push, writes=[out])  # type: ignore[arg-type]
            return program

        def check(rounds: int, out: Buffer = out, start: int = start, chains: int = chains) -> bool:
            return bool((out.download(np.float32) == start + 4 * chains * rounds).all())

        yield _Trial(
            f"float32 {'fused multiply-adds' if fused else 'products and sums'}, {chains} chains of 4, {local} invocations", (),
            2 * 4 * chains * local * groups, min((1 << 24) // (4 * chains) - 64, limit), build, check,
        )  # fmt: skip
