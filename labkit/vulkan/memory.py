"""Device memory: pools that free all their buffers at once, buffers addressed by pointer, and the staging ring."""

from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import DeviceError, OutOfDeviceMemory, ParameterError
from labkit.vulkan import raw

if TYPE_CHECKING:
    from labkit.vulkan.device import Device

ALIGNMENT = 256  # bytes; every buffer starts on it
GUARD = 256  # bytes of guard words behind a buffer of a poisoned device
POISON = 0xFF  # 0xFFFFFFFF is a NaN as float32, 0xFFFF a NaN as float16
STAGING_BYTES = 64 << 20
_FIRST_BLOCK = 1 << 20
_LARGEST_BLOCK = 256 << 20
_USAGE = 0x1 | 0x2 | 0x20 | 0x20000  # transfer source and destination, storage, device address
_DEVICE_LOCAL, _HOST_VISIBLE, _HOST_COHERENT, _HOST_CACHED = 1, 2, 4, 8
# memory property flags to ask for, best first, by kind of buffer
_WANTED = {
    "device": ((_DEVICE_LOCAL,), (0,)),
    "upload": ((_HOST_VISIBLE | _HOST_COHERENT | _DEVICE_LOCAL,), (_HOST_VISIBLE | _HOST_COHERENT,)),
    "readback": ((_HOST_VISIBLE | _HOST_COHERENT | _HOST_CACHED,), (_HOST_VISIBLE | _HOST_COHERENT,)),
}


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return (nbytes + to - 1) // to * to


def _shaped(flat: np.ndarray, shape: Any) -> np.ndarray:
    """The leading elements of `flat` in `shape`; all of them for -1."""
    if isinstance(shape, int) and shape == -1:
        return flat
    out: np.ndarray = flat[: int(np.prod(shape))].reshape(shape)
    return out


class Block:
    """One VkBuffer with its memory: what a pool cuts buffers from."""

    def __init__(self, device: "Device", nbytes: int, kind: str, label: str) -> None:
        self.device, self.nbytes, self.kind, self.used, self.closed = device, nbytes, kind, 0, False
        s = raw.Structs()
        if nbytes > device.info.max_allocation_bytes:
            raise OutOfDeviceMemory(
                f"{label or 'a buffer'} needs {nbytes} bytes at once; {device.name} allocates at most "
                f"{device.info.max_allocation_bytes}: use a smaller context, fewer slots or a smaller model"
            )
        info = s.struct("BufferCreateInfo", "BUFFER_CREATE_INFO", size=nbytes, usage=_USAGE)
        out = s.new("VkBuffer *")
        raw.check(s.lib.vkCreateBuffer(device.handle, info, s.ffi.NULL, out), f"creating a buffer of {nbytes} bytes")
        self.handle = out[0]
        needs = s.new("VkMemoryRequirements *")
        s.lib.vkGetBufferMemoryRequirements(device.handle, self.handle, needs)
        index, self.flags = self._memory_type(needs.memoryTypeBits)
        flags = s.struct("MemoryAllocateFlagsInfo", "MEMORY_ALLOCATE_FLAGS_INFO", flags=2)
        allocate = s.struct(
            "MemoryAllocateInfo", "MEMORY_ALLOCATE_INFO", pNext=flags, allocationSize=needs.size, memoryTypeIndex=index
        )
        memory = s.new("VkDeviceMemory *")
        result = s.lib.vkAllocateMemory(device.handle, allocate, s.ffi.NULL, memory)
        if result < 0:
            s.lib.vkDestroyBuffer(device.handle, self.handle, s.ffi.NULL)
            free = device.memory_free()
            raise OutOfDeviceMemory(
                f"{label or 'a buffer'} needs {nbytes} bytes and {device.name} refused them"
                + (f" ({free} bytes are free)" if free is not None else "")
                + ": use a smaller context, fewer slots or a smaller model, or close other engines"
            )
        self.memory = memory[0]
        raw.check(s.lib.vkBindBufferMemory(device.handle, self.handle, self.memory, 0), "binding memory")
        where = s.struct("BufferDeviceAddressInfo", "BUFFER_DEVICE_ADDRESS_INFO", buffer=self.handle)
        self.address = int(s.lib.vkGetBufferDeviceAddress(device.handle, where))
        self.view: np.ndarray | None = None
        if self.flags & _HOST_VISIBLE and self.flags & _HOST_COHERENT and (kind != "device" or device.is_cpu):
            pointer = s.new("void **")
            raw.check(s.lib.vkMapMemory(device.handle, self.memory, 0, nbytes, 0, pointer), "mapping memory")
            self.view = np.frombuffer(s.ffi.buffer(pointer[0], nbytes), np.uint8)

    def _memory_type(self, allowed: int) -> tuple[int, int]:
        s = raw.Structs()
        memory = s.new("VkPhysicalDeviceMemoryProperties *")
        s.lib.vkGetPhysicalDeviceMemoryProperties(self.device.physical, memory)
        for (flags,) in _WANTED[self.kind]:
            for i in range(memory.memoryTypeCount):
                has = memory.memoryTypes[i].propertyFlags
                if allowed >> i & 1 and has & flags == flags:
                    return i, has
        raise DeviceError(f"{self.device.name} offers no {self.kind} memory")

    def close(self) -> None:
        self.view, self.closed = None, True
        self.device.lib.vkDestroyBuffer(self.device.handle, self.handle, self.device.ffi.NULL)
        self.device.lib.vkFreeMemory(self.device.handle, self.memory, self.device.ffi.NULL)


