"""The device's own ceilings, and a measurement's share of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.measure.roofline import MatrixRate, ReadBandwidth, matrix_rate, read_bandwidth
from labkit.vulkan.device import Device


@dataclass(frozen=True)
class Ceilings:
    """Measured read bandwidth, and matrix rates by kind: the best floating-point one first."""

    read: ReadBandwidth
    rates: Mapping[str, MatrixRate]

    @property
    def matrix(self) -> MatrixRate:
        """The best floating-point rate."""
        return next(iter(self.rates.values()))

    def shares(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The shares that these metrics are of the ceilings."""
        found = {}
        if "achieved_gb_s" in metrics:
            found["share_of_read_bandwidth"] = metrics["achieved_gb_s"] / self.read.gb_s
        if "achieved_gflop_s" in metrics:
            found["share_of_matrix_rate"] = metrics["achieved_gflop_s"] / (self.matrix.tflop_s * 1e3)
        return found

    def text(self) -> str:
        """One line: what they are and when they were measured."""
        rates = ", ".join(f"{rate.tflop_s:.4g} TFLOP/s {kind} ({rate.cut})" for kind, rate in self.rates.items())
        return f"reads {self.read.gb_s:.4g} GB/s, multiplies {rates} (measured {self.read.utc})"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "read_gb_s": self.read.gb_s, "utc": self.read.utc,
            "matrix_tflop_s": {kind: rate.tflop_s for kind, rate in self.rates.items()},
        }  # fmt: skip


def ceilings_of(device: Device, fresh: bool = False) -> Ceilings:
    """The kept ceilings of this device and driver, or measured now."""
    from labkit.measure.matrix_rate import best_kind, kinds

    first = best_kind(device)
    wanted = [first, *(kind for kind in kinds(device) if kind == "int8")]
    return Ceilings(
        read_bandwidth(device, fresh=fresh), {kind: matrix_rate(device, kind, fresh=fresh) for kind in wanted}
    )
