"""Identical timings: raw times that are the same, digit by digit, under different configurations."""

import itertools
from collections.abc import Iterator

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector
from labkit.measure.metrics import METRICS

FEWEST = 3  # values that must agree
DIGITS = 5  # of each, for clocks that tick coarsely
PUBLISHED_DIGITS = 4
PLACES = ("streams", "depth", "prompt_tokens", "output_tokens")


@detector("identical-timings", 13, version=1, title="Identical raw timings")
def identical_timings(evidence: Evidence) -> Iterator[Notice]:
    """Series of at least three repetitions, not all alike, that are equal to the last digit in two cells: a clock does
    not do that, a cache or a replay does. It fails; published values at the same places of two configurations, of at
    least four digits, only warn."""
    yield from in_run(evidence) if evidence.kind == "run" else in_claims(evidence)


def in_run(evidence: Evidence) -> Iterator[Notice]:
    """Cells of a run whose repetitions are the same."""
    seen: dict[tuple[str, tuple[float, ...]], Observation] = {}
    judged: set[str] = set()
    for one in evidence.observations:
        for metric, samples in one.samples.items():
            values = tuple(sample.value for sample in sorted(samples, key=lambda sample: (sample.block, sample.order)))
            if metric not in METRICS or not METRICS[metric].timed or not telling(values):
                continue
            judged.add(one.subject)
            other = seen.setdefault((metric, values), one)
            if other is not one:
                yield same(other, one, metric, values, "fail")
    if len(judged) > 1 and len(seen) > 1:
        text = f"the timings of {len(judged)} cells differ from cell to cell"
        yield Notice(outcome="ok", text=text, subject=evidence.name, about=tuple(sorted(judged)))


def in_claims(evidence: Evidence) -> Iterator[Notice]:
    """Rows of two configurations of one source that have the same values at all the places both have."""
    series: dict[tuple[str, str, str, object], dict[tuple[object, ...], Observation]] = {}
    for one in evidence.observations:
        for metric in one.metrics:
            if metric in METRICS and METRICS[metric].timed and digits(one.metrics[metric]) >= PUBLISHED_DIGITS:
                key = (one.source, one.date, metric, one.likeness(*PLACES))
                series.setdefault(key, {})[tuple(one.condition(place) for place in PLACES)] = one
    by_source: dict[tuple[str, str, str], list[dict[tuple[object, ...], Observation]]] = {}
    for (source, date, metric, _), rows in series.items():
        if len(rows) >= FEWEST:
            by_source.setdefault((source, date, metric), []).append(rows)
    for (_, _, name), configurations in by_source.items():
        for first, second in itertools.islice(itertools.combinations(configurations, 2), 10_000):
            places = [place for place in first if place in second]
            values = tuple(first[place].metrics[name] for place in places)
            equal = all(first[place].metrics[name] == second[place].metrics[name] for place in places)
            if len(places) >= FEWEST and equal and len(set(values)) > 1:
                yield same(first[places[0]], second[places[0]], name, values, "warn")


def telling(values: tuple[float, ...]) -> bool:
    """Whether equal series would be told apart from chance: long enough, not constant, of enough digits."""
    return len(values) >= FEWEST and len(set(values)) > 1 and all(digits(value) >= DIGITS for value in values)


def digits(value: float) -> int:
    """Significant digits that a value is written with."""
    return len(repr(float(value)).partition("e")[0].replace(".", "").replace("-", "").strip("0"))


def same(one: Observation, other: Observation, metric: str, values: tuple[float, ...], outcome: str) -> Notice:
    """The notice on two equal series."""
    shown = ", ".join(repr(value) if digits(value) > DIGITS else number(value) for value in values[:FEWEST])
    lines = (f"{metric}: {shown}{', …' if len(values) > FEWEST else ''} in both, {len(values)} of {len(values)} equal",)
    text = f"{one.subject} and {other.subject} have the same {metric} to the last digit, {len(values)} times"
    about = (one.subject, other.subject)
    return Notice(outcome=outcome, text=text, subject=other.subject, about=about, arithmetic=lines)  # type: ignore[arg-type]
