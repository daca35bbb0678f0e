"""What a stream of events comes to: an `Answer` with a time a token, its counts checked, or a failure that says how.

Tokens are counted by what the server says: a running count in its events, where it gives one, tells how many each event
brings, and they share its moment. Where only a total comes at the end, each event with text is a token if the total agrees;
else the total is dealt out over the events by the length of their texts, and the answer's notes say so. A token whose text
the server held back counts with the event that shows it; an end token behind the text, with the event that ends the answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from labkit.runtimes.address import Address, clean, said
from labkit.runtimes.client import Reply
from labkit.runtimes.events import Event, Garbled, Response, events_of, response_of
from labkit.runtimes.runtime import Answer, Ask, Failure

FAR = 1.1  # a server's time that is so many times the client's own, and
FAR_MS = 100.0  # so much more, cannot be


@dataclass
class Piece:
    """What one event brings: text, thought and token ids, and how many tokens there are so far where it says."""

    time_s: float
    text: str = ""
    reasoning: str = ""
    ids: Sequence[int] = ()
    total: int | None = None


@dataclass
class Told:
    """What the events of one stream tell, as read by a dialect."""

    pieces: list[Piece] = field(default_factory=list)
    end_s: float | None = None  # when it said that it ended
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None  # its own words


Dialect = Callable[[Iterable[Event]], Told]


def native(events: Iterable[Event]) -> Told:
    """llama-server's /completion."""
    told = Told()
    for event in events:
        data = event.data
        if data.get("error"):
            told.error = _words(data["error"])
            break
        ids = [each for each in data.get("tokens") or () if type(each) is int] if _listed(data, "tokens") else []
        piece = Piece(event.time_s, _text(data.get("content")), ids=ids, total=count(data.get("tokens_predicted")))
        told.pieces.append(piece)
        if data.get("stop") is True:
            told.end_s = event.time_s
            told.finish = {"limit": "length", "eos": "stop", "word": "stop"}.get(str(data.get("stop_type")), "length")
            told.prompt_tokens = count(data.get("tokens_evaluated"))
            told.completion_tokens = piece.total
            _time(told, data)
    return told


def openai(events: Iterable[Event]) -> Told:
    """/v1/completions and /v1/chat/completions, of one choice."""
    told = Told()
    for event in events:
        data = event.data
        if data.get("error"):
            told.error = _words(data["error"])
            break
        choices = data["choices"] if _listed(data, "choices") else []
        choice = choices[0] if choices and isinstance(choices[0], dict) else {}
        delta = _object(choice, "delta")
        text = _text(choice.get("text")) or _text(delta.get("content"))
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        ids = [i for i in choice["token_ids"] if type(i) is int] if _listed(choice, "token_ids") else []
        usage = _object(data, "usage")
        total = count(usage.get("completion_tokens"))
        if total is not None:
            told.completion_tokens = total
            told.prompt_tokens = count(usage.get("prompt_tokens"))
            told.cached_tokens = count(_object(usage, "prompt_tokens_details").get("cached_tokens"))
        _time(told, data)
        if total is None:
            total = count(_object(data, "timings").get("predicted_n"))
        if choice:
            told.pieces.append(Piece(event.time_s, text, reasoning, ids, total))
        if isinstance(choice.get("finish_reason"), str):
            told.finish, told.end_s = choice["finish_reason"], event.time_s
    return told


def read_answer(ask: Ask, reply: Reply, dialect: Dialect, address: Address) -> Answer:
    """The answer that came of `ask`; one that failed says how, without the key of `address`."""
    try:
        answer = _read(ask, reply, dialect)
        return replace(answer, notes=tuple(map(address.told, answer.notes))) if answer.notes else answer
    except _Failed as failure:
        error = address.told(failure.words)
        return Answer(ask, reply.submit_s, end_s=reply.end_s, due_s=reply.due_s, failed=failure.how, error=error)


class _Failed(Exception):
    def __init__(self, how: Failure, words: str) -> None:
        super().__init__(words)
        self.how: Failure = how
        self.words = words


