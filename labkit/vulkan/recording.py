"""A device that only takes notes: which kernels, with which constants, the operations would run on a device like it.

Programs are recorded against it as against any other, so the cuts are chosen by the product's own code; nothing is
allocated, compiled or run, and no driver is needed.
"""

import collections
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.vulkan.device import Device, DeviceInfo
from labkit.vulkan.kernel import Grid, Kernel
from labkit.vulkan.memory import Block, Buffer, Pool
from labkit.vulkan.program import Program

if TYPE_CHECKING:
    from labkit.vulkan.hardware import MatrixShape

Constants = tuple[tuple[str, int | float | bool], ...]


@dataclass(frozen=True)
class Wanted:
    """A kernel some program asked for: shader, variant, specialisation constants by name, subgroup size (0: any)."""

    op: str
    variant: str
    constants: Constants
    subgroup: int

    @property
    def name(self) -> str:
        """The shader and its variant, as kernels are named."""
        return f"{self.op}.{self.variant}" if self.variant else self.op


class RecordingKernel(Kernel):
    """Checks constants, limits and pushed values like a kernel, and builds no pipeline."""

    def _build(self, spirv: bytes, subgroup: int) -> None:
        self.layout = self.pipeline = None

    def run(self, grid: Grid, **push: Any) -> float:
        """Nothing runs; buffers get what the device is told to answer."""
        self.grid(grid)
        self.pack(push)
        answers: dict[str, Callable[..., None]] = self.device.answers  # type: ignore[attr-defined]
        if self.name in answers:
            answers[self.name](**push)
        return 0.0

    def settle(self) -> bool:
        """Nothing runs."""
        return True

    def close(self) -> None:
        """Nothing to free."""


class RecordingProgram(Program):
    """Keeps the list of dispatches and is never recorded into commands."""

    def record(self, *, profile: bool = False) -> "RecordingProgram":
        """Nothing to record."""
        return self

    def submit(self, times: int = 1) -> Any:
        """Nothing to run, nothing to wait for."""
        return _Done()

    def gpu_seconds(self) -> float:
        """No time passes."""
        return 0.0


class _Done:
    def wait(self) -> None:
        """Done at once."""


class RecordingBlock(Block):
    """An address range without memory."""

    def __init__(self, device: "RecordingDevice", nbytes: int, kind: str, label: str) -> None:
        self.device, self.nbytes, self.kind, self.used, self.closed = device, nbytes, kind, 0, False
        self.address, self.view, self.handle = device.take(nbytes), None, None

    def close(self) -> None:
        """Nothing to free."""
        self.closed = True


class RecordingBuffer(Buffer):
    """A buffer that keeps only what is small and asked for."""

    __slots__ = ("content",)
    content: np.ndarray | None

    def _content(self) -> np.ndarray:
        try:
            kept = self.content
        except AttributeError:
            kept = None
        if kept is None:
            kept = self.content = np.zeros(self.nbytes, np.uint8)
        return kept

    def array(self, dtype: Any, shape: Any = -1) -> np.ndarray:
        """Zeros, or what was written to them."""
        itemsize = np.dtype(dtype).itemsize
        flat: np.ndarray = self._content()[: self.nbytes // itemsize * itemsize].view(dtype)
        if isinstance(shape, int) and shape == -1:
            return flat
        return flat[: int(np.prod(shape))].reshape(shape)

    def download(self, dtype: Any = np.uint8, shape: Any = -1) -> np.ndarray:
        """As `array`."""
        return self.array(dtype, shape).copy()

    def upload(self, content: np.ndarray, offset: int = 0) -> "RecordingBuffer":
        """Nothing is kept."""
        return self

    def fill(self, byte: int) -> "RecordingBuffer":
        """Nothing is kept."""
        return self


class RecordingPool(Pool):
    """Hands out address ranges."""

    def buffer(self, content: Any, *, kind: str = "device", label: str = "") -> RecordingBuffer:
        """A buffer of as many bytes as `content` has."""
        nbytes = int(content) if isinstance(content, int | np.integer) else np.asarray(content).nbytes
        assert isinstance(self.device, RecordingDevice)
        return RecordingBuffer(RecordingBlock(self.device, nbytes, kind, label), 0, nbytes, label)

    def close(self) -> None:
        """Nothing to free."""
        self.closed = True


class RecordingDevice(Device):
    """A device by its description alone. `shapes`: the matrices it multiplies. `wanted`: kernels asked for.

    `answers`: by kernel name, a function of the pushed values that writes what `Kernel.run` would have computed.
    """

    def __init__(self, info: DeviceInfo, shapes: Sequence["MatrixShape"] = ()) -> None:
        self.info, self.poison, self.features = info, False, frozenset(info.features)
        self.lock, self.lost, self.hung, self._closed = threading.RLock(), False, False, False
        self.handle = self.physical = self.queue = self.pipeline_cache = self.command_pool = None
        self.fences: collections.deque[Any] = collections.deque()
        self._kernels: dict[Any, Any] = {}
        self._pools: set[Pool] = set()
        self._made: weakref.WeakSet[Kernel | Program] = weakref.WeakSet()
        self.staging = None
        self.wanted: dict[Wanted, list[str]] = {}  # with what they were asked for: `purpose` at that time
        self.binaries: dict[str, bytes] = {}  # SPIR-V by the kernel's name
        self.purpose = ""
        self.refused: list[str] = []  # what could not be recorded, with its purpose
        self.answers: dict[str, Callable[..., None]] = {}
        self.listed_shapes, self._next = list(shapes), 1 << 32

    def take(self, nbytes: int) -> int:
        """The next free address, aligned to 64 KiB."""
        address, self._next = self._next, self._next + -(-nbytes // 65536) * 65536
        return address

    def pool(self, label: str = "") -> RecordingPool:
        """A pool without memory."""
        return RecordingPool(self, label)

    def program(self, label: str = "") -> RecordingProgram:
        """A program that only lists its dispatches."""
        return RecordingProgram(self, label)

    def kernel(
        self, op: str, variant: str = "", constants: dict[str, int | float | bool] | None = None, subgroup: int = 0
    ) -> RecordingKernel:
        """Note the kernel and check it against its shader and the device's limits."""
        from labkit.vulkan.compile import load_spirv

        wanted = Wanted(op, variant, tuple(sorted((constants or {}).items())), subgroup)
        if wanted not in self._kernels:
            spirv = self.binaries.setdefault(wanted.name, load_spirv(op, variant))
            self._kernels[wanted] = RecordingKernel(
                self, spirv, name=wanted.name, constants=constants, subgroup=subgroup
            )
        purposes = self.wanted.setdefault(wanted, [])
        if self.purpose not in purposes:
            purposes.append(self.purpose)
        kernel: RecordingKernel = self._kernels[wanted]
        return kernel

    def memory_free(self) -> int | None:
        """Unknown, so that nothing is refused."""
        return None

    def close(self) -> None:
        """Nothing to free."""
        self._closed = True

    def _cache_path(self) -> Path:
        raise NotImplementedError("a recording device keeps no pipelines")
