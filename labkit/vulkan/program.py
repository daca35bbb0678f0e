"""A list of dispatches recorded once and replayed: barriers derived from declared ranges, a fingerprint, GPU time."""

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.errors import DeviceError, ParameterError
from labkit.vulkan import raw
from labkit.vulkan.kernel import Grid, Kernel
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.profile import Profile

if TYPE_CHECKING:
    from labkit.vulkan.device import Device

GPU_TIMEOUT_S = 120.0  # a submit that takes longer is reported as hung; programs are cut far below it
# A wait is cut in slices: short in the main thread, where an interrupt must be seen, long elsewhere, since to wake costs
# a tenth of a millisecond of CPU while the caches are full of other work.
_MAIN_SLICE_NS, _OTHER_SLICE_NS = 200_000_000, 2_000_000_000
_FENCES = 16  # submits in flight at most
_SHADER, _TRANSFER, _HOST = 0x800, 0x1000, 0x4000  # pipeline stages
_ALL_ACCESS = 0x20 | 0x40 | 0x800 | 0x1000  # shader read and write, transfer read and write
_HOST_ACCESS = 0x2000


@dataclass(frozen=True)
class Dispatch:
    """One kernel call of a program: what runs, on what, and what it costs at least."""

    label: str
    kernel: str
    constants: tuple[tuple[str, Any], ...]
    grid: tuple[int, int, int]
    reads: tuple[tuple[int, int], ...] = field(repr=False)  # address ranges
    writes: tuple[tuple[int, int], ...] = field(repr=False)
    flops: int = 0
    nbytes: int = 0  # fewest bytes it must move
    why: str = ""  # why this variant and not a faster one
    barrier: bool = False  # whether it waits for earlier dispatches


class Submission:
    """A submit in flight; `wait()` returns when the GPU is done."""

    def __init__(self, device: "Device", fence: Any) -> None:
        self.device, self.fence, self.done = device, fence, False

    def wait(self) -> None:
        """Block until done, in slices so that an interrupt is seen. Raises DeviceError on loss or a hang."""
        if self.done:
            return
        lib, device = self.device.lib, self.device
        main = threading.current_thread() is threading.main_thread()
        patience = min(_MAIN_SLICE_NS if main else _OTHER_SLICE_NS, int(GPU_TIMEOUT_S * 1e9))
        end = time.monotonic() + GPU_TIMEOUT_S
        while True:
            result = lib.vkWaitForFences(device.handle, 1, self.fence, 1, patience)
            if result == 0:
                self.done = True
                return
            if result == raw.DEVICE_LOST:
                device.lost = True
            if result < 0:
                raw.check(result, "waiting for the GPU")
            if time.monotonic() > end:
                device.lost = device.hung = True
                raise DeviceError(
                    f"{device.name} did not finish a submit within {GPU_TIMEOUT_S:.0f} s; restart the process"
                )


def submit(device: "Device", commands: Sequence[Any]) -> Submission:
    """Submit command buffers in order, with one fence behind the last."""
    ffi, lib = device.ffi, device.lib
    with device.lock:
        device.alive()
        fence = _fence(device)
        array = ffi.new("VkCommandBuffer[]", commands)
        info = ffi.new("VkSubmitInfo *")
        info.sType = 4
        info.commandBufferCount = len(commands)
        info.pCommandBuffers = array
        result = lib.vkQueueSubmit(device.queue, 1, info, fence[0])
        if result == raw.DEVICE_LOST:
            device.lost = True
        if result < 0:  # the fence will never be signalled: nobody may wait for it
            device.fences.remove(fence)
            lib.vkDestroyFence(device.handle, fence[0], ffi.NULL)
        raw.check(result, "submitting work")
    return Submission(device, fence)


def _fence(device: "Device") -> Any:
    """The device's fences, longest unused first: 16 of them, each reset before its next use."""
    if len(device.fences) < _FENCES:
        s = raw.Structs()
        made = device.ffi.new("VkFence *")
        info = s.struct("FenceCreateInfo", "FENCE_CREATE_INFO")
        raw.check(device.lib.vkCreateFence(device.handle, info, device.ffi.NULL, made), "creating a fence")
        device.fences.append(made)
        return made
    fence = device.fences.popleft()
    device.fences.append(fence)
    Submission(device, fence).wait()
    device.lib.vkResetFences(device.handle, 1, fence)
    return fence


