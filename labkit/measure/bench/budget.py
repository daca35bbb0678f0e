"""Where a decode step's time goes: the GPU time of each operation of its program, a row an operation, largest first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.vulkan.program import Dispatch

_LAYER = re.compile(r"\bblk\.\d+\.|(?<= )\d+(?=:| merge|$)")


@dataclass(frozen=True)
class Spent:
    """One operation of a step over all layers: how many dispatches, their GPU time alone, and the fewest bytes they move.

    Timed with a barrier before each, so that the sum is a little over the step's own time, where neighbours overlap."""

    operation: str
    kernel: str
    dispatches: int
    gpu_ms: float
    nbytes: int
    flops: int

    @property
    def gb_s(self) -> float:
        """Bytes over time, 10^9 bytes a second."""
        return self.nbytes / self.gpu_ms / 1e6 if self.gpu_ms else 0.0

    def plain(self, read_gb_s: float) -> dict[str, Any]:
        """As JSON has it, with the share of what the device was measured to read."""
        return {
            "operation": self.operation, "kernel": self.kernel, "dispatches": self.dispatches, "gpu_ms": self.gpu_ms,
            "us_each": 1e3 * self.gpu_ms / self.dispatches, "bytes": self.nbytes, "flops": self.flops,
            "achieved_gb_s": self.gb_s, "share_of_read_bandwidth": self.gb_s / read_gb_s,
        }  # fmt: skip


def spent(profile: Sequence[tuple[Dispatch, float]]) -> list[Spent]:
    """The operations of a profiled step, by label without its layer and by kernel; the longest first."""
    found: dict[tuple[str, str], list[float]] = {}
    for dispatch, seconds in profile:
        name = " ".join(_LAYER.sub("", dispatch.label).split())
        one = found.setdefault((name, dispatch.kernel), [0, 0.0, 0, 0])
        for i, value in enumerate((1, 1e3 * seconds, dispatch.nbytes, dispatch.flops)):
            one[i] += value
    rows = [Spent(*key, int(n), ms, int(nbytes), int(flops)) for key, (n, ms, nbytes, flops) in found.items()]
    return sorted(rows, key=lambda row: -row.gpu_ms)
