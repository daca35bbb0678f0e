"""Arithmetic in words: `a → b (+x %)`, `a × b = c` and the like, that its own numbers do not give."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.audit.evidence import Evidence
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector

MOST_TEXT = 20_000  # characters read of one text
SLACK = 0.005  # beyond rounding, for what was computed from more digits than are shown
NUM = r"(?<![\w.,/])[+\-−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:[eE][+\-]?\d+)?(?![\d,]*\d)"
UNIT = r"(?:\s?(?!(?:to|of|is|x|and|at|from|in)\b)[A-Za-zµ°][A-Za-z²³]{0,11}(?:\s?/\s?[A-Za-z]{1,8})?)?"
ARROW = r"\s*(?:->|→|⟶|=>)\s*"
CHAIN = re.compile(
    rf"(?P<chain>{NUM}{UNIT}(?:{ARROW}{NUM}{UNIT}){{1,6}})\s*[,:=]?\s*[(\[]?\s*"
    rf"(?P<sign>[+\-−–]?)\s?(?P<result>\d+(?:\.\d+)?)\s?(?P<kind>%|×|x\b|times\b|-fold\b)"
)
TIMES = r"(?:\s*[*×·]\s*|\s+x\s+)"
PRODUCT = re.compile(rf"(?P<terms>{NUM}{UNIT}(?:{TIMES}{NUM}{UNIT}){{1,7}})\s*(?:=|≈)\s*(?P<result>{NUM})")
QUOTIENT = re.compile(
    rf"(?P<terms>{NUM}{UNIT}\s*(?:\s/\s|÷)\s*{NUM}{UNIT})\s*(?:=|≈)\s*(?P<result>{NUM})\s?(?P<kind>%?)"
)
SUM = re.compile(rf"(?P<terms>{NUM}{UNIT}(?:\s*\+\s*{NUM}{UNIT}){{1,6}})\s*(?:=|≈)\s*(?P<result>{NUM})")
PARTS = re.compile(NUM)


@dataclass(frozen=True)
class Written:
    """A number as written: what it may have been before it was rounded to its digits."""

    low: float
    high: float
    value: float | None = None  # where it is not halfway

    @property
    def middle(self) -> float:
        """The number itself."""
        return (self.low + self.high) / 2 if self.value is None else self.value


@detector("text-arithmetic", 12, version=1, title="Arithmetic in the text")
def text_arithmetic(evidence: Evidence) -> Iterator[Notice]:
    """Every change (`a → b (+x %)`, `a → b (y×)`), product, quotient and sum that a text spells out, computed again
    within what its digits were rounded from. A result that the numbers do not give warns."""
    for subject, text in evidence.texts:
        yield from judge(subject, text[:MOST_TEXT])


def judge(subject: str, text: str) -> Iterator[Notice]:
    """Notices on one text."""
    right = 0
    for said, given, fits in statements(text):
        if fits:
            right += 1
            continue
        lines = (f"written: {said}", f"its numbers give {given}")
        sentence = f"{subject} states “{said}”, and its own numbers give {given}"
        yield Notice(outcome="warn", text=sentence, subject=subject, about=(subject,), arithmetic=lines)
    if right:
        what = "the statement" if right == 1 else f"each of {right} statements"
        sentence = f"{subject}: {what} of arithmetic in its text comes out"
        yield Notice(outcome="ok", text=sentence, subject=subject, about=(subject,))


def statements(text: str) -> Iterator[tuple[str, str, bool]]:
    """(as written, what its numbers give, whether they agree) of each statement of arithmetic."""
    for match in CHAIN.finditer(text):
        yield change(match)
    for match in PRODUCT.finditer(text):
        terms = [factor(part) for part in PARTS.findall(match["terms"])]
        low, high = math.prod(t.low for t in terms), math.prod(t.high for t in terms)
        yield compare(match, Written(low, high, math.prod(t.middle for t in terms)), scaled=True)
    for match in QUOTIENT.finditer(text):
        above, below = (written(part) for part in PARTS.findall(match["terms"])[:2])
        if below.low > 0:
            scale = 100.0 if match["kind"] else 1.0
            low, high = scale * above.low / below.high, scale * above.high / below.low
            ratio = Written(low, high, scale * above.middle / below.middle)
            yield compare(match, ratio, scaled=not match["kind"])
    for match in SUM.finditer(text):
        terms = [written(part) for part in PARTS.findall(match["terms"])]
        yield compare(match, Written(sum(t.low for t in terms), sum(t.high for t in terms)), scaled=False)


def written(text: str) -> Written:
    """A number with what it may have been before it was rounded to its last digit."""
    plain = text.replace(",", "").replace("−", "-")
    mantissa, _, exponent = plain.lower().partition("e")
    half = 0.5 * 10.0 ** (min(max(int(exponent or 0), -300), 300) - len(mantissa.partition(".")[2]))
    value = float(plain)
    return Written(value - half, value + half)


def factor(text: str) -> Written:
    """A factor of a product: a whole number below 10 is a count, and exact."""
    found = written(text)
    exact = text.strip("+-−").isdigit() and abs(found.middle) < 10
    return Written(found.middle, found.middle) if exact else found


def change(match: re.Match[str]) -> tuple[str, str, bool]:
    """A chain `a → b (+x %)`: of its ends, or of its last step."""
    values = [written(part) for part in PARTS.findall(match["chain"])]
    result = written(match["result"])
    percent = match["kind"] == "%"
    fits, given = False, ""
    for first, last in dict.fromkeys([(values[-2], values[-1]), (values[0], values[-1])]):
        if first.low <= 0 or last.low <= 0:
            return match[0].strip(), "nothing", True  # signs and zeros: no ratio to hold it against
        low, high = last.low / first.high, last.high / first.low
        given = words(last.middle / first.middle, percent)
        if percent:
            sign = {"+": 1, "": 0}.get(match["sign"], -1)
            candidates = [(100 * (low - 1), 100 * (high - 1))] if sign >= 0 else []
            candidates += [(100 * (1 - high), 100 * (1 - low))] if sign <= 0 else []
            candidates += [(100 * low, 100 * high)] if sign == 0 else []
        else:
            candidates = [(low, high), (1 / high, 1 / low)]
        fits = fits or any(overlap(Written(*ends), result) for ends in candidates)
    return f"{match[0].strip()}{')' if '(' in match[0] else ''}", given, fits


def words(ratio: float, percent: bool) -> str:
    """A ratio as the statement has it."""
    return f"{100 * (ratio - 1):+.1f} %" if percent else f"{number(ratio)}×"


def compare(match: re.Match[str], computed: Written, scaled: bool) -> tuple[str, str, bool]:
    """A computed value against the one written; `scaled`, a power of a thousand or of 1,024 lies between their units."""
    result = written(match["result"])
    scales = [1.0]
    if scaled:
        scales += [base**power for base in (1000.0, 1024.0) for power in range(-5, 6) if power]
    fits = any(overlap(Written(computed.low * scale, computed.high * scale), result) for scale in scales)
    nearest = min((computed.middle * scale for scale in scales), key=lambda value: distance(value, result.middle))
    return match[0].strip(), number(nearest), fits


def overlap(one: Written, other: Written) -> bool:
    """Whether two numbers may be the same before rounding."""
    slack = SLACK * max(abs(one.middle), abs(other.middle))
    low, high = min(one.low, one.high), max(one.low, one.high)
    return low - slack <= other.high and other.low <= high + slack


def distance(one: float, other: float) -> float:
    """How far apart two numbers are, as a factor."""
    return abs(math.log(abs(one) / abs(other))) if one and other else math.inf