class Program:
    """Dispatches recorded into one command buffer and replayed by `submit`.

    Add work with `dispatch`, `copy` and `fill`; each declares the ranges it reads and writes, and a barrier is put
    before a dispatch only where its ranges meet an outstanding write (or its writes an outstanding read). A program
    starts and ends with a full barrier, so copies of it can follow one another in one submit.
    """

    def __init__(self, device: "Device", label: str = "") -> None:
        self.device, self.label = device, label
        self.dispatches: list[Dispatch] = []
        self._operations: list[tuple[Any, ...]] = []
        self._outstanding: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._command: Any = None
        self._query: Any = None
        self._stamp_words: Any = None
        self._closed = False

    # building

    def dispatch(
        self,
        kernel: Kernel,
        grid: Grid,
        push: dict[str, Any],
        *,
        reads: Sequence[Buffer | Range] = (),
        writes: Sequence[Buffer | Range] = (),
        label: str = "",
        flops: int = 0,
        nbytes: int = 0,
        why: str = "",
    ) -> None:
        """Add one kernel call. `grid` counts workgroups; `reads` and `writes` are what the kernel touches."""
        size = kernel.grid(grid)
        data = kernel.pack(push)
        read, write = _ranges(reads), _ranges(writes)
        barrier = self._barrier(read, write)
        self.dispatches.append(
            Dispatch(
                label or kernel.name, kernel.name, tuple(sorted(kernel.constants.items())), size, read, write,
                flops, nbytes or sum(b - a for a, b in read + write), why, barrier,
            )
        )  # fmt: skip
        self._operations.append(("dispatch", kernel, size, data))

    def copy(self, source: Buffer | Range, target: Buffer | Range) -> None:
        """Copy `source` into `target` (of the same length)."""
        a, b = _range(source), _range(target)
        if a.nbytes != b.nbytes:
            raise ParameterError(f"copying {a.nbytes} bytes into {b.nbytes}: the lengths must agree")
        self._barrier(((a.start, a.end),), ((b.start, b.end),))
        self.copy_raw(
            a.buffer.block.handle,
            a.buffer.offset + a.offset,
            b.buffer.block.handle,
            b.buffer.offset + b.offset,
            a.nbytes,
        )

    def fill(self, target: Buffer | Range, word: int = 0) -> None:
        """Set every 32-bit word of `target` (a multiple of 4 bytes) to `word`."""
        b = _range(target)
        if b.nbytes % 4 or b.offset % 4:
            raise ParameterError(f"filling {b.nbytes} bytes at {b.offset}: both must be multiples of 4")
        self._barrier((), ((b.start, b.end),))
        self.fill_raw(b.buffer.block.handle, b.buffer.offset + b.offset, b.nbytes, word)

    def copy_raw(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        """Copy between VkBuffers (used by the staging ring)."""
        self._operations.append(("copy", source, target, (source_offset, target_offset, nbytes)))

    def fill_raw(self, target: Any, offset: int, nbytes: int, word: int) -> None:
        """Fill part of a VkBuffer (used by the staging ring)."""
        self._operations.append(("fill", target, offset, nbytes, word))

    def _barrier(self, read: tuple[tuple[int, int], ...], write: tuple[tuple[int, int], ...]) -> bool:
        if self._command is not None or self._closed:
            state = "closed" if self._closed else "recorded"
            raise ParameterError(f"the program {self.label or 'unnamed'} is {state}; make a new one to add to it")
        reads, writes = self._outstanding
        needed = _meet(read, writes) or _meet(write, writes) or _meet(write, reads)
        if needed:
            self._operations.append(("barrier",))
            reads.clear()
            writes.clear()
        reads.extend(read)
        writes.extend(write)
        return needed

    # recording and running

    def record(self, *, profile: bool = False) -> "Program":
        """Record the command buffer now (submit does it if needed); `profile`: a timestamp after each dispatch."""
        if self._command is not None:
            return self
        s, device = raw.Structs(), self.device
        ffi, lib = s.ffi, s.lib
        with device.lock:
            device.alive()
            if self._closed:
                raise DeviceError(f"the program {self.label or 'unnamed'} is closed; record a new one")
            info = s.struct(
                "CommandBufferAllocateInfo", "COMMAND_BUFFER_ALLOCATE_INFO",
                commandPool=device.command_pool, level=0, commandBufferCount=1,
            )  # fmt: skip
            out = ffi.new("VkCommandBuffer *")
            raw.check(lib.vkAllocateCommandBuffers(device.handle, info, out), "allocating a command buffer")
            self._command = out[0]
            stamps = 2 + (len(self.dispatches) if profile else 0)
            if device.info.timestamp_bits:
                query_info = s.struct(
                    "QueryPoolCreateInfo", "QUERY_POOL_CREATE_INFO", queryType=2, queryCount=stamps
                )  # fmt: skip
                query = ffi.new("VkQueryPool *")
                raw.check(lib.vkCreateQueryPool(device.handle, query_info, ffi.NULL, query), "creating timestamps")
                self._query, self._stamps = query[0], stamps
            begin = s.struct("CommandBufferBeginInfo", "COMMAND_BUFFER_BEGIN_INFO", flags=4)  # simultaneous use
            raw.check(lib.vkBeginCommandBuffer(self._command, begin), "recording")
            self._write_commands(s, profile)
            raw.check(lib.vkEndCommandBuffer(self._command), f"recording the program {self.label}")
        return self

    def _write_commands(self, s: raw.Structs, profile: bool) -> None:
        ffi, lib, command = s.ffi, s.lib, self._command
        stage = _SHADER | _TRANSFER
        full = s.struct("MemoryBarrier", "MEMORY_BARRIER", srcAccessMask=_ALL_ACCESS, dstAccessMask=_ALL_ACCESS)
        to_host = s.struct(
            "MemoryBarrier", "MEMORY_BARRIER", srcAccessMask=_ALL_ACCESS, dstAccessMask=_HOST_ACCESS | _ALL_ACCESS
        )

        def barrier(memory: Any, target: int) -> None:
            lib.vkCmdPipelineBarrier(command, stage, target, 0, 1, memory, 0, ffi.NULL, 0, ffi.NULL)

        barrier(full, stage)
        if self._query is not None:
            lib.vkCmdResetQueryPool(command, self._query, 0, self._stamps)
            lib.vkCmdWriteTimestamp(command, 0x1, self._query, 0)
        bound, number = None, 0
        for operation in self._operations:
            if operation[0] == "dispatch":
                _, kernel, (x, y, z), data = operation
                if kernel is not bound:
                    lib.vkCmdBindPipeline(command, 1, kernel.pipeline)
                    bound = kernel
                if data:
                    lib.vkCmdPushConstants(command, kernel.layout, 0x20, 0, len(data), ffi.from_buffer(data))
                lib.vkCmdDispatch(command, x, y, z)
                number += 1
                if profile and self._query is not None:
                    barrier(full, stage)
                    lib.vkCmdWriteTimestamp(command, 0x2000, self._query, 1 + number)
            elif operation[0] == "barrier":
                barrier(full, stage)
            elif operation[0] == "copy":
                _, source, target, region = operation
                lib.vkCmdCopyBuffer(command, source, target, 1, ffi.new("VkBufferCopy *", region))
            else:
                _, target, offset, nbytes, word = operation
                lib.vkCmdFillBuffer(command, target, offset, nbytes, word)
        barrier(to_host, stage | _HOST)
        if self._query is not None:
            lib.vkCmdWriteTimestamp(command, 0x2000, self._query, 1)

    @property
    def command(self) -> Any:
        """The recorded VkCommandBuffer."""
        if self._command is None:
            self.record()
        return self._command

    def submit(self, times: int = 1) -> Submission:
        """Run the program `times` times in one submit. Returns at once; `.wait()` blocks."""
        if times < 1:
            raise ParameterError(f"a program runs at least once, not {times} times")
        return submit(self.device, [self.command] * times)

    def run(self, times: int = 1) -> float:
        """Submit, wait, and return the GPU seconds of the last repetition."""
        self.submit(times).wait()
        return self.gpu_seconds()

    def _timestamps(self) -> list[int]:
        self.device.alive()
        if self._command is None:
            raise DeviceError(f"the program {self.label or 'unnamed'} has not run: there is no time to read")
        if self._query is None:
            raise DeviceError(f"{self.device.name} has no timestamps on its compute queue: use wall time")
        n = self._stamps
        if self._stamp_words is None:
            self._stamp_words = self.device.ffi.new(f"uint64_t[{n}]")
        out = self._stamp_words
        result = self.device.lib.vkGetQueryPoolResults(self.device.handle, self._query, 0, n, 8 * n, out, 8, 1)
        raw.check(result, "reading timestamps")
        if result == raw.NOT_READY:
            raise DeviceError(f"the program {self.label or 'unnamed'} has not finished a run: there is no time to read")
        mask = (1 << self.device.info.timestamp_bits) - 1
        return [int(out[i]) & mask for i in range(n)]

    def gpu_seconds(self) -> float:
        """GPU time of the last finished repetition, by two timestamps, in seconds. Raises DeviceError without them."""
        stamps = self._timestamps()
        mask = (1 << self.device.info.timestamp_bits) - 1
        return ((stamps[1] - stamps[0]) & mask) * self.device.info.timestamp_period_ns * 1e-9

    def profile(self, repeats: int = 3) -> Profile:
        """(dispatch, GPU seconds) of each dispatch, the least of `repeats`, with a barrier after each.

        Serialising inflates the sum a little; use it for shares, and `gpu_seconds` for the whole.
        """
        twin = Program(self.device, f"{self.label} profile")
        twin.dispatches, twin._operations = self.dispatches, self._operations
        twin.record(profile=True)
        best = [float("inf")] * len(self.dispatches)
        period = self.device.info.timestamp_period_ns * 1e-9
        for _ in range(repeats):
            twin.submit().wait()
            stamps = twin._timestamps()
            edges = [stamps[0], *stamps[2:]]
            best = [min(b, (y - x) * period) for b, x, y in zip(best, edges[:-1], edges[1:], strict=True)]
        twin.close()
        return Profile(self.device, zip(self.dispatches, best, strict=True))

    # what it is

    @property
    def fingerprint(self) -> str:
        """A hash of the executed plan: kernels, constants, grids, pushed values, barriers, sizes; no addresses."""
        digest, dispatches = hashlib.sha256(), iter(self.dispatches)
        for operation in self._operations:
            said: tuple[Any, ...] = operation[:1]
            if operation[0] == "dispatch":
                d = next(dispatches)
                sizes = [b - a for a, b in d.reads], [b - a for a, b in d.writes]
                said = (d.label, d.kernel, d.constants, d.grid, sizes, operation[1].plain(operation[3]))
            elif operation[0] == "copy":
                said = ("copy", operation[3][2])
            elif operation[0] == "fill":
                said = ("fill", *operation[3:])
            digest.update(repr(said).encode())
        return digest.hexdigest()[:16]

    @property
    def flops(self) -> int:
        """FLOPs of one run, as declared."""
        return sum(d.flops for d in self.dispatches)

    @property
    def nbytes(self) -> int:
        """Fewest bytes one run must move, as declared."""
        return sum(d.nbytes for d in self.dispatches)

    def close(self) -> None:
        """Free the recording; the caller has waited for its submissions. Closing twice is fine."""
        if self._closed or self.device.closed:
            return
        self._closed = True
        with self.device.lock:
            if self._command is not None:
                array = self.device.ffi.new("VkCommandBuffer[]", [self._command])
                self.device.lib.vkFreeCommandBuffers(self.device.handle, self.device.command_pool, 1, array)
            if self._query is not None:
                self.device.lib.vkDestroyQueryPool(self.device.handle, self._query, self.device.ffi.NULL)
            self._command = self._query = None

    def __repr__(self) -> str:
        waits = sum(d.barrier for d in self.dispatches)
        name = self.label or "unnamed"
        return f"<Program {name}: {len(self.dispatches)} dispatches, {waits} barriers, {self.fingerprint}>"

    def _repr_html_(self) -> str:
        from labkit.show.step import program_html

        return program_html(self)


def _range(item: Buffer | Range) -> Range:
    return item.range() if isinstance(item, Buffer) else item


def _ranges(items: Sequence[Buffer | Range]) -> tuple[tuple[int, int], ...]:
    return tuple((r.start, r.end) for r in map(_range, items))


def _meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
