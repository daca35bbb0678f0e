"""Which runtime a request should go to: the time each is predicted to take, from laws of what was measured, and never
beyond it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import ParameterError
from labkit.measure.laws import Law, fit_law
from labkit.measure.serving.served import Served
from labkit.measure.statistics import Interval, interval


@dataclass(frozen=True)
class Work:
    """A request's prompt and output in tokens, and how many of its kind are answered at once."""

    prompt: int
    output: int
    streams: int = 1

    def __post_init__(self) -> None:
        if min(self.prompt, self.output, self.streams) < 1:
            raise ParameterError(f"{self}: a request has at least one token of each, in at least one stream")

    @property
    def words(self) -> str:
        """`512 in, 128 out, 4 at once`."""
        return f"{self.prompt:,} in, {self.output:,} out, {self.streams} at once"


@dataclass(frozen=True)
class First:
    """Measured times to the first token: `times` [cells, blocks] in seconds, at these prompts and streams (one a cell)."""

    prompts: Sequence[int]
    streams: Sequence[int]
    times: ArrayLike


@dataclass(frozen=True)
class Later:
    """Measured times of an output token: `times` [cells, blocks] in seconds, at these streams and depths (one a cell)."""

    streams: Sequence[int]
    depths: Sequence[float]
    times: ArrayLike


@dataclass(frozen=True)
class Domain:
    """What was measured: the least and the most of each."""

    prompt: tuple[float, float]
    first_streams: tuple[float, float]
    streams: tuple[float, float]
    depth: tuple[float, float]

    def outside(self, work: Work) -> str:
        """What of `work` lies beyond what was measured, in words; empty where nothing does."""
        asked = (
            ("prompt", self.prompt, work.prompt, work.prompt),
            ("streams", self.first_streams, work.streams, work.streams),
            ("streams", self.streams, work.streams, work.streams),
            ("depth", self.depth, work.prompt, work.prompt + work.output),
        )
        said = []
        for name, (least, most), low, high in asked:
            beyond = low if low < least else high
            text = f"{name} {beyond:,.0f} (measured: {least:,.0f} to {most:,.0f})"
            if (low < least or high > most) and text not in said:
                said.append(text)
        return ", ".join(said)


@dataclass(frozen=True)
class Profile:
    """What a request costs on one runtime: TTFT = a + b n + c n^2 + w n (s - 1), for a prompt of n tokens among s at once
    (a term only where the cells tell it apart), and TPOT = t0 + r s + k s d, at depth d. `blocks`: the laws of each block
    alone, of which intervals are made."""

    name: str
    first: Law
    later: Law
    domain: Domain
    blocks: tuple[tuple[Law, Law], ...]

    def seconds(self, work: Work) -> float:
        """The predicted time from sending to the last token. ParameterError outside what was measured."""
        self._require(work)
        return _seconds(self.first, self.later, work)

    def by_block(self, work: Work) -> list[float]:
        """The same by the laws of each block alone."""
        self._require(work)
        return [_seconds(first, later, work) for first, later in self.blocks]

    def _require(self, work: Work) -> None:
        if beyond := self.domain.outside(work):
            raise ParameterError(f"{self.name} was not measured at {beyond}")


@dataclass(frozen=True)
class Choice:
    """Where a request should go. `runtime` is None where none was measured there: the answer is "not measured".

    `seconds`: predicted, by runtime, those measured there. `lead`: the runner-up's time over the chosen one's, with its
    interval over blocks; where it holds 1 the two are not told apart. `unmeasured`: why the others have no say."""

    work: Work
    runtime: str | None
    seconds: Mapping[str, float]
    lead: Interval | None
    unmeasured: Mapping[str, str]

    @property
    def words(self) -> str:
        """The answer in one line."""
        if self.runtime is None:
            return f"{self.work.words}: not measured ({'; '.join(f'{k}: {v}' for k, v in self.unmeasured.items())})"
        text = f"{self.work.words}: {self.runtime}, {self.seconds[self.runtime]:.3g} s predicted"
        if self.lead is not None and len(self.seconds) > 1:
            second = sorted(self.seconds, key=self.seconds.__getitem__)[1]
            sure = self.lead.low is not None and self.lead.low > 1
            text += f", {second} {self.lead.estimate:.2f} times as long{'' if sure else ' (not told apart)'}"
        if self.unmeasured:
            text += f"; not measured there: {', '.join(self.unmeasured)}"
        return text


def split_time(served: Served) -> tuple[float, float] | None:
    """(first, later) seconds of requests answered at once: what each output token after the first takes while all decode,
    and what is left of a request's time, mean over the requests. Of one alone that is its TTFT; of several it holds what
    the prompts of the others cost it, before its first token or after. None where they do not all decode at once."""
    if len(served.requests) == 1:  # a burst of tokens is no matter to its mean
        alone = served.requests[0]
        return (alone.ttft_s, alone.tpot_s) if alone.good and alone.ttft_s and alone.tpot_s else None
    window, _ = served.window
    if window is None:
        return None
    rest = [one.e2e_s - (one.tokens - 1) * window.step_s for one in served.good if one.e2e_s is not None]
    first = math.fsum(rest) / len(rest)
    return (first, window.step_s) if first > 0 else None


