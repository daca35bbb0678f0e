"""What detectors read: one model of what was measured or claimed, whether it came from a run or from a file of claims.

What is not known is None and is never guessed.
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labkit.audit.devices import Limits

if TYPE_CHECKING:
    from labkit.lab.plan import Plan
    from labkit.lab.record import RunRecord

Phase = Literal["decode", "prefill", "operation", "mixed"]
Cache = Literal["cold", "warm"]
MOST_PAIRS = 10_000  # of cells of a run without a plan
# What must agree for two observations to be of the same conditions; `settings` are compared besides.
CONDITIONS = (
    "device_name", "model", "quantisation", "backend", "phase", "streams", "slots", "tokens_per_pass_max", "depth",
    "prompt_tokens", "output_tokens", "cache", "memory_mhz", "power_cap_w",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One repetition of a metric: its block, its place in the order of measurement, its value."""

    block: int
    order: int
    value: float


@dataclass(frozen=True)
class Request:
    """One row of requests.jsonl. Times are seconds since the run's start; `start_s` is when it got a slot. `row` holds
    the whole of it, whatever else a runtime told."""

    subject: str
    block: int
    row: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A column as a number, None where it is not told; `server.prompt_ms` looks inside a column."""
        value: Any = self.row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """A column as text, None where it is not told."""
        value = self.row.get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class Observation:
    """One cell of a run, or one published row: what was measured, and under which conditions.

    `metrics` are one value a registered metric in its own unit (a run's: the median of its repetitions, which are in
    `samples`); `rounding` is half of the last digit that a published value was written with. `group` ties the rungs of
    one sweep. `pass_bytes` are the bytes one pass over the weights must at least read, `flops_per_token` the operations
    a token must at least take; `operand_bits` is how narrow the operands of the products are. `settings` are what else
    was set, by lever; `witness` is what a record says of each lever's witness at this cell, by lever;
    `knobs` are a run's cell as it was measured. `unclear` are metrics that mean one thing here and another there, with
    what would have to be said: nothing is concluded from them."""

    subject: str
    group: str
    metrics: Mapping[str, float]
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    rounding: Mapping[str, float] = field(default_factory=dict)
    phase: Phase | None = None
    device: Limits | None = None
    device_name: str | None = None
    model: str | None = None
    quantisation: str | None = None
    bytes_per_weight: float | None = None
    active_params: float | None = None
    pass_bytes: float | None = None
    flops_per_token: float | None = None
    operand_bits: int | None = None
    backend: str | None = None
    streams: float | None = None
    slots: float | None = None
    tokens_per_pass_max: float | None = None
    depth: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    cache: Cache | None = None
    memory_mhz: float | None = None
    core_mhz: float | None = None
    power_cap_w: float | None = None
    power_w: float | None = None
    measured_gb_s: float | None = None
    measured_tflop_s: Mapping[str, float] = field(default_factory=dict)
    repetitions: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    witness: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    text: str = ""
    source: str = ""
    date: str = ""

    def value(self, metric: str) -> float | None:
        """A metric's value, None where it was not measured."""
        return self.metrics.get(metric)

    def low(self, metric: str) -> float | None:
        """The least a metric can have been, given the digits it was written with."""
        value = self.metrics.get(metric)
        return None if value is None else value - self.rounding.get(metric, 0.0)

    def high(self, metric: str) -> float | None:
        """The most a metric can have been, given the digits it was written with."""
        value = self.metrics.get(metric)
        return None if value is None else value + self.rounding.get(metric, 0.0)

    def series(self, metric: str) -> tuple[float, ...]:
        """A metric's repetitions in the order they were measured."""
        return tuple(sample.value for sample in sorted(self.samples.get(metric, ()), key=lambda one: one.order))

    def condition(self, name: str) -> Any:
        """A condition by its name, None where it is not known."""
        return getattr(self, name)

    def likeness(self, *but: str) -> tuple[Any, ...]:
        """Its conditions and settings, those named in `but` left out; equal where two observations are alike. What is
        not known equals only what is not known either."""
        conditions = tuple(self.condition(name) for name in CONDITIONS if name not in but)
        settings = tuple(sorted((name, repr(value)) for name, value in self.settings.items() if name not in but))
        return (*conditions, settings)

    def differs(self, other: "Observation", *but: str) -> list[str]:
        """The conditions and settings in which two observations are not the same; those named in `but` left out."""
        settings = {**self.settings, **other.settings}
        found = [name for name in CONDITIONS if name not in but and self.condition(name) != other.condition(name)]
        found += [n for n in settings if n not in but and self.settings.get(n) != other.settings.get(n)]
        return found

    def windows(self) -> list[tuple[float, float]]:
        """(start, end) of each block's work, in seconds since the run's start, by its requests' own times; none where
        they do not tell."""
        ends: dict[int, list[float]] = {}
        for one in self.requests:
            begin, end = one.number("window_start_s"), one.number("window_end_s")
            begin = one.number("start_s") if begin is None else begin
            begin = one.number("submit_s") if begin is None else begin
            end = one.number("last_token_s") if end is None else end
            if begin is not None and end is not None and end > begin:
                ends.setdefault(one.block, []).extend((begin, end))
        return [(min(found), max(found)) for _, found in sorted(ends.items())]

    def knobs_apart(self, other: "Observation") -> list[str]:
        """The knobs of a run's cells that are not set alike."""
        names = {**self.knobs, **other.knobs}
        return [name for name in names if self.knobs.get(name) != other.knobs.get(name)]


