"""What each claim implies beside what its device can do: the points of a picture, one a claim that can be held against
a rate."""

from dataclasses import dataclass
from typing import Literal

from labkit.audit.evidence import Observation
from labkit.audit.notice import Outcome
from labkit.audit.physics import PREFILL_RATES, Implied, implied_bandwidth, implied_rate
from labkit.audit.report import Audit

Unit = Literal["GB/s", "TFLOP/s"]


@dataclass(frozen=True)
class ImpliedPoint:
    """One claim: the rate it implies at the least and the one its device has at the most, both in `unit`; what the audit
    says of it, and why."""

    name: str
    source: str
    device: str
    unit: Unit
    implied: float
    possible: float
    outcome: Outcome
    reason: str

    @property
    def share(self) -> float:
        """Implied over possible; above 1 is impossible as stated."""
        return self.implied / self.possible


def implied_point(one: Observation, found: Audit) -> ImpliedPoint | None:
    """A claim as a point: a decode rate or a bandwidth against memory, a prompt's rate or a rate of operations against
    the fastest unit that fits. None where its device, its conditions, or any bound of its metric are not known, and for
    a prompt that was in a cache."""
    if one.device is None:
        return None
    unit: Unit = "GB/s"
    if one.value("achieved_gb_s") is not None:
        implied = Implied(one.value("achieved_gb_s"))
    elif (rate := one.value("achieved_gflop_s")) is not None:
        unit, implied = "TFLOP/s", Implied(rate / 1e3)
    elif any(name in one.metrics for name in (*PREFILL_RATES, "ttft_s")):
        unit, implied = "TFLOP/s", Implied(None) if one.cache == "warm" else implied_rate(one)
    elif one.phase in ("decode", "mixed"):
        implied = implied_bandwidth(one)
    else:
        return None
    possible = (one.device.memory_limit(one.memory_mhz) if unit == "GB/s" else one.device.rate_limit(one.operand_bits))[
        0
    ]
    if not implied.value or not possible:
        return None
    return ImpliedPoint(
        one.subject, one.source, one.device.name, unit, implied.value, possible, found.standing(one.subject),
        found.reason(one.subject),
    )  # fmt: skip


def implied_points(observations: tuple[Observation, ...], found: Audit) -> list[ImpliedPoint]:
    """The points of all observations that have one, in their order."""
    return [point for one in observations if (point := implied_point(one, found)) is not None]
