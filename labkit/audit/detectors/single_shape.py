"""Single shape: what should not be claimed, for it was not measured; it withholds nothing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.registry import detector
from labkit.lab.conditions import beyond, unreached
from labkit.lab.coverage import Coverage, Range, coverage_of, requested_coverage, spanned
from labkit.lab.events import Scope
from labkit.lab.plan import Plan
from labkit.lab.scope import scope_of


@dataclass(frozen=True)
class Reached:
    """What a run measured, of what: its own plan, coverage and scope."""

    plan: Plan
    coverage: Coverage
    scope: Scope


@detector("single-shape", 16, version=1, title="Shapes that were not measured")
def single_shape(evidence: Evidence) -> Iterator[Notice]:
    """The streams, depths, lengths, contents, settings, models and devices that were not measured, as the entry of a
    finding lists them. Never withholds: it says what should not be claimed."""
    if evidence.kind == "claims":
        for group, rows in evidence.groups().items():
            yield from said(group, published(rows), tuple(row.subject for row in rows))
        return
    yield from said(evidence.name, limits(evidence), ())


def limits(evidence: Evidence) -> list[str]:
    """What a run does not reach, a sentence each: by its plan where it has one, else by its requests."""
    record, plan = evidence.record, evidence.plan
    if record is not None and plan is not None and evidence.folder is not None:
        coverage = coverage_of(record, plan, evidence.folder)
        return list(beyond(Reached(plan, coverage, scope_of(record, plan))))
    asked = requested_coverage(request.row for request in evidence.requests)
    return list(unreached(asked.model_copy(update={"streams": streams_of(evidence.observations)})))


def published(rows: Sequence[Observation]) -> list[str]:
    """What the rows of one published sweep do not reach, a sentence each; nothing on what they leave open."""
    devices = sorted({row.device_name for row in rows if row.device_name})
    coverage = Coverage(
        streams=streams_of(rows),
        prompt_tokens=span([row.prompt_tokens for row in rows]),
        output_tokens=span([row.output_tokens for row in rows]),
        depth=span([row.depth for row in rows]),
    )
    cards = [f"Anything about other cards than {' and '.join(devices)}"] if devices else []
    return [*cards, *unreached(coverage)]


def streams_of(rows: Sequence[Observation]) -> tuple[int, ...]:
    """The numbers of streams that were measured."""
    return tuple(sorted({int(row.streams) for row in rows if row.streams and math.isfinite(row.streams)}))


def span(values: Sequence[float | None]) -> Range | None:
    """The shortest and the longest of the lengths that are known."""
    return spanned((int(value), int(value)) for value in values if value and math.isfinite(value))


def said(name: str, lines: Sequence[str], about: tuple[str, ...]) -> Iterator[Notice]:
    """The notice with what should not be claimed of a run or a sweep."""
    if not lines:
        text = f"what {name} reached is not told, so neither is what it did not"
        missing = ("numbers of streams, lengths or contents",)
        yield Notice(outcome="not assessable", text=text, subject=name, about=about, missing=missing)
        return
    text = f"{name} should not be claimed to show: {'; '.join(' '.join(line.split()) for line in lines)}"
    yield Notice(outcome="ok", text=text, subject=name, about=about, arithmetic=tuple(lines))
