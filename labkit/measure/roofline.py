"""The device's own ceilings, measured once with checked kernels and kept with the driver's version.

`read_bandwidth`: a stream of reads over four times the last-level cache. `matrix_rate`: a loop of matrix products in
registers, on the device's matrix units where it has them, else of fused multiply-adds.
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from labkit.errors import DeviceError
from labkit.measure.neighbours import LOADED_SHARE
from labkit.measure.processes import cpu_seconds
from labkit.vulkan.device import Device
from labkit.vulkan.program import Program

CACHE_FACTOR = 4  # the stream reads over this many times the last-level cache
PROC = Path("/proc")
WARM_UP_S = 0.3  # of work before a measurement: a card that idles runs at a fraction of its clock
_GPU_STREAM_BYTES = 1 << 30
_LEAST_STREAM_BYTES = 256 << 20
# (invocations a workgroup, loads in flight, workgroups) tried; the fastest is the device's ceiling
_CUTS_GPU = ((256, 4, 1024), (256, 8, 1024), (256, 4, 4096), (512, 4, 2048), (128, 8, 4096))
_CUTS_CPU = ((8, 8, 64), (8, 1, 512), (32, 4, 64), (256, 4, 1024))  # Mesa 22.3 ends a loop after 65,535 turns

T = TypeVar("T")


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


@dataclass(frozen=True)
class MatrixRate:
    """Measured rate of products in registers. `tflop_s`: the median repetition (10^12 operations a second).

    `kind`: "float16" (sums in float32) or "int8" (sums in int32) on matrix units of `shape` m x n x k, or "float32" by
    fused multiply-adds, whose shape is empty. `cut`: the pieces that were fastest."""

    kind: str
    tflop_s: float
    best_tflop_s: float
    shape: tuple[int, ...]
    cut: str
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


# What is kept


def _path(device: Device) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "ceilings"
    return root / f"{device.info.uuid}-{device.info.driver_version:08x}.json"


def _kept(device: Device) -> dict[str, Any]:
    """What was measured on this device with this driver, by kind of ceiling."""
    try:
        document = json.loads(_path(device).read_text())
    except (OSError, ValueError, RuntimeError):
        return {}
    return document if isinstance(document, dict) else {}


def keep_or_measure(device: Device, name: str, kind: Callable[..., T], measure: Callable[[], T], fresh: bool) -> T:
    """The ceiling `name` from the file of this device and driver, else measured now and added to it. What a driver on
    the CPU reached beside other programs is no ceiling of later runs: it is used this once and not kept."""
    if not fresh:
        try:
            kept = kind(**_kept(device)[name])
        except (KeyError, TypeError):
            pass  # not measured yet on this device and driver
        else:
            return kept
    before = time.monotonic(), cpu_seconds(PROC), time.process_time()
    measured = measure()
    if device.is_cpu and others_share(*before) >= LOADED_SHARE:
        return measured
    try:
        path = _path(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {key: value for key, value in _kept(device).items() if isinstance(value, dict)}
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps(document | {name: asdict(measured)}, indent=1))  # type: ignore[call-overload]
        aside.replace(path)
    except (OSError, RuntimeError):
        pass  # a home that cannot be written: measured again next time
    return measured


def kept_ceilings(device: Device) -> tuple[ReadBandwidth | None, list[MatrixRate]]:
    """The ceilings that were measured before on this device with this driver; measures nothing."""
    read, rates = None, []
    for name, fields in _kept(device).items():
        try:
            if name == "read":
                read = ReadBandwidth(**fields)
            else:
                rates.append(MatrixRate(**fields | {"shape": tuple(fields["shape"])}))
        except (KeyError, TypeError):
            continue  # of another version's make
    return read, rates


def others_share(at: float, all_s: float | None, own_s: float) -> float:
    """The share of all cores that other processes took since a moment, of which the clock, the core-seconds that ran since
    boot and this process's own are given; 0 where the system does not tell."""
    now = cpu_seconds(PROC)
    if all_s is None or now is None:
        return 0.0
    others = now - all_s - (time.process_time() - own_s)
    return max(0.0, others / max(time.monotonic() - at, 1e-6) / (os.cpu_count() or 1))


def read_bandwidth(device: Device, *, repetitions: int = 7, fresh: bool = False) -> ReadBandwidth:
    """The device's read bandwidth, from the kept measurement or (first time, or `fresh`) measured now.

    The kernel's checksum is compared with NumPy's before a time is believed; raises DeviceError when they differ.
    """
    return keep_or_measure(device, "read", ReadBandwidth, lambda: _measure(device, repetitions), fresh)


def matrix_rate(device: Device, kind: str = "", *, repetitions: int = 7, fresh: bool = False) -> MatrixRate:
    """The device's rate of matrix products, kept like the read bandwidth; `kind` as in `MatrixRate`, "" for the best
    floating-point one. DeviceError when the device lists no such product, or computes it wrong."""
    from labkit.measure.matrix_rate import best_kind, measure

    chosen = kind or best_kind(device)

    def load(**fields: Any) -> MatrixRate:
        return MatrixRate(**fields | {"shape": tuple(fields["shape"])})

    return keep_or_measure(device, chosen, load, lambda: measure(device, chosen, repetitions), fresh)


# Measuring


def warm_up(device: Device, seconds: float = WARM_UP_S) -> None:
    """Keep the device reading for `seconds`, so that its clocks are up; nothing on a driver on the CPU."""
    if device.is_cpu:
        return
    count = 16 << 20  # bytes
    with device.pool("warm-up") as pool:
        x = pool.buffer(count).fill(0)
        sums = pool.buffer(1024 * 4)
        program = device.program("warm-up")
        kernel = device.kernel("read_stream", "", {"LOCAL": 256, "UNROLL": 4})
        program.dispatch(kernel, 1024, {"x": x, "sums": sums, "count": count // 16}, reads=[x], writes=[sums])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            program.submit(64).wait()
        program.close()


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
        warm_up(device)
        for local, unroll, groups in cuts:
            kernel = device.kernel("read_stream", "", {"LOCAL": local, "UNROLL": unroll})
            program = device.program("read stream")
            push = {"x": x, "sums": sums, "count": nbytes // 16}
            program.dispatch(kernel, groups, push, reads=[x], writes=[sums], nbytes=nbytes)
            program.submit().wait()
            got = int(sums.download(np.uint32)[:groups].sum(dtype=np.uint64)) & 0xFFFFFFFF
            if got != want:
                raise DeviceError(f"{device.name} read a wrong checksum ({got:#x}, not {want:#x}): do not trust it")
            trials.append((seconds_of(program), program))
        program = min(trials, key=lambda trial: trial[0])[1]
        seconds = [seconds_of(program) for _ in range(repetitions)]
        for _, tried in trials:
            tried.close()
    rates = nbytes / np.array(seconds) / 1e9
    return ReadBandwidth(float(np.median(rates)), float(rates.max()), nbytes, repetitions, *stamp(device))


def stamp(device: Device) -> tuple[str, str, str]:
    """Device, driver and the present in UTC, as a ceiling keeps them."""
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return device.name, f"{device.info.driver_name} {device.info.driver_info}", utc


def seconds_of(program: Program) -> float:
    """Seconds of one run: the GPU's own clock where there is one, wall time on the CPU."""
    began = time.perf_counter()
    program.submit().wait()
    wall = time.perf_counter() - began
    return wall if program.device.is_cpu or not program.device.info.timestamp_bits else program.gpu_seconds()
