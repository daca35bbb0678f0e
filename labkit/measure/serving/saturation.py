"""Whether an open load was more than its server takes: the time to the first token and the requests in flight both grow."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from labkit.measure.serving.requests import Timed
from labkit.measure.serving.residents import in_flight

PARTS = 4
LEAST = 40  # requests: ten a part
GROWTH = 2.0  # of the last part over the first


@dataclass(frozen=True)
class Saturation:
    """Medians of the time to the first token, and means of the requests in flight at a submit, of four parts of the
    requests in the order they were sent. `over` is None where there are too few to tell."""

    over: bool | None
    ttft_s: tuple[float, ...] = ()
    in_flight: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.words()

    def words(self) -> str:
        """What it says, in a sentence."""
        if self.over is None:
            return f"fewer than {LEAST} requests with their times: saturation cannot be told"
        grew = (
            f"TTFT {' → '.join(f'{value:.3g}' for value in self.ttft_s)} s, in flight "
            f"{' → '.join(f'{value:.3g}' for value in self.in_flight)}, a quarter of the requests each"
        )
        if self.over:
            return f"over-saturated: requests came faster than they were answered ({grew}); its latencies grow with its length"
        return f"not over-saturated ({grew})"


def saturation(requests: Sequence[Timed]) -> Saturation:
    """Whether both grow from each quarter of the requests to the next, and end at twice what they began or more.

    For an open load: a closed one holds the requests in flight constant. A queue of a server at rest swings too: of
    simulated servers with exponential times at 70 % of what they take, 1 % are flagged over 400 requests and 5 % over 40;
    at 130 %, 95 % and half. At 90 % it is one in ten: a queue so near its limit has grown by chance."""
    sent = sorted((one for one in requests if one.good), key=lambda one: one.submit_s or 0.0)
    if len(sent) < LEAST:
        return Saturation(None)
    flight = in_flight(sent)
    counts = counts_at(flight.times, flight.counts, [one.submit_s or 0.0 for one in sent])
    cuts = [len(sent) * i // PARTS for i in range(PARTS + 1)]
    ttft = tuple(median(one.ttft_s or 0.0 for one in sent[a:b]) for a, b in itertools.pairwise(cuts))
    load = tuple(fmean(counts[a:b]) for a, b in itertools.pairwise(cuts))
    over = all(grows(values) for values in (ttft, load))
    return Saturation(over, ttft, load)


def counts_at(times: Sequence[float], counts: Sequence[int], moments: Sequence[float]) -> list[int]:
    """A step function at moments that ascend."""
    found, at = [], -1
    for moment in moments:
        while at + 1 < len(times) and times[at + 1] <= moment:
            at += 1
        found.append(counts[at] if at >= 0 else 0)
    return found


def grows(values: Sequence[float]) -> bool:
    """Whether each is above the one before, and the last is twice the first."""
    return all(b > a for a, b in itertools.pairwise(values)) and values[-1] >= GROWTH * values[0]
