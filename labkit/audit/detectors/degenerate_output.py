"""Degenerate output: a text that repeats itself, behind a number of speculation or quality."""

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from labkit.audit.detectors.feature_consulted import FEATURES, on
from labkit.audit.evidence import Evidence, Observation, Request
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector

RESTS_ON_TEXT = ("acceptance", "accepted_per_step", "tokens_per_step")
WORDS = re.compile(r"\w+|[^\w\s]")
NGRAM, LEAST_WORDS, LEAST_BYTES = 4, 48, 1000  # shorter texts say nothing
MOST_WORDS, LONGEST_PERIOD = 8192, 256
MOST_LOOPED = 0.5  # of a text, in one loop that it does not leave
FEW = 0.05  # of a cell's texts: sampling falls into a loop now and then


@dataclass(frozen=True)
class Baseline:
    """The least that a content type has: different 4-grams as a share of all, compressed bytes as a share of all.

    Half of what the lowest percent has of 400-word pieces of this repository's documents (0.70 and 0.48 of 72), Python
    (0.61, 0.35 of 1,734) and records as JSON (0.35, 0.17 of 1,289)."""

    distinct: float
    compressed: float


BASELINES = {"prose": Baseline(0.35, 0.24), "code": Baseline(0.30, 0.17), "json": Baseline(0.17, 0.08)}
SAME = {"explain": "prose", "chat": "prose", "story": "prose", "code_edit": "code", "copy": "json", "table": "json"}
LENIENT = BASELINES["json"]


@detector("degenerate-output", 15, version=1, title="Degenerate output", explains=("repetitions",))
def degenerate_output(evidence: Evidence) -> Iterator[Notice]:
    """The texts behind a number of speculation or quality: different 4-grams, compressibility and loops, against the least
    that text of their content type has. Over 5 % of a cell's texts below it warns: what repeats itself is drafted and
    accepted as nothing else is. Each text is judged by itself, for equal prompts may well give equal texts."""
    parameters = evidence.record.parameters if evidence.record is not None else {}
    for one in evidence.observations if evidence.kind == "run" else ():
        speculates = on(FEATURES[0], {**parameters, **one.settings, **one.knobs})
        if not speculates and not any(name in one.metrics for name in RESTS_ON_TEXT):
            continue
        content = content_of(one, parameters.get("content"))
        yield judge(one, content)


def content_of(one: Observation, declared: object) -> str:
    """The content type a cell names, or its requests, or the run."""
    named = {text for request in one.requests if (text := request.text("content"))}
    found = one.knobs.get("content") or (named.pop() if len(named) == 1 else declared)
    text = str(found or "").lower()
    return SAME.get(text, text)


def judge(one: Observation, content: str) -> Notice:
    """The notice on one cell."""
    about, floor = (one.subject,), BASELINES.get(content, LENIENT)
    judged = [(words, text) for request in one.requests for words, text in texts(request) if len(words) >= LEAST_WORDS]
    if not judged:
        text = f"{one.subject} speculates, and keeps no texts of {LEAST_WORDS} words or tokens to judge it by"
        missing = ("the texts that were generated",)
        return Notice(outcome="not assessable", text=text, subject=one.subject, about=about, missing=missing)
    measured = [measure(words, text) for words, text in judged]
    bad = [found for found in measured if degenerate(*found, floor)]
    shown = bad or measured
    distinct, looped = median(found[0] for found in shown), median(found[2] for found in shown)
    packed = [found[1] for found in shown if found[1] is not None]
    of = (
        f"{content} has {floor.distinct:.0%} at the least"
        if content
        else f"any text has {floor.distinct:.0%} at the least"
    )
    lines = [
        f"different {NGRAM}-grams: {distinct:.0%}; {of}",
        f"in one loop to its end: {looped:.0%}, of {MOST_LOOPED:.0%}",
    ]
    lines += (
        [f"compressed to {median(packed):.0%} of its bytes, of {floor.compressed:.0%} at the least"] if packed else []
    )
    lines.append(f"{len(bad)} of {len(judged)} texts = {len(bad) / len(judged):.0%}, of {FEW:.0%} at the most")
    if len(bad) <= FEW * len(judged):
        text = f"{one.subject}: its texts are no more repetitive than {content or 'text'} is"
        return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=tuple(lines))
    rate = next((f"{name} {number(one.metrics[name])}" for name in RESTS_ON_TEXT if name in one.metrics), "its rate")
    text = f"{one.subject}: {len(bad)} of {len(judged)} texts repeat themselves, so {rate} is not that of {content or 'text'}"
    return Notice(outcome="warn", text=text, subject=one.subject, about=about, arithmetic=tuple(lines))


def texts(request: Request) -> Iterator[tuple[Sequence[object], str]]:
    """(words or token ids, text or nothing) of what a request generated; nothing where it was not kept."""
    for name in ("text", "completion", "output"):
        if text := request.text(name):
            yield WORDS.findall(text[: 16 * MOST_WORDS])[:MOST_WORDS], text[: 16 * MOST_WORDS]
            return
    for name in ("token_ids", "completion_ids"):
        ids = request.row.get(name)
        if isinstance(ids, list):
            yield [str(token) for token in ids[:MOST_WORDS]], ""
            return


def measure(words: Sequence[object], text: str) -> tuple[float, float | None, float]:
    """(share of different 4-grams, compressed share of the bytes or None where they are few, share in one loop)."""
    grams = [tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)]
    content = text.encode(errors="replace")
    packed = len(zlib.compress(content, 9)) / len(content) if len(content) >= LEAST_BYTES else None
    return len(set(grams)) / len(grams), packed, looped_share(words)


def looped_share(words: Sequence[object]) -> float:
    """The share of a text, at its end, that repeats one piece at least three times over."""
    best = 0
    for period in range(1, min(LONGEST_PERIOD, len(words) // 3) + 1):
        run = 0
        while run + period < len(words) and words[-1 - run] == words[-1 - run - period]:
            run += 1
        if run >= 2 * period:
            best = max(best, run + period)
    return best / len(words)


def degenerate(distinct: float, packed: float | None, looped: float, floor: Baseline) -> bool:
    """Whether a text is below what its content type has."""
    return distinct < floor.distinct or looped > MOST_LOOPED or (packed is not None and packed < floor.compressed)
