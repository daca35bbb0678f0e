"""Buffers: round trips of odd sizes, the staging path, poison and guards, and memory that is refused or freed."""

import itertools

import numpy as np
import pytest
from tiny_kernels import WRITE, ChangedDriver, hidden_memory, needs_compiler

from labkit.errors import DeviceError, OutOfDeviceMemory, ParameterError
from labkit.vulkan import memory
from labkit.vulkan.device import Device
from labkit.vulkan.kernel import Kernel

pytestmark = pytest.mark.quick
SIZES = [1, 2, 3, 4, 5, 255, 256, 257, 4095, 1_000_003]


@pytest.fixture(params=["seen by the host", "staged"])
def pool(request, device):
    """A pool whose memory the host sees (where the driver shows it), and one whose memory it does not."""
    if request.param == "staged":
        with hidden_memory(device), device.pool(request.param) as made:
            yield made
    else:
        with device.pool(request.param) as made:
            yield made


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_goes_in_comes_out(pool, nbytes):
    content = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = pool.buffer(nbytes)
    assert np.all(buffer.download() == 0xFF), "a buffer is born filled with NaN bits"
    buffer.upload(content)
    np.testing.assert_array_equal(buffer.download(), content)
    part = np.arange(min(nbytes, 100), dtype=np.uint8)
    buffer.upload(part, offset=nbytes - len(part))
    content[nbytes - len(part) :] = part
    np.testing.assert_array_equal(buffer.download(), content)
    pool.check_guards()


@pytest.mark.parametrize("nbytes", SIZES[:-1])
def test_filling_sets_every_byte_and_none_behind(pool, nbytes):
    before, buffer, behind = pool.buffer(64), pool.buffer(nbytes), pool.buffer(64)
    buffer.fill(0x5A)
    assert np.all(buffer.download() == 0x5A)
    assert np.all(before.download() == 0xFF)
    assert np.all(behind.download() == 0xFF)
    pool.check_guards()


def test_pieces_longer_than_the_staging_buffer_arrive_whole(device, monkeypatch):
    monkeypatch.setattr(memory, "STAGING_BYTES", 4096)
    content = np.random.default_rng(0).integers(0, 256, 4096 * 5 + 17, dtype=np.uint8)
    with hidden_memory(device), device.pool() as made:
        np.testing.assert_array_equal(made.buffer(content).download(), content)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint32, np.int64, bool])
def test_arrays_keep_type_shape_and_order(pool, dtype):
    content = (np.arange(3 * 5 * 7).reshape(3, 5, 7) % 2).astype(dtype)
    view = content.transpose(2, 0, 1)[::-1]  # neither contiguous nor in order
    np.testing.assert_array_equal(pool.buffer(view).download(dtype, view.shape), view)


def test_a_new_buffer_reads_as_nan_in_every_float_type(device):
    with device.pool() as pool:
        buffer = pool.buffer(64)
        assert np.all(np.isnan(buffer.download(np.float32)))
        assert np.all(np.isnan(buffer.download(np.float16)))
        assert np.all(np.isnan(buffer.download(np.float64)))


