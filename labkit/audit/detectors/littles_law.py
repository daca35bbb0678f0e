"""Little's law: tokens a second times the time of a token is how many streams there were, and cannot be more."""

from collections.abc import Iterator
from statistics import median

from labkit.audit.evidence import Evidence, Observation, Request
from labkit.audit.notice import Notice
from labkit.audit.physics import THROUGHPUTS, number
from labkit.audit.registry import detector

TIMES = ("tpot_s", "itl_s", "step_ms")
OVER = 1.05
WINDOWS = 1.5  # what a mean time over other requests, or another window, may add


@detector("littles-law", 6, version=5, title="Little's law", explains=("faster-than-solo",))
def littles_law(evidence: Evidence) -> Iterator[Notice]:
    """Throughput × time per token against the number of streams, where both are given for the same conditions. Over 5 %
    more warns; it fails beyond what a mean over another window explains (1.5 times), and at once where both are of the
    same steps. The law is of means: the median of gaps stands for one only where no mean is told. A request's mean time
    holds what others' prompts cost it, which a rate while all decode does not: where the requests of a run tell when their
    tokens came, the time of a token is taken from the same window as the rate."""
    alike: dict[object, list[Observation]] = {}
    for one in evidence.observations:
        alike.setdefault((one.group, one.likeness()), []).append(one)
    for together in alike.values():
        for rate in THROUGHPUTS:
            for time in times_of(together):
                yield from judge(rate, time, together)


def times_of(together: list[Observation]) -> tuple[str, ...]:
    """The times of a token that are told: not the median of gaps beside a mean, which may lie on either side of it."""
    known = {name for one in together for name in one.metrics}
    return tuple(name for name in TIMES if name != "itl_s" or "tpot_s" not in known)


def judge(rate: str, time: str, together: list[Observation]) -> Iterator[Notice]:
    """The notice on a throughput and a time of the same conditions; none where one of them is not given."""
    first = next((one for one in together if rate in one.metrics and rate not in one.unclear), None)
    second = next((one for one in together if time in one.metrics), None)
    if first is None or second is None:
        return
    about = tuple(dict.fromkeys((first.subject, second.subject)))
    tokens = first.tokens_per_pass_max if time == "step_ms" else 1.0
    if not first.streams or not tokens:
        lack = "the number of streams" if not first.streams else "the most tokens a stream gets from one pass"
        text = f"{first.subject} cannot be held against Little's law: {lack} is not known"
        yield Notice(outcome="not assessable", text=text, subject=first.subject, about=about, missing=(lack,))
        return
    scale = 1e-3 if time == "step_ms" else 1.0
    least, x, t = least_product(first, second, rate, time, scale)
    if first is second and (rate, time) == ("decode_tok_s", "tpot_s") and (found := window_product(first)) is not None:
        least, x, t = found
    streams, limit = least / tokens, first.streams
    each = f" / {number(tokens)} tokens a step" if tokens != 1 else ""
    lines = (
        f"{number(x)} tok/s × {number(t)} s{each} = {number(streams)} streams, of {number(limit)} that there were",
        f"{number(streams)} / {number(limit)} = {number(streams / limit)}, of {OVER} at the most",
    )
    if streams <= OVER * limit:
        text = f"{first.subject} agrees with Little's law: {number(streams)} streams of {number(limit)}"
        yield Notice(outcome="ok", text=text, subject=first.subject, about=about, arithmetic=lines)
        return
    sure = streams > WINDOWS * limit or (time == "step_ms" and first is second)
    text = (
        f"{first.subject} breaks Little's law: its rate and its time a token need {number(streams)} streams, and it had "
        f"{number(limit)}"
    )
    outcome = "fail" if sure else "warn"
    yield Notice(outcome=outcome, text=text, subject=first.subject, about=about, arithmetic=lines)  # type: ignore[arg-type]


def window_product(one: Observation) -> tuple[float, float, float] | None:
    """The product, the rate and the seconds a token took in the window in which all requests of a block decode, by when
    their tokens came: of the median block. None where a block does not tell, or has other requests than streams."""
    from labkit.measure.serving.served import Served

    blocks: dict[int, list[Request]] = {}
    for request in one.requests:
        blocks.setdefault(request.block, []).append(request)
    pairs = []
    for sample in one.samples.get("decode_tok_s", ()):
        rows = [request.row for request in blocks.get(sample.block, ())]
        if len(rows) != one.streams or not all(row.get("gaps_s") for row in rows):
            return None
        window, _ = Served.of_rows(rows).window
        if window is None:
            return None
        pairs.append((sample.value, window.step_s))
    pairs.sort(key=lambda pair: pair[0] * pair[1])
    x, t = pairs[len(pairs) // 2]
    return x * t, x, t


def least_product(
    first: Observation, second: Observation, rate: str, time: str, scale: float
) -> tuple[float, float, float]:
    """The product at the least, and the rate and the seconds it is of; of one cell, by repetition."""
    paired = {(sample.block, sample.order): sample.value for sample in second.samples.get(time, ())}
    pairs = [
        (sample.value, paired[sample.block, sample.order] * scale)
        for sample in first.samples.get(rate, ())
        if first is second and (sample.block, sample.order) in paired
    ]
    if pairs:
        x, t = sorted(pairs, key=lambda pair: pair[0] * pair[1])[len(pairs) // 2]
        return median(x * t for x, t in pairs), x, t
    x, t = first.low(rate) or 0.0, (second.low(time) or 0.0) * scale
    return x * t, x, t
