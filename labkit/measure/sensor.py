"""What a power sensor can see: how often its value is renewed, and what a mean over its window hides, in closed form."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from labkit.errors import ParameterError
from labkit.measure.telemetry import Reading
from labkit.vulkan.device import Device

Readings = Sequence[tuple[float, Reading]]
FEWEST_CHANGES = 8  # of a sensor's value: fewer do not tell how often it is renewed


@dataclass(frozen=True)
class Renewal:
    """How often a sensor's value changed: `period_s`, the median time between two changes, None where `changes` are too
    few to tell; `read_s`, the median time between two readings. A value that is renewed oftener than it is read, or to
    the same digits, changes at other times: the period is what the readings can tell."""

    period_s: float | None
    changes: int
    read_s: float

    @property
    def seconds(self) -> float:
        """The longer of the two: what is shorter may leave no trace. Where the renewal is not told, that of reading."""
        return max(self.read_s, self.period_s or 0.0)

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`read every 50 ms, and renewed every 100 ms`."""
        read = f"read every {self.read_s * 1e3:.3g} ms"
        if self.period_s is None:
            return f"{read}; {self.changes} changes do not tell how often it is renewed"
        if self.period_s < 1.5 * self.read_s:
            return f"{read}, and renewed as often or oftener"
        return f"{read}, and renewed every {self.period_s * 1e3:.3g} ms"


def renewal(readings: Readings, field: str = "power_w") -> Renewal:
    """How often the sensor behind `readings` renews `field`. ParameterError for fewer than two readings of it."""
    told = [(at, value) for at, one in readings if (value := getattr(one, field)) is not None]
    if len(told) < 2:
        raise ParameterError(f"{len(told)} readings of {field} do not tell how often it is renewed: it takes two")
    apart = median(later - now for (now, _), (later, _) in itertools.pairwise(told))
    changed = [at for (_, before), (at, value) in itertools.pairwise(told) if value != before]
    if len(changed) < FEWEST_CHANGES:
        return Renewal(None, len(changed), apart)
    return Renewal(median(later - now for now, later in itertools.pairwise(changed)), len(changed), apart)


def why_no_power(device: Device, settle_s: float = 0.05) -> str:
    """Why a device tells neither its power nor a counter of energy, in a sentence; nothing where it tells one of them.

    Two looks, `settle_s` apart, since the power of a counter is a difference."""
    from labkit.measure.telemetry import find_source

    source, name = find_source(device)
    if source is None:
        return name
    found = [source.read()]
    time.sleep(settle_s)
    found.append(source.read())
    if any(one.power_w is not None or one.energy_j is not None for one in found):
        return ""
    return str(source.facts().get("no_power") or f"{source.name} tells no power of {device.name}")


@dataclass(frozen=True)
class Pulse:
    """A transient: `peak_w` for `length_s`, from a `base_w` and back."""

    base_w: float
    peak_w: float
    length_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.base_w < self.peak_w and self.length_s > 0):
            raise ParameterError(
                f"a pulse from {self.base_w:g} to {self.peak_w:g} W of {self.length_s:g} s: give a peak above the base, "
                f"and a length above 0"
            )

    def seen_w(self, window_s: float) -> float:
        """The most that a mean over `window_s` shows of it; a window of 0 shows the peak."""
        share = 1.0 if window_s <= self.length_s else self.length_s / window_s
        return self.base_w + (self.peak_w - self.base_w) * share

    def hidden_by_s(self, cap_w: float) -> float:
        """The shortest window whose mean never exceeds `cap_w`: length x (peak - base) / (cap - base). ParameterError for
        a cap that does not lie between the two."""
        if not self.base_w < cap_w < self.peak_w:
            raise ParameterError(
                f"a cap of {cap_w:g} W does not lie between {self.base_w:g} and {self.peak_w:g} W: it hides nothing"
            )
        return self.length_s * (self.peak_w - self.base_w) / (cap_w - self.base_w)

    def duty(self, cap_w: float) -> float:
        """The share of the time that the power may be at the peak, else at the base, while its mean keeps the cap."""
        return self.length_s / self.hidden_by_s(cap_w)

    def chance(self, level_w: float, window_s: float, renewal_s: float) -> float:
        """The chance that a reading of a mean over `window_s`, renewed every `renewal_s`, exceeds `level_w` when the pulse
        comes at a random moment.

        The mean exceeds the level while window and pulse share more than x = window (level - base) / (peak - base), which
        holds for window + length - 2 x where both are longer than x, and never else."""
        if renewal_s <= 0:
            raise ParameterError(f"a value renewed every {renewal_s:g} s: give a time above 0")
        if not self.base_w <= level_w < self.peak_w:
            return 1.0 if level_w < self.base_w else 0.0
        shared = window_s * (level_w - self.base_w) / (self.peak_w - self.base_w)
        if window_s > 0 and shared >= min(window_s, self.length_s):
            return 0.0
        return min(1.0, (window_s + self.length_s - 2 * shared) / renewal_s)


def sense(
    pulse: Pulse, starts: Sequence[float], window_s: float, renewal_s: float, read_s: float, seconds: float,
    phase_s: float = 0.0,
) -> list[tuple[float, Reading]]:  # fmt: skip
    """What is read every `read_s`, for `seconds`, of a sensor that holds the mean of its last `window_s`, renewed every
    `renewal_s` from `phase_s` on, while the pulse begins at each of `starts`. A window of 0 is the moment's power."""

    def drawn(until: float) -> float:
        """Joules above the base from the beginning."""
        return sum(min(max(until - at, 0.0), pulse.length_s) for at in starts) * (pulse.peak_w - pulse.base_w)

    def value(at: float) -> float:
        if window_s > 0:
            return pulse.base_w + (drawn(at) - drawn(at - window_s)) / window_s
        return pulse.peak_w if any(start <= at < start + pulse.length_s for start in starts) else pulse.base_w

    held, found = (-1, 0.0), []
    for i in range(int(seconds / read_s) + 1):
        at = i * read_s
        turn = int((at - phase_s) // renewal_s)
        if turn != held[0]:
            held = turn, value(phase_s + turn * renewal_s)
        found.append((at, Reading(power_w=held[1])))
    return found
