"""The power cap of a device: what it is, what it is by default, and whether it changed between two looks."""

from dataclasses import dataclass
from pathlib import Path

from labkit.measure.telemetry import Source, find_source
from labkit.vulkan.device import Device

ALIKE_W = 0.5  # two caps nearer than that are one


@dataclass(frozen=True)
class Cap:
    """A device's power cap in watts, as `source` says it; `default_w` what it is where nobody set it. None where it is not
    told, and `why` says why."""

    watts: float | None
    default_w: float | None = None
    source: str = ""
    why: str = ""

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`250 W of 330 W by default (amdgpu)`."""
        if self.watts is None:
            return f"no power cap is told: {self.why}"
        usual = "" if self.default_w is None else f" of {self.default_w:g} W by default"
        return f"{self.watts:g} W{usual} ({self.source})"

    def changed(self, after: "Cap") -> str | None:
        """What changed from this cap to a later one, a sentence for the record; None where nothing did, or where neither
        is told."""
        if self.watts is None and after.watts is None:
            return None
        if self.watts is None or after.watts is None:
            gone, there = ("before", after) if self.watts is None else ("after", self)
            return f"the power cap was not told {gone} the run, and is {there.watts:g} W otherwise"
        if abs(self.watts - after.watts) < ALIKE_W:
            return None
        return f"the power cap changed while the run measured: {self.watts:g} W before, {after.watts:g} W after"


def caps(device: Device, root: Path = Path("/")) -> Cap:
    """The power cap of a device now: NVML's enforced limit, amdgpu's `power1_cap`, RAPL's long-term limit of the processor
    a CPU driver runs on. Look before and after a run; a run that describes its device watches it by itself."""
    source, name = find_source(device, root)
    return Cap(None, why=name) if source is None else cap_of(source)


def cap_of(source: Source) -> Cap:
    """The power cap that a telemetry source tells."""
    facts = source.facts()
    limit, usual = (facts.get(key) for key in ("power_limit_w", "power_default_w"))
    why = "" if limit is not None else str(facts.get("no_power") or f"{source.name} does not say")
    return Cap(limit, usual, source.name, why)
