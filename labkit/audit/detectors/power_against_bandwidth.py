"""Power against implied bandwidth: a card that worked without drawing what work takes, or readings of another card."""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import implied_bandwidth, number
from labkit.audit.registry import detector

BUSY_BANDWIDTH = 0.5  # of the memory's rate: below it a card may draw little
LEAST_RATIO = (
    0.5  # share of the power over share of the bandwidth; cards that read at 50 to 90 % have been seen at 1.0 to 1.7
)
IDLE_RATIO = 1.15  # load against idle: less is no load that the card saw
FEWEST = 3  # readings
OVER_LIMIT, OVER_CLOCK = 1.3, 1.05  # what no mean of this card's can be
PEAK = re.compile(r"\b(peaks?|spikes?|transients?|milliseconds?)\b", re.IGNORECASE)  # a cap bounds means alone


@detector("power-against-bandwidth", 9, version=2, title="Power against implied bandwidth")
def power_against_bandwidth(evidence: Evidence) -> Iterator[Notice]:
    """Mean power against the bandwidth that the rate implies, power under load against power at rest, and readings that
    cannot be of the device that ran (no load while it worked, power or clocks beyond its limits). Warns: sensors differ,
    and a card that was not looked at tells nothing of the rate itself."""
    stated = {
        (one.group, one.likeness("phase")): one.metrics["power_w"]
        for one in evidence.observations
        if evidence.kind == "claims" and "power_w" in one.metrics
    }  # published in a row of its own
    for one in evidence.observations:
        power = one.power_w if one.power_w is not None else stated.get((one.group, one.likeness("phase")))
        if (beyond := by_limit(one, power)) is not None:
            yield beyond
            continue
        if (notice := by_bandwidth(one, power, evidence)) is not None:
            yield notice
    if evidence.kind == "run":
        yield from by_load(evidence)


def by_limit(one: Observation, power: float | None) -> Notice | None:
    """The notice on a power that its card, or the cap it was under, does not let through; None for one that may be."""
    cards, own = (1, None) if one.device is None else (one.device.count, one.device.power_w)
    each = one.power_cap_w or own
    if power is None or each is None or power <= OVER_LIMIT * each * cards:
        return None
    limit = f"{number(each * cards)} W of its {'cap' if one.power_cap_w else 'card'}{'s' if cards > 1 else ''}"
    line = f"{number(power)} W of {limit} = {power / each / cards:.0%}, of {OVER_LIMIT:.0%} at the most"
    if PEAK.search(one.text):
        text = f"{one.subject} is said to be a peak, and a limit bounds means"
        return Notice(
            outcome="not assessable", text=text, subject=one.subject, about=(one.subject,), arithmetic=(line,),
            missing=("a mean power",),
        )  # fmt: skip
    text = f"{one.subject} draws {number(power)} W, beyond the {limit}: the reading, or the limit, is of something else"
    return Notice(outcome="warn", text=text, subject=one.subject, about=(one.subject,), arithmetic=(line,))


def by_bandwidth(one: Observation, power: float | None, evidence: Evidence) -> Notice | None:
    """The notice on a rate of decoding; None where none is stated."""
    if one.phase not in ("decode", "mixed") or set(one.metrics) == {"power_w"}:
        return None
    about = (one.subject,)
    implied = implied_bandwidth(one)
    limit = one.device.memory_limit(one.memory_mhz)[0] if one.device is not None else None
    board = one.power_cap_w or (one.device.power_w * one.device.count if one.device and one.device.power_w else None)
    needed = {
        "its power": power,
        "the power its card may draw": board,
        "the memory rate of its card": limit,
        "the bandwidth it implies": implied.value,
    }
    if power is None and evidence.kind == "claims":
        return None  # nothing was said of power, and nothing is to be held against it
    missing = tuple(name for name, value in needed.items() if value is None)
    if power is None or board is None or limit is None or implied.value is None:
        text = f"{one.subject}: its power and its bandwidth cannot be held against each other"
        return Notice(outcome="not assessable", text=text, subject=one.subject, about=about, missing=missing)
    drawn, read = power / board, implied.value / limit
    lines = (
        *implied.lines,
        f"bandwidth: {number(implied.value)} of {number(limit)} GB/s = {read:.0%}",
        f"power: {number(power)} of {number(board)} W = {drawn:.0%}",
        f"{drawn:.0%} / {read:.0%} = {drawn / read:.2f}, of {LEAST_RATIO} at the least" if read else "no bandwidth",
    )
    if read < BUSY_BANDWIDTH or drawn >= LEAST_RATIO * read:
        text = f"{one.subject} draws {drawn:.0%} of its power at {read:.0%} of its bandwidth"
        return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=lines)
    text = (
        f"{one.subject} implies {read:.0%} of the memory's rate at {number(power)} W, {drawn:.0%} of what its card draws: the "
        f"rate, or the reading, is not of this work"
    )
    return Notice(outcome="warn", text=text, subject=one.subject, about=about, arithmetic=lines)


