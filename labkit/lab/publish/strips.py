"""The telemetry of a run as strips for its page: power, clocks, temperature and load over its time, measured windows marked."""

import bisect
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.lab.publish.numbers import number

Span = tuple[float, float]
STRIPS = (  # column, name, unit, factor
    ("power_w", "Power", "W", 1.0),
    ("core_mhz", "Core clock", "MHz", 1.0),
    ("memory_mhz", "Memory clock", "MHz", 1.0),
    ("temperature_c", "Temperature", "°C", 1.0),
    ("utilisation", "Load", "%", 100.0),
)
COLUMNS = 240  # of a strip: readings that fall in one are drawn from the lowest to the highest
WIDTH, HEIGHT = 960, 56


@dataclass(frozen=True)
class Strip:
    """One quantity over the run: its lowest, highest and, over the readings inside the measured windows, mean value (None
    where none lies inside), and its drawing as SVG."""

    name: str
    unit: str
    low: float
    high: float
    inside: float | None
    svg: str

    @property
    def words(self) -> str:
        """`40 to 280 W, 279 W while measured`."""
        if self.low == self.high:
            return f"{number(self.low)} {self.unit} throughout"
        words = f"{number(self.low)} to {number(self.high)} {self.unit}"
        return words + (f", {self.inside:.4g} {self.unit} while measured" if self.inside is not None else "")


@dataclass(frozen=True)
class Telemetry:
    """The strips of a run over the same seconds (`start` to `end`), what was marked in them, and what was seen beside."""

    strips: tuple[Strip, ...]
    start: float
    end: float
    readings: int
    marked: str
    notes: tuple[str, ...]


def telemetry_of(readings: Sequence[Mapping[str, Any]], requests: Iterable[Mapping[str, Any]]) -> Telemetry | None:
    """The strips of a run's readings (rows of `telemetry.csv`), with its windows from its requests; None where no card
    told anything twice."""
    rows = sorted((row for row in readings if finite(row.get("time_s"))), key=lambda row: row["time_s"])
    if len(rows) < 2 or rows[0]["time_s"] == rows[-1]["time_s"]:
        return None
    times = [float(row["time_s"]) for row in rows]
    spans, marked = windows(requests)
    strips = []
    for column, name, unit, factor in STRIPS:
        values = [row[column] * factor if finite(row.get(column)) else None for row in rows]
        known = [value for value in values if value is not None]
        if len(known) >= 2:
            lies = [value for at, value in zip(times, values, strict=True) if value is not None and within(at, spans)]
            mean = math.fsum(lies) / len(lies) if lies else None
            strip = Strip(name, unit, min(known), max(known), mean, "")
            strips.append(Strip(name, unit, strip.low, strip.high, mean, drawn(strip, times, values, spans)))
    if not strips:
        return None
    return Telemetry(tuple(strips), times[0], times[-1], len(rows), marked, notes_of(rows, times, spans))


def windows(requests: Iterable[Mapping[str, Any]]) -> tuple[list[Span], str]:
    """(the spans in which tokens were counted, what they are): each request's measured window, else its whole time."""
    exact, whole = [], []
    for row in requests:
        if finite(row.get("window_start_s")) and finite(row.get("window_end_s")):
            exact.append((float(row["window_start_s"]), float(row["window_end_s"])))
        elif finite(row.get("submit_s")) and finite(row.get("last_token_s")):
            whole.append((float(row["submit_s"]), float(row["last_token_s"])))
    if exact:
        return merged(exact), "the measured windows"
    return merged(whole), "the requests at work" if whole else ""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, those that touch put together."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] <= span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def within(at: float, spans: Sequence[Span]) -> bool:
    """Whether a time lies in one of the merged spans."""
    place = bisect.bisect_right(spans, (at, math.inf)) - 1
    return place >= 0 and spans[place][0] <= at <= spans[place][1]


def drawn(strip: Strip, times: Sequence[float], values: Sequence[float | None], spans: Sequence[Span]) -> str:
    """A strip as SVG that stretches to any width: the windows as bands, the readings as a line from the lowest to the
    highest of each column, broken where the card said nothing."""
    start, length = times[0], times[-1] - times[0]
    reach = (strip.high - strip.low) or 1.0

    def x(at: float) -> float:
        return WIDTH * min(max((at - start) / length, 0.0), 1.0)

    def y(value: float) -> float:
        return HEIGHT - 4 - (HEIGHT - 8) * (value - strip.low) / reach if strip.high > strip.low else HEIGHT / 2

    bands = merged((x(a), max(x(b), x(a) + 1)) for a, b in spans if b >= times[0] and a <= times[-1])
    parts = [f'<rect x="{a:.1f}" y="0" width="{b - a:.1f}" height="{HEIGHT}"/>' for a, b in bands]
    lines = " ".join(
        "M" + " L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line) for line in pieces(times, values)
    )
    label = html.escape(f"{strip.name} over the run: {strip.words}", quote=True)
    return (
        f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<g class="windows">{"".join(parts)}</g><path d="{lines}"/></svg>'
    )


def pieces(times: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """The line of a strip in pieces: of each column the first, lowest, highest and last reading, in their order."""
    found: list[list[tuple[float, float]]] = [[]]
    column: list[tuple[float, float]] = []
    width = (times[-1] - times[0]) / COLUMNS
    edge = times[0] + width

    def close() -> None:
        ends = {0, len(column) - 1} if column else set()
        for pick in (min, max):
            if column:
                ends.add(column.index(pick(column, key=lambda point: point[1])))
        found[-1].extend(column[place] for place in sorted(ends))
        column.clear()

    for at, value in zip(times, values, strict=True):
        while at > edge:
            close()
            edge += width
        if value is None:
            close()
            if found[-1]:
                found.append([])
        else:
            column.append((at, value))
    close()
    return [line if len(line) > 1 else [*line, *line] for line in found if line]


def notes_of(rows: Sequence[Mapping[str, Any]], times: Sequence[float], spans: Sequence[Span]) -> tuple[str, ...]:
    """What the readings tell beside the strips: what held the card back, and who else used it."""
    inside = [row for at, row in zip(times, rows, strict=True) if within(at, spans)] or list(rows)
    where = "while measured" if len(inside) < len(rows) or within(times[0], spans) else "over the run"
    held: dict[str, int] = {}
    for row in inside:
        for part in str(row.get("limited") or "").split("+"):
            if part and part != "not told":
                held[part] = held.get(part, 0) + 1
    notes = [
        f"Held back by {name} in {100 * count / len(inside):.3g} % of readings {where}." for name, count in held.items()
    ]
    shared = sum(1 for row in inside if (row.get("others") or 0) > 0)
    if shared:
        notes.append(f"Other processes had the device open in {100 * shared / len(inside):.3g} % of readings {where}.")
    return tuple(notes)


def finite(value: Any) -> bool:
    """Whether a value is a number that can be drawn."""
    return isinstance(value, int | float) and math.isfinite(value)
