"""Admission waves: fewer streams resident than were offered, so that some wait and a rate is one of the queue."""

import itertools
import math
from collections.abc import Iterator, Sequence

from labkit.audit.evidence import Evidence, Observation, Request
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector

SPREAD = 1.5  # between the fastest and the slowest stream, beyond what one batch gives
LIKE = 1.1


@detector("admission-waves", 5, version=3, title="Admission waves", explains=("repetitions",))
def admission_waves(evidence: Evidence) -> Iterator[Notice]:
    """How many streams were resident at once: by the requests' own times, else by the slots there were, else by how far the
    fastest stream is from the slowest (n streams in w waves: the fastest is w times as fast). Fewer than were offered
    warns: what is measured then is the queue, and comparing such cells compares residents."""
    known: dict[str, float] = {}
    for one in evidence.observations:
        for notice, streams in [*by_requests(one)] or [*by_slots(one)]:
            known[one.subject] = streams
            yield notice
    for slowest, fastest in spreads(evidence):
        if {slowest.subject, fastest.subject} <= known.keys():
            continue  # counted already, which is surer than a spread
        notice, streams = by_spread(slowest, fastest)
        known[slowest.subject] = known[fastest.subject] = streams
        yield notice
    yield from compared(evidence, known)


def by_requests(one: Observation) -> Iterator[tuple[Notice, float]]:
    """(notice, residents) from when each request held a slot, in the block that had the fewest at once."""
    if one.phase != "decode" or not one.requests or is_open(one):
        return
    found: list[tuple[int, int, int]] = []
    for block, together in itertools.groupby(sorted(one.requests, key=lambda r: r.block), key=lambda r: r.block):
        requests = list(together)
        if len(requests) > 1 and (at_once := most_at_once(requests)) is not None:
            offered = min(len(requests), int(one.streams)) if one.streams else len(requests)
            found.append((at_once, offered, block))
    if not found:
        return
    resident, offered, block = min(found)
    lines = (f"block {block}: {offered} streams, {resident} at once at the most",)
    if resident >= offered:
        text = f"{one.subject}: all {offered} streams were resident at once"
        yield Notice(outcome="ok", text=text, subject=one.subject, about=(one.subject,), arithmetic=lines), resident
        return
    yield waves(one, offered, resident, lines), resident


def is_open(one: Observation) -> bool:
    """Whether its requests came at moments of a rate, so that nobody says how many there were to be at once."""
    return one.streams is None and any(request.number("due_s") is not None for request in one.requests)


def most_at_once(requests: Sequence[Request]) -> int | None:
    """The most requests that held a slot at the same time; None where their times are not told."""
    events: list[tuple[float, int]] = []
    for request in requests:
        begin = request.number("start_s")
        begin = request.number("first_token_s") if begin is None else begin
        end = request.number("last_token_s")
        if begin is None or end is None or end <= begin:
            return None
        events += [(begin, 1), (end, -1)]
    at_once = most = 0
    for _, change in sorted(events):  # an end comes before a beginning at the same time
        at_once += change
        most = max(most, at_once)
    return most


def by_slots(one: Observation) -> Iterator[tuple[Notice, float]]:
    """(notice, residents) where more streams were offered than there are slots."""
    if one.phase not in ("decode", "mixed") or not one.streams or not one.slots or one.streams <= one.slots:
        return
    lines = (f"{number(one.streams)} streams, {number(one.slots)} slots",)
    yield waves(one, one.streams, one.slots, lines), one.slots


def waves(one: Observation, offered: float, resident: float, lines: tuple[str, ...]) -> Notice:
    """The warning that streams waited."""
    count = math.ceil(offered / resident)
    text = (
        f"{one.subject}: {number(resident)} of {number(offered)} streams were resident at once, the rest waited, in "
        f"{count} waves: its rate is that of {number(resident)} streams"
    )
    shown = (*lines, f"{number(offered)} / {number(resident)} = {number(offered / resident)}, so {count} waves")
    return Notice(outcome="warn", text=text, subject=one.subject, about=(one.subject,), arithmetic=shown)


def spreads(evidence: Evidence) -> Iterator[tuple[Observation, Observation]]:
    """(slowest, fastest) stream's rows of the same conditions."""
    slow: dict[object, Observation] = {}
    for one in evidence.observations:
        if "stream_min_tok_s" in one.metrics and not is_open(one):
            slow[one.group, one.likeness()] = one
    for one in evidence.observations:
        if "stream_max_tok_s" in one.metrics and (slowest := slow.get((one.group, one.likeness()))) is not None:
            yield slowest, one


def by_spread(slowest: Observation, fastest: Observation) -> tuple[Notice, float]:
    """(notice, residents) from how far apart the streams of one batch are."""
    low, high = slowest.metrics["stream_min_tok_s"], fastest.metrics["stream_max_tok_s"]
    offered, about = fastest.streams or 0.0, tuple(dict.fromkeys((slowest.subject, fastest.subject)))
    ratio = high / low if low > 0 else math.inf
    lines = [f"fastest {number(high)} tok/s / slowest {number(low)} tok/s = {number(ratio)}"]
    if ratio < SPREAD or not offered:
        text = f"{fastest.subject}: the fastest stream is {number(ratio)} times the slowest, as in one batch"
        return Notice(outcome="ok", text=text, subject=fastest.subject, about=about, arithmetic=tuple(lines)), offered
    resident = max(1.0, offered / ratio) if math.isfinite(ratio) else 1.0
    lines.append(f"{number(offered)} streams / {number(ratio)} = {number(resident)} resident at once")
    text = (
        f"{fastest.subject}: the fastest of {number(offered)} streams is {number(ratio)} times the slowest, as where "
        f"about {resident:.0f} are resident and the rest wait"
    )
    notice = Notice(outcome="warn", text=text, subject=fastest.subject, about=about, arithmetic=tuple(lines))
    return notice, resident


def compared(evidence: Evidence, known: dict[str, float]) -> Iterator[Notice]:
    """Warnings on cells that are compared with each other although other numbers of streams were resident."""
    pairs = list(evidence.compared()) if evidence.kind == "run" else published_pairs(evidence, known)
    for one, other in pairs:
        a, b = known.get(one.subject), known.get(other.subject)
        if a is None or b is None or one.streams != other.streams or max(a, b) < LIKE * min(a, b):
            continue
        fewer = one if a < b else other  # what is said of the other one stands by itself
        lines = (f"{number(a)} resident against {number(b)}: {number(max(a, b) / min(a, b))} times as many",)
        text = (
            f"{one.subject} and {other.subject} compare {number(a)} resident streams with {number(b)}, whatever else "
            f"was changed"
        )
        yield Notice(outcome="warn", text=text, subject=fewer.subject, about=(fewer.subject,), arithmetic=lines)


def published_pairs(evidence: Evidence, known: dict[str, float]) -> list[tuple[Observation, Observation]]:
    """Rows of one source that give the same metric at the same number of streams under other settings."""
    alike: dict[object, list[Observation]] = {}
    for one in evidence.observations:
        if one.subject in known and one.settings:
            names = ("settings", "tokens_per_pass_max", *one.settings)
            key = (one.source, one.date, one.likeness(*names)[:-1], tuple(one.metrics))
            alike.setdefault(key, []).append(one)
    return [
        pair for group in alike.values() for pair in itertools.pairwise(group) if pair[0].settings != pair[1].settings
    ]
