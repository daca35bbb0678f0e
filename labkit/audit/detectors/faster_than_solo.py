"""Faster than solo: a stream in company that is faster than alone, a step that gets shorter as the batch grows."""

from collections.abc import Iterator

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import THROUGHPUTS, bounds, counted, number, resident
from labkit.audit.registry import detector

OVER = 1.10
IMPOSSIBLE = 2.0  # what no clock that rises under load, and no better kernel for more rows, has been seen to give
RATES = (*THROUGHPUTS[:1], "stream_tok_s")


@detector("faster-than-solo", 7, version=1, title="Faster than solo", explains=("power-against-bandwidth",))
def faster_than_solo(evidence: Evidence) -> Iterator[Notice]:
    """The rate of a stream among n against that of one alone under the same conditions, or against the rung with the
    fewest streams where none was alone: a pass with more rows reads no less. Over 1.10 times warns, over 2 times fails;
    throughput that was multiplied by the batch once too often looks so."""
    for ladder in evidence.ladders("streams", "slots"):
        rates = [(one, name) for one in ladder for name in RATES if name in one.metrics]
        steps = [(one, "step_ms") for one in ladder if "step_ms" in one.metrics]
        yield from judge(rates)
        if not rates:
            yield from judge(steps)


def judge(rungs: list[tuple[Observation, str]]) -> Iterator[Notice]:
    """Notices on the rungs of one ladder, against its first."""
    if not rungs or not rungs[0][0].streams:
        return
    reference, name = rungs[0]
    solo = rate_of(reference, name)
    if solo is None or solo[1] <= 0:
        return
    alone = "alone" if reference.streams == 1 else f"among {number(reference.streams or 0)}"
    for one, metric in rungs[1:]:
        among = rate_of(one, metric)
        if among is None or one.streams == reference.streams:
            continue
        ratio, sure = among[1] / solo[1], among[0] / solo[2]
        lines = (
            f"{reference.subject}: {words(reference, name)} = {number(solo[1])} a second for each stream",
            f"{one.subject}: {words(one, metric)} = {number(among[1])} a second for each stream",
            f"{number(among[1])} / {number(solo[1])} = {number(ratio)}, of {OVER:.2f} at the most",
        )
        about = (one.subject,)
        if ratio <= OVER or not apart(reference, name, one, metric):
            text = f"a stream of {one.subject} is {number(ratio)} times as fast as {alone}"
            yield Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=lines)
            continue
        text = (
            f"a stream of {one.subject} is {number(ratio)} times as fast among {number(one.streams or 0)} as {alone}: a "
            f"step that reads the same weights for more rows took {1 - 1 / ratio:.0%} less time"
        )
        outcome = "fail" if sure >= IMPOSSIBLE else "warn"
        yield Notice(outcome=outcome, text=text, subject=one.subject, about=about, arithmetic=lines)  # type: ignore[arg-type]


def rate_of(one: Observation, metric: str) -> tuple[float, float, float] | None:
    """Tokens, or steps, a second of each stream: at the least, as stated, at the most."""
    found, value = bounds(one, metric), one.value(metric)
    if found is None or value is None or value <= 0:
        return None
    if metric == "step_ms":
        return 1e3 / found[1], 1e3 / value, 1e3 / max(found[0], 1e-9)
    streams = resident(one) if metric in THROUGHPUTS else 1.0
    return (found[0] / streams, value / streams, found[1] / streams) if streams else None


def words(one: Observation, metric: str) -> str:
    """A rung's rate in words."""
    value = number(one.metrics[metric])
    if metric == "step_ms":
        return f"1,000 / {value} ms"
    return f"{value} tok/s / {counted(resident(one) or 1, 'stream')}" if metric in THROUGHPUTS else f"{value} tok/s"


def apart(reference: Observation, name: str, one: Observation, metric: str) -> bool:
    """Whether the digits, or the repetitions, of two rungs keep clear of each other: every one of the faster above every
    one of the slower."""
    first, second = reference.series(name), one.series(metric)
    if len(first) < 2 or len(second) < 2 or name != metric:
        slow, fast = rate_of(reference, name), rate_of(one, metric)
        return slow is not None and fast is not None and fast[0] > slow[2]
    if name == "step_ms":
        return max(second) < min(first)
    return min(second) / (resident(one) or 1) > max(first) / (resident(reference) or 1)
