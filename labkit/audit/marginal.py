"""Marginal rates: what two rungs of a ladder say of the tokens, or the positions, that lie between them."""

from collections.abc import Iterator

from labkit.audit.evidence import Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import Implied, bounds, number, operations_per_token

OVER = 1.02
APART = 1.5  # rungs nearer than this have no marginal rate worth the name
NOISE = 0.03  # of a time without repetitions, either way
FEWEST = 3  # repetitions that tell their own noise
LEAST_PROMPT = 512  # tokens; of a shorter prompt the arithmetic may have been hidden behind the reading of the weights
Times = tuple[float, float, float]  # at the least, as measured, at the most


def pairs(ladder: list[Observation], along: str) -> Iterator[tuple[Observation, Observation]]:
    """Each rung with the highest one that lies at least 1.5 times below it."""
    for place, upper in enumerate(ladder):
        below = [one for one in ladder[:place] if one.condition(along) * APART <= upper.condition(along)]
        if below:
            yield below[-1], upper


def further_tokens(ladder: list[Observation]) -> Iterator[Notice]:
    """Fails a longer prompt whose further tokens were read faster than the device multiplies: they were not computed."""
    rungs = [
        one for one in ladder
        if one.cache != "warm" and (one.prompt_tokens or 0) >= LEAST_PROMPT and prompt_times(one) is not None
    ]  # fmt: skip
    for shorter, longer in pairs(rungs, "prompt_tokens"):
        brief, lengthy, each = prompt_times(shorter), prompt_times(longer), operations_per_token(longer)
        if longer.device is None or brief is None or lengthy is None or each.value is None:
            continue
        limit, words = longer.device.rate_limit(longer.operand_bits)
        tokens = (longer.prompt_tokens or 0) - (shorter.prompt_tokens or 0)
        what = f"the last {number(tokens)} tokens of {longer.subject} are impossible as computed"
        amount = Implied(
            tokens * each.value / 1e12, (*each.lines, product(tokens, "tokens", each.value / 1e9, "GFLOP"))
        )
        yield from held(longer, what, brief, lengthy, amount, limit, words, "TFLOP")


def further_reads(ladder: list[Observation]) -> Iterator[Notice]:
    """Fails a deeper cell whose further positions were read faster than the memory is: they were not there."""
    rungs = [one for one in ladder if one.pass_bytes is not None and one.phase == "decode" and "step_ms" in one.metrics]
    for shallow, deep in pairs(rungs, "depth"):
        brief, lengthy = times(shallow, "step_ms", 1e-3), times(deep, "step_ms", 1e-3)
        if deep.device is None or brief is None or lengthy is None or not deep.pass_bytes or not shallow.pass_bytes:
            continue
        more = deep.pass_bytes - shallow.pass_bytes
        if more <= 4 * (deep.device.cache_bytes or 64 << 20):
            continue
        limit, words = deep.device.memory_limit(deep.memory_mhz)
        what = f"the further positions of {deep.subject} cannot have been read"
        line = f"{number(deep.pass_bytes / 1e9)} GB − {number(shallow.pass_bytes / 1e9)} GB = {number(more / 1e9)} GB a step"
        yield from held(deep, what, brief, lengthy, Implied(more / 1e9, (line,)), limit, words, "GB")


def held(
    one: Observation,
    what: str,
    before: Times,
    after: Times,
    amount: Implied,
    limit: float | None,
    words: str,
    unit: str,
) -> Iterator[Notice]:
    """The fail of an amount of work that took less time than the device needs for it, sure of the times; else nothing."""
    if limit is None or amount.value is None:
        return
    needed, took, most = amount.value / limit, after[1] - before[1], after[2] - before[0]
    if needed <= OVER * max(most, 0.0):
        return
    lines = [
        *amount.lines,
        f"limit: {words}: {number(amount.value)} {unit} / {number(limit)} {unit}/s = {number(needed)} s at the least",
        f"{number(after[1])} s − {number(before[1])} s = {number(took)} s, {number(max(most, 0.0))} s at the most",
    ]
    if took > 0:
        implied = amount.value / took
        lines.append(
            f"{number(amount.value)} {unit} / {number(took)} s = {number(implied)} {unit}/s, {implied / limit:.0%} of it"
        )
    text = (
        f"{what}: {number(amount.value)} {unit} in {number(max(took, 0.0))} s, of a device that does {number(limit)} "
        f"{unit}/s at the most"
    )
    yield Notice(outcome="fail", text=text, subject=one.subject, about=(one.subject,), arithmetic=tuple(lines))


def product(count: float, noun: str, each: float, unit: str) -> str:
    """A line that multiplies a count: `28,162 tokens × 46.8 GFLOP = 1,318 TFLOP`."""
    return f"{number(count)} {noun} × {number(each)} {unit} = {number(count * each / 1e3)} {unit.replace('G', 'T', 1)}"


def prompt_times(one: Observation) -> Times | None:
    """Seconds that reading the prompt took; None where neither its time nor its rate is known."""
    if (found := times(one, "ttft_s")) is not None:
        return found
    rate = times(one, "prefill_tok_s")
    if rate is None or not one.prompt_tokens or rate[0] <= 0:
        return None
    return one.prompt_tokens / rate[2], one.prompt_tokens / rate[1], one.prompt_tokens / rate[0]


def times(one: Observation, metric: str, scale: float = 1.0) -> Times | None:
    """A metric at the least, as measured and at the most: by its repetitions where there are enough, else by its digits
    and a few percent of noise."""
    found, value = bounds(one, metric), one.value(metric)
    if found is None or value is None:
        return None
    low, high = found
    if len(one.series(metric)) < FEWEST:
        low, high = min(low, value) * (1 - NOISE), max(high, value) * (1 + NOISE)
    return low * scale, value * scale, high * scale
