"""Who else is on the device: other processes, CPU load, memory spilled to the host and throttling, seen before, during
and after a run.

GPU processes through NVML and through the `drm-` keys of `/proc/*/fdinfo` (amdgpu, i915, xe; the kernel's
Documentation/gpu/drm-usage-stats.rst), memory through NVML or amdgpu's files, CPU load through `/proc/stat`. What cannot
be seen is named: a look that saw nothing and one that could not look are different answers.
"""

import itertools
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

When = Literal["before", "during", "after"]
BUSY_SHARE = 0.02  # of an engine's time: a process below it is on the device, but does nothing
LOADED_SHARE = 0.10  # of the machine's cores: below it the rest of the system is idle enough
NEARLY_FULL = 0.97  # of the device's memory


class Seen(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Process(Seen):
    """Another process on the device: `busy` is its largest share of an engine's time, None where that is not told."""

    pid: int
    name: str
    when: tuple[When, ...]
    memory_bytes: int | None = None
    busy: float | None = None


class Neighbours(Seen):
    """What shared the device with a run. `looks` counts the looks; `sources` says what was looked at, `unseen` what
    could not be and why. `throttled` is the share of the looks during the run in which each reason held.
    `spilled_bytes` is the most of this run's device memory that lay in the host's, `memory_used_bytes` the most in use by
    everybody; `power_caps_w` are the power caps in force, one after the other: more than one means that it was changed
    while the run measured. `cpu_others` are shares of all cores that other processes took while it ran. None is
    unknown."""

    looks: int = 0
    sources: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    throttled: dict[str, float] = {}
    spilled_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_caps_w: tuple[float, ...] = ()
    cpu_others: float | None = None
    cpu_others_most: float | None = None

    @property
    def busy(self) -> tuple[Process, ...]:
        """The processes that worked on the device, or of which it is not known that they did not."""
        return tuple(one for one in self.processes if one.busy is None or one.busy >= BUSY_SHARE)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What may have moved the numbers, a phrase each; nothing when the device was the run's alone."""
        found = [f"{one.name} (process {one.pid}) on the device {' and '.join(one.when)}" for one in self.busy]
        found += [f"held back by {reason} in {share:.0%} of the looks" for reason, share in self.throttled.items()]
        if len(self.power_caps_w) > 1:
            found.append(f"its power cap changed: {', then '.join(f'{cap:g}' for cap in self.power_caps_w)} W")
        if self.spilled_bytes:
            found.append(f"{self.spilled_bytes / 1e6:.0f} MB of device memory lay in the host's")
        full = (self.memory_used_bytes or 0) / (self.memory_total_bytes or 1)
        if self.memory_total_bytes and full >= NEARLY_FULL:
            found.append(f"device memory {full:.0%} full")
        if self.cpu_others is not None and self.cpu_others >= LOADED_SHARE:
            found.append(f"other processes took {self.cpu_others:.0%} of the processor")
        return tuple(found)


def together(first: Neighbours | None, then: Neighbours) -> Neighbours:
    """What was seen in two parts of one run: of a run that was taken up again, before the break and after it."""
    if first is None:
        return then
    processes: dict[tuple[int, str], Process] = {}
    for one in (*first.processes, *then.processes):
        known = processes.get((one.pid, one.name))
        processes[one.pid, one.name] = (
            one
            if known is None
            else known.model_copy(
                update={
                    "when": tuple(dict.fromkeys((*known.when, *one.when))),
                    "memory_bytes": most(known.memory_bytes, one.memory_bytes),
                    "busy": most(known.busy, one.busy),
                }
            )
        )
    looks = first.looks + then.looks
    share = first.looks / looks if looks else 0.0
    reasons = sorted({*first.throttled, *then.throttled})
    loads = [load for load in (first.cpu_others, then.cpu_others) if load is not None]
    return Neighbours(
        looks=looks,
        sources=tuple(dict.fromkeys((*first.sources, *then.sources))),
        unseen=tuple(dict.fromkeys((*first.unseen, *then.unseen))),
        processes=tuple(processes.values()),
        throttled={
            name: round(share * first.throttled.get(name, 0.0) + (1 - share) * then.throttled.get(name, 0.0), 4)
            for name in reasons
        },
        spilled_bytes=most(first.spilled_bytes, then.spilled_bytes),
        memory_used_bytes=most(first.memory_used_bytes, then.memory_used_bytes),
        memory_total_bytes=most(first.memory_total_bytes, then.memory_total_bytes),
        power_caps_w=tuple(cap for cap, _ in itertools.groupby((*first.power_caps_w, *then.power_caps_w))),
        cpu_others=round(share * loads[0] + (1 - share) * loads[1], 4) if len(loads) == 2 else most(*loads, None),
        cpu_others_most=most(first.cpu_others_most, then.cpu_others_most),
    )


def most(*values: Any) -> Any:
    """The largest of the known values, None where none is."""
    return max((value for value in values if value is not None), default=None)
