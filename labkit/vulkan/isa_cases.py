"""Which kernels the product really runs, with which constants: its own programs recorded on devices by description.

`@recorded` registers a function that records programs on a `RecordingDevice`. A new shader is met by itself where the
engine's programs use it; one that they do not use needs a function here, and a test says so.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import LabError, ParameterError
from labkit.vulkan.isa_machines import MACHINES, device_like
from labkit.vulkan.recording import RecordingDevice, Wanted
from labkit.vulkan.reflect import reflect

if TYPE_CHECKING:
    from labkit.models.shapes import ShapeModel
    from labkit.vulkan.memory import Pool
    from labkit.vulkan.program import Program

SHAPE = "mistral-7b"  # the shape whose programs are recorded: large and small matrices, 32 q heads to 8 of K and V
DECODE_WIDTHS = (1, 2, 4, 8, 16, 32)
PROMPT_ROWS = (64, 128, 512, 2048)
COOPMAT_CAPABILITY = 6022  # CooperativeMatrixKHR

Recorder = Callable[[RecordingDevice], None]
RECORDERS: dict[str, Recorder] = {}


def recorded(function: Recorder) -> Recorder:
    """Register a function that records programs, by its name."""
    RECORDERS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Case:
    """A kernel as a program uses it, its SPIR-V, and what for: "decode 8, q4_0 fast", the first of several."""

    wanted: Wanted
    spirv: bytes
    purposes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Shader and variant."""
        return self.wanted.name

    @property
    def constants(self) -> dict[str, int | float | bool]:
        """Specialisation constants by name."""
        return dict(self.wanted.constants)

    @functools.cached_property
    def needs_coopmat(self) -> bool:
        """Whether the shader uses cooperative matrices."""
        return COOPMAT_CAPABILITY in capabilities(self.spirv)


