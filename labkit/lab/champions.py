"""Champions: which candidate is the best at each question, and told apart from all rivals there, or from none."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labkit.errors import ParameterError
from labkit.lab.effects import centre
from labkit.measure.statistics import Better, Interval, family_level, interval, paired_ratios

Samples = Mapping[int, float]  # block → value


@dataclass(frozen=True)
class Contest:
    """One question: `values` are the candidates' geometric means, `best` the first of them. `over` has, for each rival of
    another camp, by how much the best is better (a ratio above 1, whichever way is better) with its simultaneous interval.

    `champion` is the camp of the best where every one of those intervals lies above 1, else empty; `beside` are the
    rivals that are not told apart from it."""

    question: str
    values: Mapping[str, float]
    best: str
    champion: str
    over: Mapping[str, Interval]
    beside: tuple[str, ...]

    def words(self) -> str:
        """`labkit (1.31x the next)`, or `not told apart: labkit, xllamacpp`."""
        if not self.over:
            return f"{self.best}, alone here"
        if not self.champion:
            return f"not told apart: {', '.join((self.best, *self.beside))}"
        next_best = min(one.estimate for one in self.over.values())
        return f"{self.champion} ({next_best:.3g}x the next)"


def contests(
    questions: Mapping[str, Mapping[str, Samples]], better: Better, camp_of: Callable[[str], str] = lambda name: name
) -> tuple[list[Contest], float]:
    """A contest for each question: candidate → block → value, all above 0; and the level of each interval.

    The candidates of one camp (the settings of one backend, by `camp_of`) are no rivals. All pairs of rivals of all
    questions are one family (Bonferroni), since which candidate is the best is only known from the same data: then in 95 %
    of cases no champion is a wrong one. ParameterError for a metric that is neither better higher nor lower."""
    if better not in ("higher", "lower"):
        raise ParameterError(f"a champion has the higher or the lower value, and this metric has neither: {better!r}")
    measured = {
        question: {name: dict(found) for name, found in candidates.items() if found}
        for question, candidates in questions.items()
    }
    pairs = sum(
        camp_of(one) != camp_of(other)
        for candidates in measured.values()
        for one, other in itertools.combinations(candidates, 2)
    )
    level = family_level(max(1, pairs))
    found = [
        contest(question, candidates, better, camp_of, level) for question, candidates in measured.items() if candidates
    ]
    return found, level


def contest(
    question: str, candidates: Mapping[str, Samples], better: Better, camp_of: Callable[[str], str], level: float
) -> Contest:
    """One question, at the family's level."""
    values = {name: centre(list(samples.values())) for name, samples in candidates.items()}
    best = (max if better == "higher" else min)(values, key=lambda name: values[name])
    over: dict[str, Interval] = {}
    beside: list[str] = []
    for name, samples in candidates.items():
        if camp_of(name) == camp_of(best):
            continue
        ends = (candidates[best], samples) if better == "higher" else (samples, candidates[best])
        pairs = paired_ratios(*ends)
        if not pairs.blocks:
            beside.append(name)
            continue
        over[name] = interval(pairs.logs, level).exp()
        if (low := over[name].low) is None or low <= 1:
            beside.append(name)
    champion = camp_of(best) if over and not beside else ""
    return Contest(question, values, best, champion, over, tuple(beside))
