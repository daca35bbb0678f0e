"""What a driver's compiler makes of a kernel: registers, spills, shared memory, occupancy, code size, disassembly.

Read from a pipeline of an open device through VK_KHR_pipeline_executable_properties; `isa_null.compile_for` opens such
a device for a card that is not there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import DeviceError, LabError
from labkit.vulkan import raw
from labkit.vulkan.device import Device
from labkit.vulkan.isa_cases import Case
from labkit.vulkan.kernel import Kernel

TARGETS = ("gfx1201", "gfx1151")  # RADV's names of the cards this is made for
COOPMAT_TARGET = "gfx1151"  # Mesa 25.0 offers cooperative matrices there and not yet on gfx1201
NO_COOPMAT = "the driver has no cooperative matrices"
_CAPTURE_STATISTICS, _CAPTURE_TEXT = 0x40, 0x80
_FORMATS = {0: "b32", 1: "i64", 2: "u64", 3: "f64"}
# our name of a statistic -> what drivers call it (RADV; ANV; NVIDIA)
NAMES = {
    "vgprs": ("VGPRs",),
    "sgprs": ("SGPRs",),
    "registers": ("Register Count", "Registers", "Max live registers"),
    "spilled_vgprs": ("Spilled VGPRs", "Spill count"),
    "spilled_sgprs": ("Spilled SGPRs",),
    "scratch_bytes": ("Scratch size", "Scratch Memory Size", "Stack Size"),  # NVIDIA calls every local memory 2^36
    "shared_bytes": ("LDS size", "Shared Memory Size", "Workgroup Memory Size"),
    "occupancy": ("Subgroups per SIMD",),
    "code_bytes": ("Code size", "Code Size", "Binary Size"),
    "instructions": ("Instructions", "Instruction Count"),
    "latency": ("Latency", "Cycle Count"),
    "inverse_throughput": ("Inverse Throughput",),
}


@dataclass(frozen=True)
class Statistics:
    """What a compiler said of one kernel. A number is None where the driver does not give it.

    `occupancy`: subgroups a SIMD unit holds at once. `latency` and `inverse_throughput` are the compiler's own estimates
    in cycles of one subgroup, loops counted as it guesses them: good for comparing versions of one kernel, not for time.
    `raw` holds every statistic under the driver's name; `text` the disassembly where it was asked for.
    """

    kernel: str
    target: str
    constants: dict[str, Any]
    subgroup: int
    numbers: dict[str, float | int | None]
    purposes: tuple[str, ...] = ()
    driver: str = ""
    raw: dict[str, float | int] = field(default_factory=dict)
    text: str = ""
    error: str = ""

    def __getattr__(self, name: str) -> float | int | None:
        if name in NAMES:
            return self.numbers.get(name)
        raise AttributeError(name)

    @property
    def spilled(self) -> int | None:
        """Registers kept in memory for want of room, of either kind; None where the driver does not say."""
        known = [self.numbers[name] for name in ("spilled_vgprs", "spilled_sgprs") if self.numbers[name] is not None]
        return int(sum(n for n in known if n is not None)) if known else None

    @property
    def spills(self) -> bool:
        """Whether anything is kept in scratch memory: spilled registers, or an array that no register can be."""
        return bool(self.spilled or self.numbers["scratch_bytes"])


class MeasuredKernel(Kernel):
    """A kernel whose pipeline keeps its statistics."""

    create_flags = _CAPTURE_STATISTICS


class DumpedKernel(MeasuredKernel):
    """One that keeps its disassembly too."""

    create_flags = _CAPTURE_STATISTICS | _CAPTURE_TEXT


# Reading an open device


def _function(device: Device, name: str) -> Any:
    s = raw.Structs()
    found = s.lib.vkGetDeviceProcAddr(device.handle, s.new("char[]", f"{name}KHR".encode()))
    if found == s.ffi.NULL:
        raise DeviceError(f"{device.name} lists pipeline statistics but has no {name}KHR: its driver is broken")
    return s.ffi.cast(f"PFN_{name}KHR", found)


def _listed(device: Device, name: str, what: Any, kind: str, stype: str) -> Any:
    """The array a two-call query fills, and its length."""
    s, query = raw.Structs(), _function(device, name)
    count = s.ffi.new("uint32_t *")
    raw.check(query(device.handle, what, count, s.ffi.NULL), f"asking for {kind}")
    made = s.ffi.new(f"{kind}[]", max(count[0], 1))
    for i in range(count[0]):
        made[i].sType = raw.constant(stype)
    raw.check(query(device.handle, what, count, made), f"asking for {kind}")
    return made, count[0], query, s


def executables(kernel: Kernel, *, text: bool = False) -> Iterator[dict[str, Any]]:
    """Each executable of a kernel's pipeline: name, subgroup size, statistics by the driver's names, texts by name."""
    device = kernel.device
    s = raw.Structs()
    info = s.struct("PipelineInfoKHR", "PIPELINE_INFO_KHR", pipeline=kernel.pipeline)
    properties, count, _, _ = _listed(
        device, "vkGetPipelineExecutableProperties", info, "VkPipelineExecutablePropertiesKHR",
        "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR",
    )  # fmt: skip
    for index in range(count):
        which = s.struct(
            "PipelineExecutableInfoKHR", "PIPELINE_EXECUTABLE_INFO_KHR", pipeline=kernel.pipeline, executableIndex=index
        )
        found, many, _, _ = _listed(
            device, "vkGetPipelineExecutableStatistics", which, "VkPipelineExecutableStatisticKHR",
            "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR",
        )  # fmt: skip
        numbers = {
            s.ffi.string(found[i].name).decode(): getattr(found[i].value, _FORMATS[found[i].format])
            for i in range(many)
        }
        yield {
            "name": s.ffi.string(properties[index].name).decode(),
            "subgroup": properties[index].subgroupSize,
            "statistics": numbers,
            "texts": _texts(device, which) if text else {},
        }


def _texts(device: Device, which: Any) -> dict[str, str]:
    """The internal representations that are text: the compiler's stages, the last of them the disassembly."""
    made, count, query, s = _listed(
        device, "vkGetPipelineExecutableInternalRepresentations", which, "VkPipelineExecutableInternalRepresentationKHR",
        "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR",
    )  # fmt: skip
    held = []
    for i in range(count):
        held.append(s.ffi.new("char[]", max(made[i].dataSize, 1)))
        made[i].pData = held[-1]
    number = s.ffi.new("uint32_t *", count)
    raw.check(query(device.handle, which, number, made), "asking for the disassembly")
    return {
        s.ffi.string(made[i].name).decode(): s.ffi.string(held[i]).decode(errors="replace")
        for i in range(count)
        if made[i].isText
    }


