"""A case of the operations bench: what records the operation, what its result must be, and how it is timed."""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import ParameterError
from labkit.measure.roofline import seconds_of
from labkit.models.shapes import AnyModel
from labkit.vulkan.device import Device
from labkit.vulkan.program import Program

ROTATE_BYTES = 512 << 20  # buffers an operation goes through in turn: over four times the largest caches
ROTATE_BYTES_CPU = 8 << 20
MOST_COPIES = 64
SETTLE_S = 0.05  # of the operation itself before it is timed, so that clocks are up
SAMPLE_ROWS = 4  # rows of a result that are compared with the reference


@dataclass(frozen=True)
class Work:
    """What is asked: the model's shapes, on a device, for these numbers of rows and depths of the cache."""

    model: AnyModel
    device: Device
    rows: tuple[int, ...]
    depths: tuple[int, ...]
    arithmetic: str = "fast"

    @property
    def exact(self) -> bool:
        """Whether activations keep float32."""
        return self.arithmetic == "exact"

    def copies(self, nbytes: int) -> int:
        """How many buffers of `nbytes` to go through so that none is still in a cache when its turn comes again."""
        rotate = ROTATE_BYTES_CPU if self.device.is_cpu else ROTATE_BYTES
        return max(2, min(MOST_COPIES, -(-rotate // max(nbytes, 1))))


@dataclass(frozen=True)
class Case:
    """One operation at one shape.

    `record(program, i)` adds it over copy `i` of its buffers (of `copies`); `check()` looks at what a run over copy 0
    left and returns (normalised mean squared error, the most it may be). `flops` and `nbytes` are the least it costs."""

    operation: str
    knobs: dict[str, Any]
    record: Callable[[Program, int], None]
    check: Callable[[], tuple[float, float]]
    copies: int
    flops: float
    nbytes: float

    @property
    def label(self) -> str:
        """As a person reads it."""
        return " ".join([self.operation, *(f"{value}" for value in self.knobs.values())])


@dataclass(frozen=True)
class Timed:
    """What came of a case: seconds of each repetition (one operation), the error and its limit, the kernels and why.

    `start_s`, `end_s`: when it was timed, by `time.perf_counter`."""

    case: Case
    seconds: tuple[float, ...]
    error: float
    limit: float
    kernels: tuple[str, ...]
    why: str
    fingerprint: str
    start_s: float = field(default=0.0, compare=False)
    end_s: float = field(default=0.0, compare=False)

    @property
    def right(self) -> bool:
        """Whether the result was."""
        return self.error <= self.limit


Maker = Callable[[Work], Iterator[Case]]
OPERATIONS: dict[str, Maker] = {}


def operation(name: str) -> Callable[[Maker], Maker]:
    """Register what makes the cases of an operation; its buffers live until the next case is asked for."""

    def register(make: Maker) -> Maker:
        OPERATIONS[name] = make
        return make

    return register


def operations() -> dict[str, Maker]:
    """Every operation that can be benched, by name: one module of this package each, or a few."""
    package = importlib.import_module("labkit.measure.ops_bench")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return OPERATIONS


def chosen(names: Sequence[str]) -> list[str]:
    """The operations called so, all of them for none. ParameterError for an unknown one."""
    known = operations()
    if unknown := [name for name in names if name not in known]:
        raise ParameterError(f"{unknown[0]!r} is not an operation that is benched; there are {', '.join(known)}")
    return list(names) or list(known)


def time_case(device: Device, case: Case, repetitions: int) -> Timed:
    """Check a case, then time it: one program goes through all copies, each waiting for the one before as in a model."""
    once = device.program(f"{case.label} once")
    case.record(once, 0)
    once.submit().wait()
    error, limit = case.check()
    kernels = tuple(dict.fromkeys(_name(d.kernel, d.constants) for d in once.dispatches))
    why = next((d.why for d in reversed(once.dispatches) if d.why), "")
    fingerprint = once.fingerprint
    once.close()
    seconds: list[float] = []
    began = time.perf_counter()
    if error <= limit:
        program = device.program(case.label)
        for i in range(case.copies):
            case.record(program, i)
        end = time.perf_counter() + (0.0 if device.is_cpu else SETTLE_S)
        program.submit().wait()
        while time.perf_counter() < end:
            program.submit().wait()
        began = time.perf_counter()
        seconds = [seconds_of(program) / case.copies for _ in range(repetitions)]
        program.close()
    return Timed(case, tuple(seconds), error, limit, kernels, why, fingerprint, began, time.perf_counter())


def _name(kernel: str, constants: Sequence[tuple[str, Any]]) -> str:
    return f"{kernel}({', '.join(f'{key}={value}' for key, value in constants)})"


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Sum of squared differences over the sum of squares of what is wanted; infinite where `got` is not finite."""
    if not np.isfinite(got).all():
        return float("inf")
    wide = want.astype(np.float64)
    return float(((got.astype(np.float64) - wide) ** 2).sum() / max(float((wide**2).sum()), 1e-300))


def sample_rows(rows: int) -> list[int]:
    """The rows that are compared: the first, the last, and some between."""
    return sorted({round(i * (rows - 1) / max(SAMPLE_ROWS - 1, 1)) for i in range(min(rows, SAMPLE_ROWS))})