def by_load(evidence: Evidence) -> Iterator[Notice]:
    """The notice on a run's telemetry: load against rest, and against the limits of the device that ran."""
    during = [row for row in evidence.readings(*evidence.observations) if row.get("power_w") is not None]
    name = evidence.name
    if len(during) < FEWEST:
        text = f"{name} has no readings of power while it worked"
        timed = any(one.windows() for one in evidence.observations)
        missing = ("telemetry under load", *(() if timed else ("times of the requests",)))
        yield Notice(outcome="not assessable", text=text, subject=name, missing=missing)
        return
    inside = {id(row) for row in during}
    rest = [row for row in evidence.telemetry if id(row) not in inside and row.get("power_w") is not None]
    idle = [row for row in rest if (row.get("utilisation") or 0.0) <= 0.05]
    troubles = list(foreign(evidence, during))
    load = median(row["power_w"] for row in during)
    if len(idle) >= FEWEST:
        still = median(row["power_w"] for row in idle)
        if load <= IDLE_RATIO * still:
            line = f"under load {number(load)} W, at rest {number(still)} W: {load / still:.2f} times, of {IDLE_RATIO} at the least"
            troubles.append(("draws no more under load than at rest", line))
    if troubles:
        what = " and ".join(said for said, _ in troubles)
        text = f"the card that was read {what}: it is another one than did the work, or its sensors stand still"
        lines = tuple(line for _, line in troubles)
        yield Notice(outcome="warn", text=text, subject=name, arithmetic=lines)
        return
    lines = (f"under load {number(load)} W in {len(during)} readings",)
    yield Notice(
        outcome="ok", text=f"the card that was read is one that worked as {name} did", subject=name, arithmetic=lines
    )


def foreign(evidence: Evidence, during: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(what the card does, the line) of readings under load that cannot be of the device that ran."""
    device = (evidence.record.device if evidence.record is not None else None) or {}
    card = device.get("card") if isinstance(device.get("card"), Mapping) else {}
    busy = [row["utilisation"] for row in during if row.get("utilisation") is not None]
    if len(busy) >= FEWEST and max(busy) == 0.0:
        yield "is never busy while the run works", f"utilisation 0 % in each of {len(busy)} readings under load"
    assert isinstance(card, Mapping)
    limit, clock = card.get("power_limit_w"), card.get("memory_max_mhz")
    load = median(row["power_w"] for row in during)
    if isinstance(limit, int | float) and limit > 0 and load > OVER_LIMIT * limit:
        line = f"under load {number(load)} W in the middle, of a limit of {number(limit)} W = {load / limit:.0%}"
        yield "draws more than the device may", line
    clocks = [row["memory_mhz"] for row in during if row.get("memory_mhz") is not None]
    if isinstance(clock, int | float) and clock > 0 and clocks and median(clocks) > OVER_CLOCK * clock:
        yield (
            "has a faster memory than the device",
            f"memory at {number(median(clocks))} MHz, of {number(clock)} at the most",
        )
