"""What a token costs in joules: the power while it was made, less what is stale, with and without the power at rest."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Literal

from labkit.errors import ParameterError
from labkit.measure.energy import energy
from labkit.measure.sensor import renewal
from labkit.measure.telemetry import Reading

Readings = Sequence[tuple[float, Reading]]
Span = tuple[float, float]
IDLE = 0.05  # of the device: a reading that is busier is not of rest
FEWEST_AT_REST = 4  # readings
LEAST_COUNTED = 20.0  # readings between two changes of a counter, for their moments to matter by a twentieth
LEAST_RENEWALS = 1.0  # of the sensor, that a window must have behind its first


@dataclass(frozen=True)
class Rest:
    """Power while nothing worked: the median of `n` readings, and the quartiles of them. None where too few tell it, and
    then no energy is taken off for it."""

    watts: float | None
    low_w: float | None = None
    high_w: float | None = None
    n: int = 0

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`125 W at rest, half of 40 readings from 124 to 131`."""
        if self.watts is None:
            return f"{self.n} readings at rest do not tell its power"
        return f"{self.watts:.4g} W at rest, half of {self.n} readings from {self.low_w:.4g} to {self.high_w:.4g}"


def rest(readings: Readings, spans: Sequence[Span], least_mhz: float = 0.0, most_mhz: float = float("inf")) -> Rest:
    """Power within `spans`, the stretches in which nothing was asked of the device; readings in which it was busy all the
    same are left out, and those whose core clock lies out of the bounds, where it is told: a card rests at one power while
    its clocks are up, and at another once they are down."""
    found = sorted(
        one.power_w
        for at, one in readings
        if one.power_w is not None
        and (one.utilisation or 0.0) <= IDLE
        and (one.core_mhz is None or least_mhz <= one.core_mhz < most_mhz)
        and within(at, spans)
    )
    if len(found) < FEWEST_AT_REST:
        return Rest(None, n=len(found))
    low, middle, high = quantiles(found, n=4)
    return Rest(middle, low, high, len(found))


@dataclass(frozen=True)
class TokenEnergy:
    """What `tokens` took over `seconds`: `watts` on average by `source` (the card's *counter*, or its *power*), None where
    it is not told, and `why`. `renewals`: of the sensor in what was counted. `rest_w`: the power at rest, None if unknown."""

    tokens: int
    seconds: float
    watts: float | None
    renewals: float
    source: str
    rest_w: float | None = None
    why: str = ""

    @property
    def joules(self) -> float | None:
        """Joules a token, all that the device took."""
        return None if self.watts is None else self.watts * self.seconds / self.tokens

    @property
    def above_rest(self) -> float | None:
        """Joules a token above what the device would have taken at rest; None where either is not told."""
        if self.watts is None or self.rest_w is None:
            return None
        return (self.watts - self.rest_w) * self.seconds / self.tokens

    def metrics(self, phase: Literal["decode", "prefill"] = "decode") -> dict[str, float]:
        """What is told, by registered metric, of tokens emitted or of those of prompts."""
        name = "j_per_token" if phase == "decode" else "j_per_prompt_token"
        told = {"power_w": self.watts, name: self.joules, f"{name}_above_rest": self.above_rest}
        return {name: value for name, value in told.items() if value is not None}

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """`0.34 J a token (640 W, by power), 0.27 J of it above rest`, or why there is none."""
        if self.joules is None:
            return f"no energy: {self.why}"
        above = "" if self.above_rest is None else f", {self.above_rest:.3g} J of it above rest"
        return f"{self.joules:.3g} J a token ({self.watts:.4g} W, by {self.source}){above}"


def token_energy(
    readings: Readings, spans: Sequence[Span], tokens: int, renewal_s: float, rest_w: float | None = None
) -> TokenEnergy:
    """The energy of `tokens` that were made in `spans`, windows of times as the readings have them.

    A sensor holds each value for `renewal_s`: what is read first in a window may be of before it. So the power of a window
    is that of its rest (see `watts`), which must last another renewal at the least, and stands for the whole; windows that
    are shorter tell nothing, and count where others tell. ParameterError without a token, or for a window that does not
    end after its start."""
    if tokens < 1 or not spans:
        raise ParameterError(f"{tokens} tokens in {len(spans)} windows: give at least one of each")
    seconds = counted = joules = 0.0
    sources = []
    why = f"no window lasts {1 + LEAST_RENEWALS:g} renewals of the sensor, {(1 + LEAST_RENEWALS) * renewal_s:.3g} s"
    for start, end in spans:
        if not end > start:
            raise ParameterError(f"a window from {start:g} to {end:g} s: the end must come after the start")
        seconds += end - start
        if end - start < (1 + LEAST_RENEWALS) * renewal_s:
            continue
        found, source, told = watts(readings, start + renewal_s, end)
        if found is None:
            why = told
            continue
        part = end - start - renewal_s
        joules, counted = joules + found * part, counted + part
        sources.append(source)
    if not counted:
        return TokenEnergy(tokens, seconds, None, 0.0, "none", rest_w, why)
    source = sources[0] if len(set(sources)) == 1 else "counter and power"
    return TokenEnergy(tokens, seconds, joules / counted, counted / renewal_s, source, rest_w)


def energy_metrics(readings: Readings, span: Span, tokens: int) -> dict[str, float]:
    """Power and joules a token of what was made in `span`, by registered metric; nothing where the device tells no power,
    or the span is too short for how often its sensor is renewed."""
    told = [one for one in readings if one[1].power_w is not None]
    if len(told) < 2 or tokens < 1 or not span[1] > span[0]:
        return {}
    return token_energy(readings, [span], tokens, renewal(told).seconds).metrics()


def watts(readings: Readings, start_s: float, end_s: float) -> tuple[float | None, str, str]:
    """(mean power, its source, why there is none) of a window by what is read in it and nothing from before or after.

    By the card's counter between its first and its last change, where those lie so far apart that the moment of a change,
    which is known to one reading, matters by a twentieth at the most; else by power, each end held as the reading next to
    it."""
    inside = [(at, one) for at, one in readings if start_s <= at <= end_s]
    counted = [(at, one.energy_j) for at, one in inside if one.energy_j is not None]
    steps = [later for now, later in itertools.pairwise(counted) if later[1] != now[1]]
    falls = any(later[1] < now[1] for now, later in itertools.pairwise(counted))
    if len(steps) > 1 and not falls:
        apart = median(later - now for (now, _), (later, _) in itertools.pairwise(counted))
        lasted = steps[-1][0] - steps[0][0]
        if lasted >= LEAST_COUNTED * apart:
            return (steps[-1][1] - steps[0][1]) / lasted, "counter", ""
    powers = [(at, Reading(power_w=one.power_w)) for at, one in inside if one.power_w is not None]
    if not powers:
        return None, "none", "the card tells neither its power nor a counter"
    found = energy([(start_s, powers[0][1]), *powers, (end_s, powers[-1][1])], start_s, end_s)
    if found.joules is None:
        return None, "none", found.words().removeprefix("no energy: ")
    return found.joules / found.asked_s, "power", ""


def mean_reading(readings: Readings, spans: Sequence[Span], field: str) -> float | None:
    """The mean of a field of the readings in `spans`; None where there is none."""
    values = [value for at, one in readings if (value := getattr(one, field)) is not None and within(at, spans)]
    return fmean(values) if values else None


def within(at: float, spans: Sequence[Span]) -> bool:
    """Whether a moment lies in one of the spans."""
    return any(start <= at <= end for start, end in spans)
