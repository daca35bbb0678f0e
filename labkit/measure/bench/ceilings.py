"""The device's own ceilings, and a measurement's share of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import DeviceError
from labkit.measure.roofline import MatrixRate, ReadBandwidth, matrix_rate, read_bandwidth
from labkit.vulkan.device import Device


@dataclass(frozen=True)
class Ceilings:
    """Measured read bandwidth, and matrix rates by kind; `trouble`: what failed."""

    read: ReadBandwidth
    rates: Mapping[str, MatrixRate]
    trouble: str = ""

    @property
    def matrix(self) -> MatrixRate:
        """The best floating-point rate."""
        floating = [rate for kind, rate in self.rates.items() if kind != "int8"]
        return max(floating, key=lambda rate: rate.tflop_s)

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
        trouble = f"; {self.trouble}" if self.trouble else ""
        return f"reads {self.read.gb_s:.4g} GB/s, multiplies {rates} (measured {self.read.utc}){trouble}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "read_gb_s": self.read.gb_s, "utc": self.read.utc,
            "matrix_tflop_s": {kind: rate.tflop_s for kind, rate in self.rates.items()},
        }  # fmt: skip


def ceilings_of(device: Device, fresh: bool = False) -> Ceilings:
    """The kept ceilings of this device and driver, or measured now."""
    from labkit.measure.matrix_rate import kinds

    rates: dict[str, MatrixRate] = {}
    trouble = []
    for kind in kinds(device):
        try:
            rates[kind] = matrix_rate(device, kind, fresh=fresh)
        except DeviceError as error:  # one kind that is computed wrong does not end a bench of others
            trouble.append(str(error))
    if not set(rates) - {"int8"}:
        raise DeviceError("; ".join(trouble))
    return Ceilings(read_bandwidth(device, fresh=fresh), rates, "; ".join(trouble))