def _read(ask: Ask, reply: Reply, dialect: Dialect) -> Answer:
    if reply.failed not in (None, "closed"):
        so_far = ""
        if reply.failed == "silent":
            so_far = f", after {_tokens(_so_far(reply, dialect))}"
        raise _Failed(reply.failed, (reply.error or reply.failed) + so_far)
    try:
        response = response_of(reply)
        if response is None:
            raise _Failed("closed", reply.error or "the connection was closed without an answer")
        if response.status != 200:
            raise _Failed("status", refusal(response))
        events, done = events_of(response)
    except Garbled as error:
        raise _Failed("garbled", str(error)) from None
    told = dialect(events)
    counts, notes = _counted(told)
    if told.error is not None:
        if not (ask.fixed and sum(counts) == ask.tokens):
            raise _Failed("engine", f"it failed after {_tokens(sum(counts))}: {told.error}")
        notes.append(f"it failed after its last token: {told.error}")
    elif not done and (told.end_s is None or (response.whole is False and told.completion_tokens is None)):
        if not response.whole:
            how = f" ({reply.error})" if reply.error else ""
            raise _Failed("closed", f"the connection was closed midway, after {_tokens(sum(counts))}{how}")
        if not events and response.content.strip():
            raise _Failed("garbled", f"its answer is no stream of events: '{said(response.content)}'")
        if not ask.fixed or sum(counts) != ask.tokens:
            raise _Failed("short", f"its stream ended without an end, after {_tokens(sum(counts))}")
    _check_length(ask, max(sum(counts), told.completion_tokens or 0), told.finish)
    if told.completion_tokens and not sum(counts):
        raise _Failed("garbled", f"it counts {_tokens(told.completion_tokens)}, and sent no event with any")
    times = tuple(piece.time_s for piece, number in zip(told.pieces, counts, strict=True) for _ in range(number))
    timings, dropped = sane(told.timings, (reply.end_s - reply.submit_s) * 1e3)
    notes += dropped
    if isinstance(ask.prompt, tuple) and told.prompt_tokens not in (None, len(ask.prompt)):
        notes.append(f"a prompt of {len(ask.prompt)} token ids was sent, the server counts {told.prompt_tokens}")
    ids = tuple(i for piece in told.pieces for i in piece.ids)
    return Answer(
        ask, reply.submit_s, times, reply.end_s, reply.due_s,
        text="".join(piece.text for piece in told.pieces),
        reasoning="".join(piece.reasoning for piece in told.pieces),
        token_ids=ids if len(ids) == len(times) else (),
        prompt_tokens=told.prompt_tokens, completion_tokens=told.completion_tokens, cached_tokens=told.cached_tokens,
        drafted=count(told.timings.get("draft_n")), accepted=count(told.timings.get("draft_n_accepted")),
        timings=timings, finish=told.finish, notes=tuple(notes),
    )  # fmt: skip


def refusal(response: Response) -> str:
    """`answered 429 Too Many Requests: its message`, in one line."""
    words = f"answered {response.status} {response.reason}".strip()
    message = said(response.content)
    if response.status // 100 == 3:
        message = "it points to another address; give that one"
    return f"{words}: {message}" if message else words


def _check_length(ask: Ask, got: int, finish: str | None) -> None:
    if got > ask.tokens:
        raise _Failed("garbled", f"asked for {'' if ask.fixed else 'at most '}{ask.tokens} tokens, it sent {got}")
    if ask.fixed and got < ask.tokens:
        ended = ", at the end token of its model" if finish == "stop" else ""
        raise _Failed("short", f"asked for {ask.tokens} tokens, it sent {got}{ended}")