def test_buffers_start_on_256_bytes_and_do_not_overlap(device):
    with device.pool() as pool:
        buffers = [pool.buffer(n) for n in (1, 300, 256, 7, 100_000, 3_000_000, 5)]
        spans = sorted((b.address, b.address + b.nbytes) for b in buffers)
        assert all(start % 256 == 0 for start, _ in spans)
        assert all(end + memory.GUARD <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert pool.nbytes >= sum(b.nbytes for b in buffers)


@needs_compiler
@pytest.mark.parametrize("over", [1, 2, 64])
def test_guards_catch_a_kernel_that_writes_behind_a_buffer(device, over):
    kernel = Kernel(device, WRITE, name="write")
    with device.pool() as pool:
        pool.buffer(100, label="before")
        target = pool.buffer(40, label="target")
        kernel.run(1, y=target, n=10)
        pool.check_guards()  # the last word of the buffer is its own
        kernel.run(1, y=target, n=10 + over)
        with pytest.raises(DeviceError, match=r"a kernel wrote 0 bytes behind the end of <Buffer target: 40 bytes>"):
            pool.check_guards()
    kernel.close()


@pytest.mark.parametrize("size", [0, -1])
def test_a_buffer_of_no_size_is_refused(device, size):
    with device.pool("small") as pool, pytest.raises(ParameterError, match=rf"a buffer of {size} bytes .*\(small\)"):
        pool.buffer(size)


def test_ranges_and_kinds_outside_what_there_is_are_refused(device):
    with device.pool() as pool:
        buffer = pool.buffer(100, label="hundred")
        for offset, nbytes in ((0, 101), (100, 1), (-1, 5), (50, -1)):
            with pytest.raises(ParameterError, match=r"lie outside <Buffer hundred"):
                buffer.range(offset, nbytes)
        with pytest.raises(ParameterError, match=r"lie outside"):
            buffer.upload(np.zeros(30, np.float32))
        with pytest.raises(ParameterError, match=r"256 is not a byte"):
            buffer.fill(256)
        with pytest.raises(ParameterError, match=r"kind 'fast' is not one of device, upload, readback"):
            pool.buffer(4, kind="fast")
        assert (buffer.range(20).nbytes, buffer.range(20, 5).nbytes) == (80, 5)


@pytest.mark.parametrize("kind", ["upload", "readback"])
def test_host_kinds_are_live_views(device, kind):
    with device.pool() as pool:
        buffer = pool.buffer(16, kind=kind)
        buffer.array(np.uint32)[:] = [1, 2, 3, 4]
        assert buffer.download(np.uint32).tolist() == [1, 2, 3, 4]
        assert buffer.array(np.uint32, (2, 2))[1].tolist() == [3, 4]


def test_memory_the_host_does_not_see_has_no_view(device):
    with hidden_memory(device), device.pool() as pool, pytest.raises(DeviceError, match=r"not visible to the host"):
        pool.buffer(16).array(np.uint8)


def test_more_than_one_allocation_may_be_is_refused_in_one_line(device):
    most = device.info.max_allocation_bytes
    with device.pool() as pool:
        with pytest.raises(OutOfDeviceMemory, match=rf"the cache needs \d+ bytes at once; .* at most {most}") as caught:
            pool.buffer(most + 1, label="the cache")
        assert "\n" not in str(caught.value)
        assert pool.nbytes == 0


def test_a_refused_allocation_is_one_line_with_the_size_and_leaves_nothing(monkeypatch):
    with Device(poison=True) as opened:
        real, destroyed = memory.raw.Structs, []

        class Refusing(real):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                super().__init__()
                self.lib = ChangedDriver(
                    self.lib,
                    vkAllocateMemory=lambda *_: -2,
                    vkDestroyBuffer=lambda *a: (destroyed.append(a[1]), opened.lib.vkDestroyBuffer(*a)),
                )

        monkeypatch.setattr(memory.raw, "Structs", Refusing)
        pool = opened.pool("weights")
        with pytest.raises(
            OutOfDeviceMemory, match=r"weights needs \d+ bytes and .* refused them.*: use a sm"
        ) as caught:
            pool.buffer(5000)
        assert "\n" not in str(caught.value)
        assert len(destroyed) == 2  # the block with room to spare, then the block that just fits
        assert (pool.nbytes, pool.buffers) == (0, [])
        monkeypatch.undo()
        assert pool.buffer(5000).nbytes == 5000, "the pool goes on once there is memory"


def test_where_there_is_no_room_to_spare_the_buffer_alone_is_allocated(device, monkeypatch):
    whole = memory.Block.__init__

    def tight(self, where, nbytes, kind, label):
        if nbytes > 10_000:
            raise OutOfDeviceMemory("refused")
        whole(self, where, nbytes, kind, label)

    monkeypatch.setattr(memory.Block, "__init__", tight)
    with device.pool() as pool:
        assert pool.buffer(5000).download().nbytes == 5000
        assert pool.nbytes < 10_000


def test_a_buffer_freed_with_its_pool_is_refused_and_not_read(device):
    with device.pool() as pool:
        buffer = pool.buffer(16, label="gone")
    pool.close()
    for use in (
        buffer.download,
        lambda: buffer.fill(0),
        lambda: buffer.upload(np.zeros(2)),
        lambda: buffer.array("u1"),
    ):
        with pytest.raises(DeviceError, match=r"<Buffer gone: 16 bytes> was freed"):
            use()
    with pytest.raises(DeviceError, match=r"pool unnamed is closed"):
        pool.buffer(4)


def test_buffers_of_their_own_live_until_the_device_closes():
    opened = Device(poison=False)
    buffer = opened.buffer(np.arange(10))
    assert buffer.download(np.int64).tolist() == list(range(10))
    opened.close()
    with pytest.raises(DeviceError, match=r"was freed"):
        buffer.download()


def test_guards_are_asked_for_only_where_there_are_any():
    with Device(poison=False) as opened, opened.pool() as pool:
        pool.buffer(4)
        with pytest.raises(ParameterError, match=r"poison=True"):
            pool.check_guards()


def test_closed_pools_give_their_memory_back(device):
    def held() -> int:
        return sum(pool.nbytes for pool in device._pools)

    before = held()
    for _ in range(50):
        with device.pool() as pool:
            pool.buffer(1_000_000)
    assert held() == before
