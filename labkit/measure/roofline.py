"""The device's own ceilings, measured once with checked kernels and kept with the driver's version."""

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from labkit.errors import DeviceError
from labkit.vulkan.device import Device
from labkit.vulkan.program import Program

CACHE_FACTOR = 4  # the stream reads over this many times the last-level cache
_GPU_STREAM_BYTES = 1 << 30
_LEAST_STREAM_BYTES = 256 << 20
# (invocations a workgroup, loads in flight, workgroups) tried; the fastest is the device's ceiling
_CUTS_GPU = ((256, 4, 1024), (256, 8, 1024), (256, 4, 4096), (512, 4, 2048), (128, 8, 4096))
_CUTS_CPU = ((8, 8, 8), (8, 1, 8), (32, 4, 8), (256, 4, 1024))


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
    cuts = _CUTS_CPU if device.is_cpu else _CUTS_GPU
    step = 16 * math.lcm(*(local * unroll * groups for local, unroll, groups in cuts))
    nbytes = max(1, stream_bytes(device) // step) * step
    data = np.random.default_rng(0).integers(0, 1 << 32, nbytes // 4, dtype=np.uint32)
    want = int(data.sum(dtype=np.uint64)) & 0xFFFFFFFF
    with device.pool("read stream") as pool:
        x = pool.buffer(data, label="stream")
        sums = pool.buffer(max(groups for _, _, groups in cuts) * 4, label="checksums")
        trials = []
        for local, unroll, groups in cuts:
            kernel = device.kernel("read_stream", "", {"LOCAL": local, "UNROLL": unroll})
            program = device.program("read stream")
            push = {"x": x, "sums": sums, "count": nbytes // 16}
            program.dispatch(kernel, groups, push, reads=[x], writes=[sums], nbytes=nbytes)
            program.run()
            got = int(sums.download(np.uint32)[:groups].sum(dtype=np.uint64)) & 0xFFFFFFFF
            if got != want:
                raise DeviceError(f"{device.name} read a wrong checksum ({got:#x}, not {want:#x}): do not trust it")
            trials.append((_seconds(program), program))
        program = min(trials, key=lambda trial: trial[0])[1]
        seconds = [_seconds(program) for _ in range(repetitions)]
        for _, tried in trials:
            tried.close()
    rates = nbytes / np.array(seconds) / 1e9
    return ReadBandwidth(
        gb_s=float(np.median(rates)), best_gb_s=float(rates.max()), nbytes=nbytes, repetitions=repetitions,
        device=device.name, driver=f"{device.info.driver_name} {device.info.driver_info}",
        utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip


def _seconds(program: Program) -> float:
    """Seconds of one run: the GPU's own clock where there is one, wall time on the CPU."""
    began = time.perf_counter()
    program.submit().wait()
    wall = time.perf_counter() - began
    return wall if program.device.is_cpu or not program.device.info.timestamp_bits else program.gpu_seconds()
