"""Nominal against actual lengths: a depth, a prompt or an output that is not as long as its label says."""

from collections.abc import Iterator
from statistics import median

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector
from labkit.audit.run_evidence import DEPTHS, OUTPUTS, PROMPTS

APART, TOKENS = 0.02, 16  # both must be passed
LENGTHS = {"prompt": (*PROMPTS, "prompts", "pieces", "pp", "seed"), "depth": DEPTHS, "output": (*OUTPUTS, "tg")}


@detector("nominal-lengths", 8, version=1, title="Nominal against actual lengths", explains=("undeclared-changes",))
def nominal_lengths(evidence: Evidence) -> Iterator[Notice]:
    """The tokens that a cell's requests read and emitted against those its label names, and against those of the cell it
    is compared with. Over 2 % and 16 tokens apart warns: the number is one of another depth, prompt or output."""
    if evidence.kind != "run":
        return
    labelled = [notice for one in evidence.observations for notice in against_label(one)]
    yield from labelled
    pairs = list(evidence.read_against())
    together = [notice for pair in pairs for notice in against_each_other(*pair)]
    yield from together
    told = [one.subject for pair in pairs for one in pair if any(actual(one, what) for what in LENGTHS)]
    if told and not together:
        text = f"cells of {evidence.name} that are read against each other have prompts and outputs of the same lengths"
        about = tuple(dict.fromkeys(told))
        yield Notice(outcome="ok", text=text, subject=evidence.name, about=about)
    elif not labelled and not together and any(one.phase != "operation" for one in evidence.observations):
        text = f"{evidence.name} does not tell how long its prompts and outputs were"
        missing = ("token counts of the requests",)
        yield Notice(outcome="not assessable", text=text, subject=evidence.name, missing=missing)


def against_label(one: Observation) -> Iterator[Notice]:
    """Notices on the lengths that a cell names."""
    for what, nominal in (("prompt", one.prompt_tokens), ("depth", one.depth), ("output", forced_output(one))):
        span = actual(one, what)
        if nominal is None or span is None:
            continue
        low, high = span
        nearest = min(max(nominal, low), high)
        if what == "output":
            nearest = min(nominal, high)  # longer than asked for is no fault: streams wait for each other
        off = abs(nearest - nominal)
        share = f" = {off / nominal:.1%}" if nominal else ""
        lines = (f"{what}: {number(nominal)} tokens named, {said(low, high)} counted: {number(off)} apart{share}",)
        if off <= allowed(nominal):
            text = f"{one.subject}: its {what} is as long as named, {said(low, high)} tokens"
            yield Notice(outcome="ok", text=text, subject=one.subject, about=(one.subject,), arithmetic=lines)
            continue
        text = f"{one.subject} names a {what} of {number(nominal)} tokens, and its requests have {said(low, high)}"
        shown = (*lines, f"of {number(allowed(nominal))} at the most")
        yield Notice(outcome="warn", text=text, subject=one.subject, about=(one.subject,), arithmetic=shown)


def against_each_other(one: Observation, other: Observation) -> Iterator[Notice]:
    """Notices on the lengths of two cells that are compared in something else."""
    varied = set(one.knobs_apart(other))
    if one.phase != other.phase:
        return
    for what, names in LENGTHS.items():
        first, second = actual(one, what), actual(other, what)
        if first is None or second is None or varied & set(names):
            continue
        if what == "depth" and varied & {*LENGTHS["prompt"], *LENGTHS["output"]}:
            continue
        a, b = sum(first) / 2, sum(second) / 2
        if abs(a - b) <= allowed(min(a, b)):
            continue
        if what == "depth" and not one.depth and not other.depth:
            continue  # said of prompt and output already
        lines = (
            f"{what}: {number(a)} tokens at {one.subject}, {number(b)} at {other.subject}",
            f"{number(abs(a - b))} apart = {abs(a - b) / min(a, b):.1%}, of {number(allowed(min(a, b)))} at the most",
        )
        text = f"{one.subject} and {other.subject} are compared at {what}s of {number(a)} and {number(b)} tokens"
        about = (one.subject, other.subject)
        yield Notice(outcome="warn", text=text, subject=one.subject, about=about, arithmetic=lines)


def forced_output(one: Observation) -> float | None:
    """How long the outputs of a cell that decodes were to be."""
    return one.output_tokens if one.phase in ("decode", "mixed") else None


def actual(one: Observation, what: str) -> tuple[float, float] | None:
    """The least and the most tokens that a cell's requests had, each at its median; None where they do not tell."""
    prompt, emitted = middle(one, "prompt_tokens"), middle(one, "window_tokens", "completion_tokens")
    if what == "prompt":
        return None if prompt is None else (prompt, prompt)
    if what == "output":
        return None if emitted is None else (emitted, emitted)
    stated = middle(one, "depth")
    if stated is not None:
        half = (emitted or 0.0) / 2
        return stated - half, stated + half
    return None if prompt is None else (prompt, prompt + (middle(one, "completion_tokens") or 0.0))


def middle(one: Observation, *names: str) -> float | None:
    """The median over a cell's requests of the first of these columns that is told."""
    for name in names:
        values = [value for request in one.requests if (value := request.number(name)) is not None]
        if values:
            return float(median(values))
    return None


def allowed(tokens: float) -> float:
    """How far from a length still counts as it."""
    return max(APART * tokens, TOKENS)


def said(low: float, high: float) -> str:
    """A length, or a range of it."""
    return number(low) if low == high else f"{number(low)} to {number(high)}"
