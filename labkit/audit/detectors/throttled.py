"""Throttling: a card held back by heat, power or current while it was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.registry import detector
from labkit.measure.telemetry import UNTOLD

MOST_SHARE = 0.05  # of the readings: below it a limit was touched, and no rate is of it
CHOSEN = ("application clocks",)  # a setting, and no throttling
FOLLOWS = ("repetitions", "faster-than-solo", "power-against-bandwidth")


@detector("throttled", 18, version=2, title="Thermal or power throttling", explains=FOLLOWS)
def throttled(evidence: Evidence) -> Iterator[Notice]:
    """The share of the readings under load in which heat, the power cap or a current limit held the card's clocks back.
    Over 5 % warns: the rates are those of the limit, and cells that met it are not like those that did not. So does a power
    cap that was changed meanwhile."""
    if evidence.record is None:
        return
    yield from changed_cap(evidence)
    shares, cells, source = read_shares(evidence)
    if shares is None:
        text = f"whether the card of {evidence.name} was held back is not known"
        missing = ("readings of what limits its clocks",)
        yield Notice(outcome="not assessable", text=text, subject=evidence.name, missing=missing)
        return
    over = {name: share for name, share in shares.items() if share > MOST_SHARE and name not in CHOSEN}
    if not over:
        yield Notice(outcome="ok", text=f"nothing held the card of {evidence.name} back", subject=evidence.name)
        return
    lines = [f"{name}: {share:.0%} of the {source}, of {MOST_SHARE:.0%} at the most" for name, share in over.items()]
    lines += [f"{one.subject}: {share:.0%} of its readings" for one, share in cells]
    some = f" at {len(cells)} of {len(evidence.observations)} cells" if len(cells) < len(evidence.observations) else ""
    where = some if cells else ""
    text = f"{evidence.name} was held back by {' and '.join(over)}{where}: its rates are those of the limit"
    about = tuple(one.subject for one, _ in cells)
    yield Notice(outcome="warn", text=text, subject=evidence.name, about=about, arithmetic=tuple(lines))


def changed_cap(evidence: Evidence) -> Iterator[Notice]:
    """The warning that the power cap did not stay what it was."""
    seen = evidence.record.neighbours if evidence.record is not None else None
    caps = seen.power_caps_w if seen is not None else ()
    if len(caps) > 1:
        text = f"the power cap of {evidence.name} was changed while it measured: its cells are not under one cap"
        lines = (f"{', then '.join(f'{cap:g}' for cap in caps)} W",)
        yield Notice(outcome="warn", text=text, subject=evidence.name, arithmetic=lines)


def read_shares(evidence: Evidence) -> tuple[dict[str, float] | None, list[tuple[Observation, float]], str]:
    """(share by reason, cells that were held back with their shares, what it is a share of): by the telemetry under
    load, else by the looks at the card; None where neither tells."""
    during = told(evidence.readings(*evidence.observations))
    if during:
        cells = [(one, held(told(evidence.readings(one)))) for one in evidence.observations]
        return by_reason(during), [(one, share) for one, share in cells if share > MOST_SHARE], "readings under load"
    if whole := told(evidence.telemetry):
        return by_reason(whole), [], "readings"
    seen = evidence.record.neighbours if evidence.record is not None else None
    knows = seen is not None and any(source not in ("fdinfo", "CPU load") for source in seen.sources)
    return (dict(seen.throttled) if seen is not None and (knows or seen.throttled) else None), [], "looks at the card"


def told(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The readings of a card that has sensors, and would say what holds it back."""
    return [
        row
        for row in rows
        if (row.get("power_w") is not None or row.get("core_mhz") is not None or row.get("limited"))
        and row.get("limited") != UNTOLD
    ]


def by_reason(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Reason → the share of the readings in which it held."""
    counts: dict[str, int] = {}
    for row in rows:
        for reason in filter(None, str(row.get("limited") or "").split("+")):
            counts[reason] = counts.get(reason, 0) + 1
    return {reason: number / len(rows) for reason, number in sorted(counts.items())}


def held(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of readings in which anything but a setting held the card back."""
    found = [row for row in rows if set(filter(None, str(row.get("limited") or "").split("+"))) - set(CHOSEN)]
    return len(found) / len(rows) if rows else 0.0
