"""The device's own ceilings, measured once with checked kernels and kept with the driver's version."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from labkit.errors import DeviceError
from labkit.vulkan.device import Device

CACHE_FACTOR = 4  # the stream reads over this many times the last-level cache
_GPU_STREAM_BYTES = 1 << 30
_LEAST_STREAM_BYTES = 256 << 20


@dataclass(frozen=True)
class ReadBandwidth:
    """Measured bandwidth of a stream of reads. `gb_s`: the median repetition (10^9 bytes a second)."""

    gb_s: float
    best_gb_s: float
    nbytes: int
    repetitions: int
    device: str
    driver: str
    utc: str


def last_level_cache_bytes() -> int | None:
    """Bytes of the CPU's largest cache, as Linux tells it, or None."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes, default=None)


def stream_bytes(device: Device) -> int:
    """Bytes to stream: over 4 times the last-level cache, 1 GiB on a GPU (4 times the largest L2 made so far)."""
    if not device.is_cpu:
        return min(_GPU_STREAM_BYTES, device.info.max_allocation_bytes // 2)
    cache = last_level_cache_bytes() or (64 << 20)
    return max(_LEAST_STREAM_BYTES, 1 << (CACHE_FACTOR * cache - 1).bit_length())


def _path(device: Device) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "ceilings"
    return root / f"{device.info.uuid}-{device.info.driver_version:08x}.json"


def read_bandwidth(device: Device, *, repetitions: int = 7, fresh: bool = False) -> ReadBandwidth:
    """The device's read bandwidth, from the kept measurement or (first time, or `fresh`) measured now.

    The kernel's checksum is compared with NumPy's before a time is believed; raises DeviceError when they differ.
    """
    path = _path(device)
    if not fresh:
        try:
            return ReadBandwidth(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            pass  # not measured yet on this device and driver
    measured = _measure(device, repetitions)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps(asdict(measured), indent=1))
        aside.replace(path)
    except OSError:
        pass  # a read-only home: measured again next time
    return measured


def _measure(device: Device, repetitions: int) -> ReadBandwidth:
    local = 64 if device.is_cpu else 256
    groups = 64 if device.is_cpu else 4096
    unroll = 4
    step = 16 * local * groups * unroll
    nbytes = max(1, stream_bytes(device) // step) * step
    data = np.random.default_rng(0).integers(0, 1 << 32, nbytes // 4, dtype=np.uint32)
    with device.pool("read stream") as pool:
        x = pool.buffer(data, label="stream")
        sums = pool.buffer(groups * 4, label="checksums")
        kernel = device.kernel("read_stream", "", {"LOCAL": local, "UNROLL": unroll})
        program = device.program("read stream")
        push = {"x": x, "sums": sums, "count": nbytes // 16}
        program.dispatch(kernel, groups, push, reads=[x], writes=[sums], nbytes=nbytes)
        program.run()
        got = int(sums.download(np.uint32).sum(dtype=np.uint64)) & 0xFFFFFFFF
        want = int(data.sum(dtype=np.uint64)) & 0xFFFFFFFF
        if got != want:
            raise DeviceError(f"{device.name} read a wrong checksum ({got:#x}, not {want:#x}): its numbers cannot be used")
        seconds = []
        for _ in range(repetitions):
            began = time.perf_counter()
            program.submit().wait()
            wall = time.perf_counter() - began
            seconds.append(program.gpu_seconds() if device.info.timestamp_bits and not device.is_cpu else wall)
        program.close()
    rates = nbytes / np.array(seconds) / 1e9
    return ReadBandwidth(
        gb_s=float(np.median(rates)), best_gb_s=float(rates.max()), nbytes=nbytes, repetitions=repetitions,
        device=device.name, driver=f"{device.info.driver_name} {device.info.driver_info}",
        utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip
