"""The power of a stored run: its readings, the windows its cells worked in, and what a token of each cost."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from labkit.audit.run_files import read_lines, read_telemetry
from labkit.errors import RunError
from labkit.lab.lab import Lab
from labkit.lab.measurements import read_rows
from labkit.lab.record import RunRecord, canonical_cell, read_record
from labkit.measure.sensor import Renewal, renewal
from labkit.measure.telemetry import Reading
from labkit.measure.token_energy import Rest, Span, TokenEnergy, mean_reading, rest, token_energy, within
from labkit.measure.transients import Steady, Transients, steady, transients

AWAKE = 0.9  # of the clock while it works: below it a card that rests has gone to sleep
APART_S = 0.3  # from a request: what is read nearer to it may be of its work


@dataclass(frozen=True)
class Work:
    """One cell of one block: the windows it worked in, seconds since the run's start, and the tokens of these windows,
    emitted by decoding or read of prompts. `gb_s`: the bandwidth that its rate implies, None where none is kept."""

    cell: dict[str, Any]
    block: int
    phase: Literal["decode", "prefill"]
    spans: tuple[Span, ...]
    tokens: int
    gb_s: float | None = None

    @property
    def streams(self) -> int:
        """Streams at once, 1 where the cell does not say."""
        return int(next((self.cell[name] for name in ("streams", "width", "batch") if name in self.cell), 1))


@dataclass(frozen=True)
class CellCost:
    """What one cell cost over its blocks: of each, its work and the energy of a token."""

    works: tuple[Work, ...]
    spent: tuple[TokenEnergy, ...]
    capped: float | None  # share of the readings in which the cap held the card back

    @property
    def phase(self) -> str:
        """`decode` or `prefill`."""
        return self.works[0].phase

    @property
    def streams(self) -> int:
        """Streams at once."""
        return self.works[0].streams

    @property
    def runtime(self) -> str:
        """Which engine ran it; labkit where the cell names none."""
        return str(self.works[0].cell.get("runtime", "labkit"))

    @property
    def prompt(self) -> int:
        """Tokens of a prompt, 0 where the cell does not say."""
        return int(self.works[0].cell.get("prompt", 0))

    @property
    def joules(self) -> dict[int, float]:
        """Joules a token by block, where they are told."""
        both = zip(self.works, self.spent, strict=True)
        return {work.block: spent.joules for work, spent in both if spent.joules is not None}

    @property
    def power(self) -> list[tuple[float, float]]:
        """(GB/s, watts) of each block that tells both."""
        both = zip(self.works, self.spent, strict=True)
        return [(work.gb_s, spent.watts) for work, spent in both if work.gb_s and spent.watts is not None]

    def row(self) -> dict[str, Any]:
        """Means over the blocks, a column each; None where no block tells."""

        def mean(values: list[float | None]) -> float | None:
            told = [value for value in values if value is not None]
            return fmean(told) if told else None

        return {
            "runtime": self.runtime, "phase": self.phase, "streams": self.streams, "prompt": self.prompt,
            "J a token": mean([one.joules for one in self.spent]), "above rest": mean([one.above_rest for one in self.spent]),
            "W": mean([one.watts for one in self.spent]), "GB/s": mean([one.gb_s for one in self.works]),
            "held by the cap": self.capped, "blocks told": len(self.joules), "of": len(self.works),
        }  # fmt: skip


@dataclass(frozen=True)
class StoredPower:
    """A stored run by its power. `cap_w`: the power limit its record tells, None where it does not; `busy`: each request
    from its submission to its end."""

    record: RunRecord
    readings: tuple[tuple[float, Reading], ...]
    works: tuple[Work, ...]
    renewal: Renewal
    cap_w: float | None
    busy: tuple[Span, ...] = field(repr=False)

    @property
    def span(self) -> Span:
        """From the first submission to the last end."""
        return min(start for start, _ in self.busy), max(end for _, end in self.busy)

    @cached_property
    def rest(self) -> Rest:
        """Power at rest with the clocks up, as they are while it works: in readings away from every request, in which the
        card was not busy either."""
        return rest(self.readings, self._free(), least_mhz=self._awake_mhz())

    @cached_property
    def asleep(self) -> Rest:
        """Power at rest with the clocks down."""
        return rest(self.readings, self._free(), most_mhz=self._awake_mhz())

    def _awake_mhz(self) -> float:
        return AWAKE * (
            mean_reading(self.readings, [span for work in self.works for span in work.spans], "core_mhz") or 0
        )

    def _free(self) -> list[Span]:
        free, at = [], float("-inf")
        for start, end in sorted((start - APART_S, end + APART_S) for start, end in self.busy):
            free += [(at, start)] if start > at else []
            at = max(at, end)
        return [*free, (at, float("inf"))]

    def spent(self, work: Work) -> TokenEnergy:
        """What a token of it cost."""
        return token_energy(self.readings, work.spans, work.tokens, self.renewal.seconds, self.rest.watts)

    def cells(self) -> list[CellCost]:
        """What each of its cells cost: by runtime, phase, prompt and streams."""
        groups: dict[str, list[Work]] = {}
        for work in self.works:
            groups.setdefault(canonical_cell(work.cell), []).append(work)
        found = [CellCost(tuple(some), tuple(map(self.spent, some)), self.capped(some)) for some in groups.values()]
        return sorted(found, key=lambda cell: (cell.runtime, cell.phase, cell.prompt, cell.streams))

    @property
    def weights(self) -> str:
        """Its quantisation where its parameters name one, else its model."""
        return str(self.record.parameters.get("quant") or (self.record.model or {}).get("name", "unnamed"))

    def row(self) -> dict[str, Any]:
        """What its readings can say, a column each."""
        seen, heat = self.transients(), self.steady()
        of_cap = "" if seen.peak_of_cap is None else f", {seen.peak_of_cap:.0%} of {self.cap_w:g}"
        return {
            "run": self.record.id[-8:], "weights": self.weights, "sensor": str(self.renewal), "mean (W)": round(seen.mean_w),
            "highest (W)": f"{seen.peak_w:.0f}{of_cap}", "readings above": seen.over_cap, "held by the cap": self.capped(),
            "at rest (W)": self.rest.watts, "asleep (W)": self.asleep.watts,
            "steady": {True: "yes", False: "no", None: "not told"}[heat.steady],
        }  # fmt: skip

    def transients(self) -> Transients:
        """Peak, mean and cap while requests ran."""
        return transients(self.readings, *self.span, self.cap_w)

    def steady(self, metric: str = "temperature_c") -> Steady:
        """Whether it was steady while requests ran."""
        return steady(self.readings, *self.span, metric)

    def capped(self, works: Sequence[Work] = ()) -> float | None:
        """The share of the readings, while these cells (all when left out) worked, in which the card said that its power
        cap held it back; None without a reading."""
        spans = [span for work in works or self.works for span in work.spans]
        inside = [one for at, one in self.readings if within(at, spans)]
        return sum("power cap" in one.limited.split("+") for one in inside) / len(inside) if inside else None


def stored_powers(lab: Lab, names: Sequence[str] = (), experiment: str = "bench") -> list[StoredPower]:
    """The power of the runs called so; without names of every completed run of an experiment that tells any, oldest first."""
    if names:
        return [find_stored(lab, str(name)) for name in names]
    found = []
    for run in lab.runs(experiment, "completed"):
        with contextlib.suppress(RunError):  # made without a sensor
            found.append(read_stored(run.folder))
    return sorted(found, key=lambda one: one.record.id)


def find_stored(lab: Lab, name: str) -> StoredPower:
    """The power of the run called `name`, its id or a folder. RunError where there is no such run, or no power in it."""
    folder = Path(name)
    if (folder / "run.json").is_file():
        return read_stored(folder)
    if (lab.root / name / "run.json").is_file():
        return read_stored(lab.root / name)
    return read_stored(lab.find_run(name).folder)


def read_stored(folder: Path) -> StoredPower:
    """The power of the run in `folder`. RunError where its telemetry tells no power, or its requests no times."""
    record = read_record(folder)
    names = {one.name for one in fields(Reading)}
    readings = []
    for row in read_telemetry(folder / "telemetry.csv"):
        if (at := row.get("time_s")) is not None:
            known = {name: value for name, value in row.items() if name in names and value is not None}
            readings.append((float(at), Reading(**known)))
    if sum(one.power_w is not None for _, one in readings) < 2:
        raise RunError(
            f"{folder.name} has no readings of power: its device told none, or it was made without telemetry"
        )
    works, busy = read_works(folder)
    if not works:
        raise RunError(f"{folder.name} has no requests with times: what its power was spent on is not known")
    card = (record.device or {}).get("card")
    cap = card.get("power_limit_w") if isinstance(card, dict) else None
    told = float(cap) if isinstance(cap, int | float) else None
    return StoredPower(record, tuple(readings), tuple(works), renewal(readings), told, tuple(busy))


def read_works(folder: Path) -> tuple[list[Work], list[Span]]:
    """The cells of a run with their windows, and every request's span. A request that says no window is read whole where it
    made one token, a prompt that was read; else it tells nothing of either half, and is left out."""
    gb_s = {(r.cell, r.block): r.value for r in read_rows(folder / "measurements.csv") if r.metric == "achieved_gb_s"}
    found: dict[tuple[str, int], dict[Span, int]] = {}
    cells: dict[str, dict[str, Any]] = {}
    busy = []
    for row in read_lines(folder / "requests.jsonl"):
        submit, last, cell = row.get("submit_s"), row.get("last_token_s"), row.get("cell")
        if not isinstance(submit, int | float) or not isinstance(last, int | float) or not isinstance(cell, dict):
            continue  # a request that failed
        busy.append((float(submit), float(last)))
        if row.get("window_start_s") is not None:
            span, tokens = (float(row["window_start_s"]), float(row["window_end_s"])), int(row["window_tokens"])
        elif row.get("completion_tokens") == 1:
            span, tokens = (float(submit), float(last)), int(row["prompt_tokens"])
        else:
            continue
        name = canonical_cell(cell)
        cells[name] = cell
        windows = found.setdefault((name, int(row["block"])), {})
        windows[span] = windows.get(span, 0) + tokens
    works = [
        Work(
            cells[name],
            block,
            "prefill" if cells[name].get("phase") == "prefill" else "decode",
            tuple(sorted(windows)),
            sum(windows.values()),
            gb_s.get((name, block)),
        )
        for (name, block), windows in found.items()
    ]
    return sorted(works, key=lambda work: work.spans[0]), busy
