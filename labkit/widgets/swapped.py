"""An edited shader in an operation's place: the operations bench records, checks and times it as it does the committed one."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.measure.ops_bench.cases import Case, Timed, Work, operations, time_case
from labkit.models.shapes import ShapeModel
from labkit.vulkan.compile import compile_glsl, read_manifest
from labkit.vulkan.device import Device
from labkit.vulkan.kernel import Kernel
from labkit.vulkan.program import Program

ROWS, DEPTHS = (1, 5), (200,)
REPETITIONS = 5
MOST_CASES = 6


@dataclass(frozen=True)
class Tried:
    """One case done with the edited shader, and with the committed one."""

    edited: Timed
    committed: Timed


class Swapped:
    """A device in all but its kernels: those of the shader `op` are built from `source`, with each variant's definitions."""

    def __init__(self, device: Device, op: str, source: str) -> None:
        self.real, self.op, self.source = device, op, source
        self.made: dict[Any, Kernel] = {}
        self._spirv: dict[str, bytes] = {}

    def kernel(
        self, op: str, variant: str = "", constants: Mapping[str, Any] | None = None, subgroup: int = 0
    ) -> Kernel:
        """As `Device.kernel`."""
        if op != self.op:
            return self.real.kernel(op, variant, dict(constants or {}), subgroup)
        name = f"{op}.{variant}" if variant else op
        key = (name, tuple(sorted((constants or {}).items())), subgroup)
        if key not in self.made:
            if name not in self._spirv:
                self._spirv[name] = compile_glsl(self.source, defines=defines_of(name), name=op)
            self.made[key] = Kernel(
                self.real, self._spirv[name], name=name, constants=dict(constants or {}), subgroup=subgroup
            )
        return self.made[key]

    def program(self, label: str = "") -> "Recorder":
        """As `Device.program`."""
        return Recorder(self.real.program(label), self)

    def close(self) -> None:
        """Free the kernels that were made."""
        for kernel in self.made.values():
            kernel.close()
        self.made.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Recorder:
    """A program whose device is another: what is recorded into it takes its kernels from there."""

    def __init__(self, program: Program, device: Swapped) -> None:
        self._program, self.device = program, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def defines_of(name: str) -> list[str]:
    """The definitions that a committed binary was built with; none for one that is not there."""
    entry = read_manifest().get(f"{name}.spv")
    return list(entry["defines"]) if entry is not None else []


def cases_with(swapped: Swapped, shape: str = "", quant: str = "q8_0") -> Iterator[Case]:
    """The bench's cases that run the shader, at the shapes of a model: tiny on a CPU, of 1 B parameters on a GPU."""
    model = ShapeModel(shape or ("tiny" if swapped.real.is_cpu else "llama-3.2-1b"), quant)
    for name in sorted(operations(), key=lambda name: not (name in swapped.op or swapped.op in name)):
        for arithmetic in ("fast", "exact"):
            found = False
            for number, case in enumerate(operations()[name](Work(model, swapped, ROWS, DEPTHS, arithmetic))):  # type: ignore[arg-type]
                probe = swapped.program("probe")
                case.record(probe, 0)  # type: ignore[arg-type]
                uses = any(one.kernel.split(".")[0] == swapped.op for one in probe.dispatches)
                probe.close()
                if uses:
                    found = True
                    yield case
                elif not found and number + 1 == len(ROWS):  # the first shape in each number of rows did not
                    break
            if found:
                return


def trials(swapped: Swapped, shape: str = "") -> Iterator[Tried]:
    """Each case checked against NumPy and timed, with the edited shader and with the committed one."""
    for case in itertools.islice(cases_with(swapped, shape), MOST_CASES):
        edited = time_case(swapped, case, REPETITIONS)  # type: ignore[arg-type]
        yield Tried(edited, time_case(swapped.real, case, REPETITIONS))