def profile(name: str, first: First, later: Later) -> Profile:
    """The laws of one runtime. ParameterError where the cells are too few or alike to tell even a straight line."""
    firsts, laters = np.asarray(first.times, float), np.asarray(later.times, float)
    if firsts.ndim != 2 or laters.ndim != 2 or firsts.shape[1] != laters.shape[1]:
        raise ParameterError(f"{name}: first and later tokens need times [cells, blocks] of the same blocks")
    n, s = np.asarray(first.prompts, float), np.asarray(first.streams, float)
    w, d = np.asarray(later.streams, float), np.asarray(later.depths, float)
    first_terms = {"a, a prompt": np.ones(len(n)), "b, a token": n}
    if len(set(n)) > 2:
        first_terms["c, a pair of tokens"] = n**2
    if len(set(s)) > 1:
        first_terms["w, a token of another stream"] = n * (s - 1)
    later_terms = {"t0, a step": np.ones(len(w))}
    if len(set(w)) > 1:
        later_terms["r, a stream"] = w
    if len(set(d)) > 1:
        later_terms["k, a position"] = w * d
    domain = Domain((min(n), max(n)), (min(s), max(s)), (min(w), max(w)), (min(d), max(d)))
    blocks = tuple(
        (fit_law(first_terms, firsts[:, [i]]), fit_law(later_terms, laters[:, [i]])) for i in range(firsts.shape[1])
    )
    return Profile(name, fit_law(first_terms, firsts), fit_law(later_terms, laters), domain, blocks)


def _seconds(first: Law, later: Law, work: Work) -> float:
    n, s, depth = work.prompt, work.streams, work.prompt + work.output / 2
    at = {
        "a, a prompt": 1.0, "b, a token": n, "c, a pair of tokens": float(n) ** 2, "w, a token of another stream": n * (s - 1),
        "t0, a step": 1.0, "r, a stream": s, "k, a position": s * depth,
    }  # fmt: skip
    ttft = first.at(**{term: at[term] for term in first.coefficients})
    tpot = later.at(**{term: at[term] for term in later.coefficients})
    return ttft + (work.output - 1) * tpot


def choose(profiles: Sequence[Profile], work: Work) -> Choice:
    """The runtime with the least predicted time, of those measured at `work`."""
    unmeasured = {each.name: beyond for each in profiles if (beyond := each.domain.outside(work))}
    can = sorted((each for each in profiles if each.name not in unmeasured), key=lambda each: each.seconds(work))
    seconds = {each.name: each.seconds(work) for each in can}
    if not can:
        return Choice(work, None, {}, None, unmeasured)
    lead = None
    if len(can) > 1:
        times = [each.by_block(work) for each in can[:2]]
        if all(value > 0 for value in (*times[0], *times[1])):  # a law alone of a block may go below 0
            lead = _ratio(times[1], times[0])
    return Choice(work, can[0].name, seconds, lead, unmeasured)


def _ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """The ratio of paired times, with its interval over the pairs, taken on logarithms."""
    found = interval(np.log(over) - np.log(under))
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Interval(math.exp(found.estimate), low, high, found.n, found.method)


@dataclass(frozen=True)
class Regret:
    """What a policy lost against the best runtime of each request: `each` request's time over the best's, less 1; `mean`
    and `worst` of them; `answered`: requests it had an answer for, of all."""

    policy: str
    each: tuple[float, ...]
    answered: int
    asked: int

    @property
    def mean(self) -> float:
        """The mean of them; not a number where nothing was answered."""
        return math.fsum(self.each) / len(self.each) if self.each else math.nan

    @property
    def worst(self) -> float:
        """The largest of them; not a number where nothing was answered."""
        return max(self.each, default=math.nan)


def regrets(measured: Mapping[Work, Mapping[str, float]], profiles: Sequence[Profile]) -> list[Regret]:
    """The regret of routing by `profiles` and of always taking each runtime, over requests whose times were `measured` by
    runtime (seconds). Routing first. A policy is judged on the requests that the routing had an answer for."""
    choices = {work: choose(profiles, work).runtime for work in measured}
    known = [work for work, name in choices.items() if name is not None and name in measured[work]]
    names = sorted({name for times in measured.values() for name in times})

    def regret(policy: str, taken: Mapping[Work, str]) -> Regret:
        each = tuple(
            measured[work][name] / min(measured[work].values()) - 1
            for work in known
            if (name := taken[work]) in measured[work]
        )
        return Regret(policy, each, len(each), len(measured))

    routed = {work: str(choices[work]) for work in known}
    return [regret("routing", routed), *(regret(name, dict.fromkeys(known, name)) for name in names)]