@dataclass(frozen=True)
class Evidence:
    """All there is to judge by: the observations, and of a run its record, plan, telemetry, requests and texts.

    `kind` is "run" or "claims"; `texts` are (subject, sentence) of what is said in words; `levers` are the names of the
    knobs that a run varied, or that its plan declares, and `witnesses` what the record says of each one's witness (see
    `labkit.lab.lever_checks.witness_of`), None where it says nothing."""

    kind: Literal["run", "claims"]
    name: str
    observations: tuple[Observation, ...]
    texts: tuple[tuple[str, str], ...] = ()
    record: "RunRecord | None" = None
    plan: "Plan | None" = None
    folder: Path | None = None
    requests: tuple[Request, ...] = ()
    telemetry: tuple[Mapping[str, Any], ...] = ()
    operations: tuple[Mapping[str, Any], ...] = ()  # ops.jsonl of a bench of operations
    levers: tuple[str, ...] = ()
    witnesses: Mapping[str, Any] = field(default_factory=dict)

    def groups(self) -> dict[str, list[Observation]]:
        """The observations by the sweep they are rungs of."""
        found: dict[str, list[Observation]] = {}
        for one in self.observations:
            found.setdefault(one.group, []).append(one)
        return found

    def find(self, subject: str) -> Observation | None:
        """The observation called so."""
        return next((one for one in self.observations if one.subject == subject), None)

    def readings(self, *cells: Observation) -> list[Mapping[str, Any]]:
        """The telemetry while these cells were measured."""
        spans = sorted(span for one in cells for span in one.windows())
        found = []
        for row in self.telemetry:
            at = row.get("time_s")
            place = bisect.bisect_right(spans, (at, math.inf)) if at is not None else 0
            if at is not None and any(start <= at <= end for start, end in spans[max(0, place - 2) : place]):
                found.append(row)
        return found

    def ladders(self, along: str, *but: str) -> Iterator[list[Observation]]:
        """Each series of observations of one group that differ in `along` alone (and in what `but` names), in its
        ascending order; at least two different values of it."""
        for group in self.groups().values():
            alike: dict[Any, list[Observation]] = {}
            for one in group:
                if one.condition(along) is not None:
                    alike.setdefault(one.likeness(along, *but), []).append(one)
            for rungs in alike.values():
                if len({one.condition(along) for one in rungs}) > 1:
                    yield sorted(rungs, key=lambda one: float(one.condition(along)))

    def compared(self) -> Iterator[tuple[Observation, Observation]]:
        """The pairs of cells that a verdict rests on: of the plan's rule and of its negative control."""
        for rule in (self.plan.rule, self.plan.negative_control) if self.plan is not None else ():
            if rule is not None and rule.against is not None:
                yield from self.pair(rule.cell, rule.against)

    def read_against(self) -> Iterator[tuple[Observation, Observation]]:
        """The pairs of cells that anything is said of: those compared, and each cell against the control it differs from
        in one knob; without a plan, every two cells that differ in one knob."""
        if self.plan is None:
            for group in self.groups().values():
                pairs = itertools.islice(itertools.combinations(group, 2), MOST_PAIRS)
                yield from (pair for pair in pairs if len(pair[0].knobs_apart(pair[1])) == 1)
            return
        from labkit.lab.run_effects import of_rule, one_knob_away

        yield from self.compared()
        rules = [rule for rule in (self.plan.rule, self.plan.negative_control) if rule is not None]
        for cell, control in one_knob_away(self.plan):
            if not any(of_rule(rule, cell, control) for rule in rules):
                yield from self.pair(cell, control)

    def pair(self, cell: Mapping[str, Any], against: Mapping[str, Any]) -> Iterator[tuple[Observation, Observation]]:
        """The observations of two cells of the plan; nothing where one of them was not measured."""
        from labkit.lab.plan import cell_words

        ends = [self.find(cell_words(dict(sorted(end.items())))) for end in (cell, against)]
        if ends[0] is not None and ends[1] is not None:
            yield ends[0], ends[1]