class Buffer:
    """A range of device memory: `address` is its device pointer, `view` a numpy view where the host sees it."""

    __slots__ = ("address", "block", "label", "nbytes", "offset", "view")

    def __init__(self, block: Block, offset: int, nbytes: int, label: str) -> None:
        self.block, self.offset, self.nbytes, self.label = block, offset, nbytes, label
        self.address = block.address + offset
        self.view = None if block.view is None else block.view[offset : offset + nbytes]

    @property
    def device(self) -> "Device":
        """The device it lives on."""
        return self.block.device

    def alive(self) -> None:
        """Raise DeviceError when the memory was freed: by its pool, or with the device."""
        if self.block.closed:
            raise DeviceError(f"{self!r} was freed when its pool or its device was closed")

    def range(self, offset: int = 0, nbytes: int | None = None) -> "Range":
        """A part of the buffer, for declaring what a dispatch reads or writes."""
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ParameterError(f"bytes {offset} to {offset + nbytes} lie outside {self!r}")
        return Range(self, offset, nbytes)

    def array(self, dtype: Any, shape: Any = -1) -> np.ndarray:
        """A live numpy view (host-visible buffers only) as `dtype`, reshaped; dead once the pool is closed."""
        self.alive()
        if self.view is None:
            raise DeviceError(f"{self!r} is not visible to the host; use download()")
        whole = self.view[: self.nbytes // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize].view(dtype)
        return _shaped(whole, shape)

    def upload(self, content: np.ndarray, offset: int = 0) -> "Buffer":
        """Copy an array into the buffer at a byte offset; goes through the staging ring where memory is not mapped."""
        data = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        self.range(offset, data.nbytes)
        self.alive()
        if self.view is not None:
            self.view[offset : offset + data.nbytes] = data
        elif data.nbytes:
            staging(self.device).write(self, offset, data)
        return self

    def download(self, dtype: Any = np.uint8, shape: Any = -1) -> np.ndarray:
        """A host copy of the buffer as `dtype`, reshaped (shape -1: flat)."""
        self.alive()
        if self.view is not None:
            return self.array(dtype, shape).copy()
        flat = staging(self.device).read(self)
        size = np.dtype(dtype).itemsize
        return _shaped(flat[: flat.nbytes // size * size].view(dtype), shape)

    def fill(self, byte: int) -> "Buffer":
        """Set every byte to `byte` (0 to 255)."""
        if not 0 <= byte <= 255:
            raise ParameterError(f"{byte} is not a byte: 0 to 255")
        self.alive()
        if self.view is not None:
            self.view[:] = byte
        else:
            staging(self.device).fill(self, byte)
        return self

    def __repr__(self) -> str:
        return f"<Buffer {self.label or 'unnamed'}: {self.nbytes} bytes>"


class Range:
    """Bytes `offset` to `offset + nbytes` of a buffer."""

    __slots__ = ("buffer", "end", "offset", "start")

    def __init__(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        self.buffer, self.offset = buffer, offset
        self.start, self.end = buffer.address + offset, buffer.address + offset + nbytes

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start


class Pool:
    """Memory freed as one: buffers are cut from blocks that double in size up to 256 MiB."""

    def __init__(self, device: "Device", label: str = "") -> None:
        self.device, self.label = device, label
        self.blocks: list[Block] = []
        self.buffers: list[Buffer] = []
        self.closed = False

    def buffer(self, content: Any, *, kind: str = "device", label: str = "") -> Buffer:
        """A buffer of `content` bytes (int), or holding the array `content`.

        kind: "device" (fast, may be invisible to the host), "upload" (host writes), "readback" (host reads).
        Raises OutOfDeviceMemory with the size, ParameterError for a size that is not positive.
        """
        if self.closed:
            raise DeviceError(f"the pool {self.label or 'unnamed'} is closed")
        if kind not in _WANTED:
            raise ParameterError(f"buffer kind {kind!r} is not one of {', '.join(_WANTED)}")
        data = None if isinstance(content, int | np.integer) else np.ascontiguousarray(content)
        nbytes = int(content) if data is None else data.nbytes
        if nbytes <= 0:
            raise ParameterError(f"a buffer of {nbytes} bytes was asked for ({label or self.label or 'unnamed'})")
        guard = GUARD if self.device.poison else 0
        need = aligned(nbytes) + guard
        with self.device.lock:
            self.device.alive()
            block = next((b for b in self.blocks if b.kind == kind and b.nbytes - b.used >= need), None)
            if block is None:
                size = min(
                    _LARGEST_BLOCK, self.device.info.max_allocation_bytes, _FIRST_BLOCK << min(len(self.blocks), 8)
                )
                try:
                    block = Block(self.device, max(need, size), kind, label or self.label)
                except OutOfDeviceMemory:
                    if need >= size:
                        raise
                    block = Block(self.device, need, kind, label or self.label)  # no room to spare, but enough
                self.blocks.append(block)
            buffer = Buffer(block, block.used, nbytes, label)
            block.used += need
            self.buffers.append(buffer)
            if guard:
                Buffer(block, buffer.offset, need, label).fill(POISON)
        if data is not None:
            buffer.upload(data)
        return buffer

    @property
    def nbytes(self) -> int:
        """Bytes allocated from the device."""
        return sum(block.nbytes for block in self.blocks)

    def check_guards(self) -> None:
        """Raise DeviceError when a kernel wrote behind a buffer (poisoned devices only)."""
        if not self.device.poison:
            raise ParameterError("guard words exist only on a device opened with poison=True or LABKIT_POISON=1")
        for buffer in self.buffers:
            end = aligned(buffer.nbytes) + GUARD
            tail = Buffer(buffer.block, buffer.offset, end, buffer.label).download()[buffer.nbytes :]
            if not np.all(tail == POISON):
                where = int(np.flatnonzero(tail != POISON)[0])
                raise DeviceError(f"a kernel wrote {where} bytes behind the end of {buffer!r}")

    def close(self) -> None:
        """Free all blocks; its buffers must not be used afterwards. Closing twice is fine."""
        with self.device.lock:
            if self.closed:
                return
            self.closed = True
            if not self.device.settle():
                return
            for block in self.blocks:
                block.close()
            for buffer in self.buffers:
                buffer.view = None
            self.blocks.clear()
            self.buffers.clear()
            self.device.forget(self)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Staging:
    """One reusable host buffer through which data reach memory the host cannot see."""

    def __init__(self, device: "Device") -> None:
        self.device = device
        self.pool = device.pool("staging")
        self.up = Block(device, STAGING_BYTES, "upload", "staging")
        self.down = Block(device, STAGING_BYTES, "readback", "staging")
        self.pool.blocks += [self.up, self.down]

    def _copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        device = self.device
        program = device.program("staging copy")
        program.copy_raw(source, source_offset, target, target_offset, nbytes)
        program.submit().wait()
        program.close()

    def write(self, buffer: Buffer, offset: int, data: np.ndarray) -> None:
        with self.device.lock:
            for start in range(0, data.nbytes, STAGING_BYTES):
                piece = data[start : start + STAGING_BYTES]
                assert self.up.view is not None
                self.up.view[: piece.nbytes] = piece
                self._copy(self.up.handle, 0, buffer.block.handle, buffer.offset + offset + start, piece.nbytes)

    def read(self, buffer: Buffer) -> np.ndarray:
        out = np.empty(buffer.nbytes, np.uint8)
        with self.device.lock:
            for start in range(0, buffer.nbytes, STAGING_BYTES):
                nbytes = min(STAGING_BYTES, buffer.nbytes - start)
                self._copy(buffer.block.handle, buffer.offset + start, self.down.handle, 0, nbytes)
                assert self.down.view is not None
                out[start : start + nbytes] = self.down.view[:nbytes]
        return out

    def fill(self, buffer: Buffer, byte: int) -> None:
        with self.device.lock:
            program = self.device.program("staging fill")
            words = buffer.nbytes // 4 * 4
            if words:
                program.fill_raw(buffer.block.handle, buffer.offset, words, byte * 0x01010101)
                program.submit().wait()
            program.close()
            if words < buffer.nbytes:  # the device fills whole words; what lies behind the buffer is not its to fill
                self.write(buffer, words, np.full(buffer.nbytes - words, byte, np.uint8))


def staging(device: "Device") -> Staging:
    """The device's staging buffers, made on first use."""
    with device.lock:
        if device.staging is None:
            device.staging = Staging(device)
        made: Staging = device.staging
        return made