def numbers_of(found: Mapping[str, float | int]) -> dict[str, float | int | None]:
    """Our names for a driver's statistics; of several that mean one thing the most."""
    made: dict[str, float | int | None] = {}
    for name, known in NAMES.items():
        values = [found[key] for key in known if key in found]
        made[name] = max(values) if values else None
    return made


def read_case(device: Device, case: Case, *, text: bool = False) -> dict[str, Any]:
    """Build a case on an open device and read it: {"subgroup", "statistics", "text"}, or {"error"} in one line."""
    if case.needs_coopmat and not device.has("coopmat"):
        return {"error": NO_COOPMAT}
    try:
        kernel = (DumpedKernel if text else MeasuredKernel)(
            device, case.spirv, name=case.name, constants=case.constants, subgroup=case.wanted.subgroup
        )
        try:
            found = list(executables(kernel, text=text))
        finally:
            kernel.close()
    except LabError as error:
        return {"error": str(error)}
    if not found:
        return {"error": f"the driver made no executable of {case.name}"}
    main = found[0]  # a compute pipeline has one
    disassembly = list(main["texts"].values())[-1] if main["texts"] else ""
    return {"subgroup": main["subgroup"], "statistics": main["statistics"], "text": disassembly}


def from_answer(target: str, driver: str, case: Case, answer: dict[str, Any]) -> Statistics:
    """Statistics of a case from what `read_case` gave."""
    found = answer.get("statistics", {})
    return Statistics(
        case.name, target, case.constants, int(answer.get("subgroup", 0)), numbers_of(found), case.purposes, driver, found,
        answer.get("text", ""), answer.get("error", ""),
    )  # fmt: skip


def require_statistics(device: Device) -> None:
    """Raise DeviceError, with what to do, where a driver gives no statistics: those on the CPU give none."""
    if not device.has("executable_statistics"):
        raise DeviceError(
            f"{device.name} ({device.info.driver_name} {device.info.driver_info}) gives no statistics of its code; "
            f"--target {TARGETS[0]} compiles for an AMD card that need not be here"
        )


def statistics_of(
    device: Device, cases: Sequence[Case], *, text: bool = False, said: Callable[[Statistics], None] | None = None
) -> list[Statistics]:
    """Build each case on an open device and read its statistics; one that does not build has its reason in `error`.

    Raises DeviceError where the driver gives no statistics.
    """
    require_statistics(device)
    driver, made = f"{device.info.driver_name} {device.info.driver_info}", []
    for case in cases:
        one = from_answer(device.name, driver, case, read_case(device, case, text=text))
        made.append(one)
        if said:
            said(one)
    return made