def capabilities(spirv: bytes) -> set[int]:
    """The capabilities a SPIR-V module declares."""
    words, at, found = np.frombuffer(spirv[: len(spirv) // 4 * 4], "<u4"), 5, set()
    while at < len(words) and int(words[at]) & 0xFFFF == 17:  # OpCapability comes before all else
        found.add(int(words[at + 1]))
        at += max(int(words[at]) >> 16, 1)
    return found


def cases_on(device: RecordingDevice) -> list[Case]:
    """Every kernel the recorders ask of the device, by name, each constants set once."""
    for recorder in RECORDERS.values():
        device.purpose = recorder.__name__.replace("_", " ")
        recorder(device)
    found = [Case(w, device.binaries[w.name], tuple(purposes)) for w, purposes in device.wanted.items()]
    return sorted(found, key=lambda case: (case.name, case.wanted.constants))


def cases_of(kernel: str, device: RecordingDevice) -> list[Case]:
    """The cases of a shader ("matvec") or of one variant ("matvec.q4") on a device. ParameterError where it has none.

    Where this device never runs it, those of another machine that does.
    """
    for found in (cases_on, all_cases):
        cases = found(device)
        if chosen := [case for case in cases if kernel in (case.name, case.wanted.op)]:
            return chosen
    known = sorted({case.wanted.op for case in cases})
    raise ParameterError(f"there is no kernel {kernel!r} among those that run: {', '.join(known)}")


def with_constants(case: Case, **constants: int | float | bool) -> Case:
    """The case with constants changed. ParameterError for one that its shader does not have."""
    known = reflect(case.spirv, case.name).constants
    if unknown := [name for name in constants if name not in known]:
        raise ParameterError(
            f"{case.name} has no specialisation constant {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        )
    changed = tuple(sorted({**case.constants, **constants}.items()))
    return dataclasses.replace(case, wanted=dataclasses.replace(case.wanted, constants=changed))


def all_cases(device: RecordingDevice) -> list[Case]:
    """As `cases_on`, and for shaders that this device never runs, the cases of another machine that does.

    Not of one with matrices of a shape that the compilers here do not know.
    """
    found = cases_on(device)
    for name in (name for name, machine in MACHINES.items() if not machine.narrow):
        have = {case.name for case in found}
        for case in cases_on(device_like(name)):
            if case.name not in have:
                purposes = tuple(f"{name}: {purpose}" for purpose in case.purposes)
                found.append(dataclasses.replace(case, purposes=purposes))
    return sorted(found, key=lambda case: (case.name, case.wanted.constants))


# Recorders


@recorded
def engine(device: RecordingDevice) -> None:
    """Programs of decode steps and prompt chunks, in every quantisation, arithmetic and cache, with and without sampling."""
    from labkit.models.shapes import QUANTS, ShapeModel

    quants = ["f32", *QUANTS]
    settings = [(quant, "fast", "f16") for quant in quants] + [(quant, "exact", "f16") for quant in quants]
    settings += [(quant, arithmetic, "f32") for quant in ("f16", "q8_0") for arithmetic in ("fast", "exact")]
    for quant, arithmetic, kv in settings:
        model = ShapeModel(SHAPE, "f16" if quant == "f32" else quant)
        if quant == "f32":
            _retype(model, "", "F32")
        _programs(device, model, arithmetic, kv, f"{quant} {arithmetic}" + (f", {kv} cache" if kv != "f16" else ""))
    mixed = ShapeModel(SHAPE, "q4_0")
    _retype(mixed, "ffn_up", "Q8_0")
    _programs(device, mixed, "fast", "f16", "q4_0 and q8_0 fast")


@recorded
def architectures(device: RecordingDevice) -> None:
    """What other architectures add to the engine's programs: biases, norms of heads and branches, windows, GELU."""
    from labkit.models.shapes import ShapeModel

    for shape, kv in (("qwen2.5-7b", "f32"), ("qwen3-8b", "f16"), ("gemma-3-4b", "f16")):
        _programs(device, ShapeModel(shape, "q4_0"), "fast", kv, f"{shape} q4_0 fast")


def _retype(model: "ShapeModel", part: str, kind: str) -> None:
    """Give the matrices whose name holds `part` another type."""
    from labkit.models.tensor_types import tensor_type

    for name, tensor in model.tensors.items():
        if part in name and len(tensor.shape) == 2:
            model.tensors[name] = dataclasses.replace(tensor, type=tensor_type(kind))


def _programs(device: RecordingDevice, model: "ShapeModel", arithmetic: str, kv: str, where: str) -> None:
    """Record the programs of one engine, of one layer."""
    from labkit.engine.executor import Executor
    from labkit.engine.random_weights import RandomWeights
    from labkit.engine.scheduler import Step
    from labkit.ops.rows import ACTIVE, PROMPT
    from labkit.vulkan.memory import Buffer

    class Unfilled(RandomWeights):
        """Only the sizes matter."""

        def _fill(self, target: Buffer, kind: str) -> None:
            return

    model.config = dataclasses.replace(model.config, layers=1, windows=model.config.windows[:1])
    executor = Executor(
        model.config,
        Unfilled(model, device),
        device,
        slots=32,
        context=4096,
        kv=kv,
        arithmetic=arithmetic,
        ub=2048,
        stop_ids=[2],
    )

    def prepare(purpose: str, step: Step, top: int = 0, plain: bool = True) -> None:
        device.purpose = f"{purpose}, {where}"
        try:
            executor.prepare(step, top=top, plain=plain)
        except LabError as error:
            device.refused.append(f"{device.purpose}: {error}")
        executor.rows_changed()

    for width in DECODE_WIDTHS:
        for position in (16, 1000):
            rows = np.array([(1, slot, position, ACTIVE, 100) for slot in range(width)], np.uint32)
            prepare(f"decode {width}", Step(rows, tuple(range(width)), True, width))
    prepare(f"decode {width} sampled", Step(rows, tuple(range(width)), True, width), top=5, plain=False)
    for count in PROMPT_ROWS:
        if count <= executor.row_limit(count):
            rows = np.array([(1, 0, position, ACTIVE | PROMPT, 100) for position in range(count)], np.uint32)
            prepare(f"prompt {count}", Step(rows, (count - 1,), False, 0))
    executor.close()


@recorded
def ceilings(device: RecordingDevice) -> None:
    """The streams and loops that measure what a device could do (labkit/measure), and what asks how matrices lie."""
    local, subgroup = (8, 8) if device.is_cpu else (256, 32)
    for unroll in (4, 8):
        device.kernel("read_stream", "", {"LOCAL": local, "UNROLL": unroll})
    device.kernel("fma_rate", "", {"LOCAL": local, "CHAINS": 4, "FUSED": True})
    if size := device.coopmat_size:
        for fr, fc, subgroups in ((2, 2, 4), (4, 4, 4), (1, 8, 4)):
            pieces = {"FR": fr, "FC": fc, "SUBGROUPS": subgroups, "LOCAL": subgroups * subgroup}
            for variant in ("f16", "s8"):
                device.kernel("matrix_rate", variant, {"CM": size, "CN": size, "CK": size, **pieces}, subgroup)
        device.kernel("coopmat_layout", "", {"SIZE": size, "HELD": 16, "SUBGROUP": subgroup}, subgroup)


@recorded
def single_operations(device: RecordingDevice) -> None:
    """Operations that no architecture here uses, or that only notebooks call."""
    from labkit.ops import add, flash_attention
    from labkit.ops.kv_cache import KVCache, cache_bytes

    pool, program = device.pool(), device.program()
    x = pool.buffer(64 * 4096 * 4)
    add.record(program, x, x, count=64, width=4096, x_stride=4096, y_stride=4096)
    if device.coopmat_size:
        heads, kv_heads, head_dim, pages = 32, 8, 128, 8
        for kv in ("f16", "f32"):
            nbytes = cache_bytes(kv, pages, kv_heads, head_dim)
            cache = KVCache(
                kv, pool.buffer(nbytes), pool.buffer(nbytes), pool.buffer(pages * 4), pages, pages, kv_heads, head_dim
            )
            stride = (heads + 2 * kv_heads) * head_dim
            flash_attention.record(
                program, pool.buffer(256 * stride * 4), pool.buffer(64 * 16), cache, pool.buffer(256 * 4096 * 4), count=64,
                rows=256, heads=heads, qkv_stride=stride, y_stride=heads * head_dim,
            )  # fmt: skip


@recorded
def int8_matrices(device: RecordingDevice) -> None:
    """Quantised weights on int8 cooperative matrices, in every epilogue, as single products."""
    from labkit.ops import int8_tiles, linear_int8
    from labkit.ops.linear import Matrix

    pool, program, k = device.pool(), device.program(), 4096
    device.kernel("magic_bias", "", {"LOCAL": 64})  # its conversion of sums alone, which a test asks for
    for layout in linear_int8.LAYOUTS:
        for rows, n in ((8, 4096), (32, 4096), (32, 28672)):
            if not linear_int8.fits(device, layout, n, k):
                continue
            device.purpose = f"int8 matrices, {layout} {rows} rows of {n}"
            matrix, scratch = Matrix(layout, n, k, pool.buffer(n * k), pool.buffer(n * k)), pool.buffer(rows * k * 4)
            order, sums = linear_int8.order_for(layout), layout == "q4m"
            tiles = int8_tiles.place_tiles(scratch, rows, k, order, sums=sums)
            int8_tiles.record(program, pool.buffer(rows * k * 4), tiles, x_stride=k)
            cut = linear_int8.choose(device, layout, rows, n, k)
            y = pool.buffer(rows * n * 4)
            for epilogue in ("store", "add", "swiglu"):
                linear_int8.record(program, matrix, tiles, y, y_stride=n, epilogue=epilogue, cut=cut)
            _leave_int8_tiles(device, program, pool, layout, rows)


def _leave_int8_tiles(device: RecordingDevice, program: "Program", pool: "Pool", layout: str, rows: int) -> None:
    """What leaves the tiles that these products read: a norm, and attention on a device that is no CPU."""
    from labkit.engine.cache import make_cache
    from labkit.models.shapes import SHAPES
    from labkit.ops import attention, rms_norm
    from labkit.ops.rounding import Rounding, place, scratch_bytes

    config = SHAPES["mistral-7b"]
    k, heads = config.hidden, config.heads
    to = place(
        pool.buffer(scratch_bytes(rows, k)), Rounding("int8_tiles", int(layout != "q8"), layout == "q4m"), rows, k
    )
    rms_norm.record_rounded(program, pool.buffer(rows * k * 4), pool.buffer(k * 4), to, eps=1e-5, x_stride=k)
    if device.is_cpu:
        return
    stride = (heads + 2 * config.kv_heads) * config.head_dim
    for kv in ("f16", "f32"):
        cache = make_cache(pool, config, slots=1, context=1024, kv=kv)[0]
        for splits in (1, 8):
            attention.record(
                program, pool.buffer(rows * stride * 4), pool.buffer(rows * 32), cache,
                pool.buffer(attention.partial_bytes(rows, heads, config.head_dim, splits)), to, count=rows, heads=heads,
                qkv_stride=stride, y_stride=k, splits=splits, tickets=pool.buffer(attention.ticket_bytes(rows, heads)),
            )  # fmt: skip