def _counted(told: Told) -> tuple[list[int], list[str]]:
    """How many tokens each piece brings, and what there is to note about that."""
    pieces, total = told.pieces, told.completion_tokens
    if total is not None and total > MOST_COUNT:
        return [total, *[0] * (len(pieces) - 1)][: len(pieces)], []
    counts = [0] * len(pieces)
    with_text = [i for i, piece in enumerate(pieces) if piece.text or piece.reasoning or piece.ids]
    if with_text and all(pieces[i].total is not None for i in with_text):
        before = 0
        for i, piece in enumerate(pieces):
            if piece.total is not None and piece.total > before:
                counts[i], before = min(piece.total, MOST_COUNT + 1) - before, piece.total
    else:
        for i in with_text:
            counts[i] = len(pieces[i].ids) or 1
    if total is None or not pieces or sum(counts) == total:
        return counts, []
    last = next((i for i in reversed(range(len(pieces))) if pieces[i].time_s == told.end_s), len(pieces) - 1)
    if not with_text or sum(counts) == total - 1:  # nothing of the text shows them: an end token, special ones
        counts[last] += total - sum(counts)
        return counts, []
    dealt = deal(total, [len(pieces[i].text) + len(pieces[i].reasoning) for i in with_text])
    for i, number in zip(with_text, dealt, strict=True):
        counts[i] = number
    for i in set(range(len(pieces))) - set(with_text):
        counts[i] = 0
    words = f"{total} tokens came in {len(with_text)} events; how many each brought is taken from their lengths"
    return counts, [words]


MOST_COUNT = 1 << 21  # tokens of one answer; what tells of more is wrong


def deal(total: int, lengths: Sequence[int]) -> list[int]:
    """`total` tokens dealt out over events of these lengths, evenly by character: one for each event where there are
    enough, and always one for the first and, of several, the last."""
    places, whole = len(lengths), sum(lengths)
    dealt, before = [], 0
    passed = accumulate(lengths if whole else [1] * places)
    for i, length in enumerate(passed):
        until = round(total * length / (whole or places))
        if total >= places:
            until = min(max(until, before + 1), total - (places - 1 - i))
        elif total > 0 and i < places - 1:
            until = min(max(until, 1), max(1, total - 1))
        dealt.append(until - before)
        before = until
    return dealt


def count(value: Any) -> int | None:
    """A count that a server tells; None for anything that is none."""
    return value if type(value) is int and value >= 0 else None


def sane(timings: Mapping[str, Any], e2e_ms: float) -> tuple[dict[str, float], list[str]]:
    """The times and counts of a server's own clock that can be, and a note about each that cannot.

    A time (`..._ms`) that is far beyond what passed here, a negative number or none at all goes, with the rates made of it."""
    kept: dict[str, float] = {}
    notes, wrong = [], []
    for name, value in timings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        number = value if isinstance(value, float) else float(max(min(value, 10**300), -(10**300)))
        if not math.isfinite(number) or number < 0 or number >= 1e300:
            notes.append(f"the server's {clean(name)}={number:g} cannot be, and is left out")
        elif name.endswith("_ms") and number > FAR * e2e_ms + FAR_MS:
            notes.append(f"the server's {clean(name)}={number:g} is longer than the {e2e_ms:.0f} ms here, left out")
        else:
            kept[name] = number
            continue
        wrong.append(name)
    made = tuple(name.removesuffix("ms") + "per_" for name in wrong if name.endswith("_ms"))  # prompt_per_second
    return {name: number for name, number in kept.items() if not name.startswith(made)}, notes


def _time(told: Told, data: Mapping[str, Any]) -> None:
    timings = data.get("timings")
    if isinstance(timings, dict):
        told.timings = timings
        if told.cached_tokens is None:
            told.cached_tokens = count(timings.get("cache_n"))


def _object(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _listed(data: Mapping[str, Any], name: str) -> bool:
    return isinstance(data.get(name), list)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words(error: Any) -> str:
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return clean(str(error))


def _tokens(number: int) -> str:
    return f"{number} token{'' if number == 1 else 's'}"


def _so_far(reply: Reply, dialect: Dialect) -> int:
    """Tokens of what came of a reply."""
    try:
        response = response_of(reply)
        return 0 if response is None else sum(_counted(dialect(events_of(response)[0]))[0])
    except Garbled:
        return 0
