"""Shared prefix: a prompt that was found in a cache, timed as though it had been read."""

import itertools
from collections.abc import Iterator, Sequence

from labkit.audit.evidence import Evidence, Observation, Request
from labkit.audit.notice import Notice
from labkit.audit.physics import PREFILL_RATES, number
from labkit.audit.registry import detector

MOST_SHARE = 0.01
TIMED = (*PREFILL_RATES, "ttft_s")
# Where runtimes tell how many tokens of a prompt came from a cache: the lab's own column, llama-server's, OpenAI's.
CACHED = ("cached_tokens", "server.cache_n", "usage.prompt_tokens_details.cached_tokens")
FOLLOWS = ("above-roofline", "nominal-lengths", "client-faster-than-server", "repetitions")


@detector("shared-prefix", 4, version=1, title="Shared prefix", explains=FOLLOWS)
def shared_prefix(evidence: Evidence) -> Iterator[Notice]:
    """Tokens of the prompts that came from a cache, in every cell that times a prompt and does not say that it is warm.
    Over 1 % fails where prompts are what is measured, and warns where a time to the first token stands beside a rate of
    decoding. Where no counter tells, a prompt sent twice (or its leading blocks) warns."""
    for one in evidence.observations:
        if not any(name in one.metrics for name in TIMED):
            continue
        if one.cache == "warm":
            text = f"{one.subject} is declared warm"
            yield Notice(outcome="ok", text=text, subject=one.subject, about=(one.subject,))
        elif evidence.kind == "claims":
            yield from stated(one)
        else:
            yield judge(one, evidence)


def stated(one: Observation) -> Iterator[Notice]:
    """The notice on a published rate, which tells at the most whether it was cold."""
    if one.cache is None:
        text = f"{one.subject} does not say whether its prompt was found in a cache"
        missing = ("the state of the prompt's cache",)
        yield Notice(outcome="not assessable", text=text, subject=one.subject, about=(one.subject,), missing=missing)


def judge(one: Observation, evidence: Evidence) -> Notice:
    """The notice on a cell by its requests."""
    about, prefill = (one.subject,), one.phase == "prefill"
    pairs = [(cached_of(request), request.number("prompt_tokens")) for request in one.requests]
    known = [(cached, prompt) for cached, prompt in pairs if cached is not None and prompt]
    if known:
        cached, read = sum(each for each, _ in known), sum(prompt or 0.0 for _, prompt in known)
        share = cached / read
        lines = (
            f"{number(cached)} of {number(read)} prompt tokens came from a cache = {share:.1%}, of {MOST_SHARE:.0%} at "
            f"the most",
            *new_rate(one, share),
        )
        if share <= MOST_SHARE:
            text = f"{one.subject}: {share:.1%} of its prompts' tokens came from a cache"
            return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=lines)
        text = f"{one.subject} times prompts of which {share:.0%} were found in a cache, and is not declared warm"
        outcome = "fail" if prefill else "warn"
        return Notice(outcome=outcome, text=text, subject=one.subject, about=about, arithmetic=lines)  # type: ignore[arg-type]
    same = [other for other in evidence.observations if other.backend == one.backend]  # a cache is one server's
    repeated = shared_tokens(one.requests, [request for other in same for request in other.requests])
    if repeated is not None and repeated[0] > MOST_SHARE * repeated[1]:
        again, read = repeated
        lines = (f"{number(again)} of {number(read)} prompt tokens had been sent before = {again / read:.0%}",)
        text = f"{one.subject} sends prompts again that a cache may have held, and nothing tells how much came from one"
        return Notice(outcome="warn", text=text, subject=one.subject, about=about, arithmetic=lines)
    text = f"{one.subject}: how many tokens came from a cache is not told"
    return Notice(
        outcome="not assessable", text=text, subject=one.subject, about=about, missing=("counters of cached tokens",)
    )


def cached_of(request: Request) -> float | None:
    """Tokens of a prompt that came from a cache, None where they are not told."""
    return next((value for name in CACHED if (value := request.number(name)) is not None), None)


def new_rate(one: Observation, share: float) -> Iterator[str]:
    """The line that counts only what was read."""
    rate = one.value("prefill_tok_s")
    if rate is not None and share > MOST_SHARE:
        yield f"of new tokens alone: {number(rate)} tok/s × {1 - share:.3g} = {number(rate * (1 - share))} tok/s"


def shared_tokens(asked: Sequence[Request], everything: Sequence[Request]) -> tuple[float, float] | None:
    """(tokens sent before, tokens sent) of a cell's prompts, by their leading blocks where these are hashed, else by
    whole prompts; None where neither is."""
    everything = sorted(everything, key=lambda request: request.number("submit_s") or 0.0)
    seen: set[int] = set()
    again = read = 0.0
    mine = {id(request) for request in asked}
    for request in everything:
        tokens, blocks, whole = (
            request.number("prompt_tokens"),
            request.row.get("block_hashes"),
            request.text("prompt_sha256"),
        )
        parts = [str(part) for part in blocks] if isinstance(blocks, list) and blocks else [whole] if whole else []
        if not tokens or not parts:
            continue
        leading = list(itertools.accumulate(parts, lambda before, part: hash((before, part)), initial=0))[1:]
        if id(request) in mine:
            known = next((count for count in range(len(leading), 0, -1) if leading[count - 1] in seen), 0)
            again, read = again + tokens * known / len(leading), read + tokens
        seen.update(leading)
    return (again, read) if read else None
