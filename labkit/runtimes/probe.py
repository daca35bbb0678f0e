"""What an OpenAI-compatible endpoint can be asked for, found by asking: a few requests of two tokens each.

What a server says of itself does not tell what it does with a field that it does not know: some refuse it, some ignore it."""

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.runtimes.address import Address
from labkit.runtimes.answers import Told, openai, refusal
from labkit.runtimes.bodies import data_url, post
from labkit.runtimes.client import Limits, exchange
from labkit.runtimes.events import Garbled, events_of, response_of
from labkit.runtimes.load import at_once

TOKENS = 2
COMPLETIONS, CHAT = "/completions", "/chat/completions"
_IDS: Mapping[str, Any] = {"prompt": [10, 11, 12]}  # of any vocabulary
_TEXT: Mapping[str, Any] = {"prompt": "Hello"}
_RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_TOTAL = {"stream_options": {"include_usage": True}}
_FIXED = {"ignore_eos": True}
_TIMINGS = {"timings_per_token": True}


@dataclass(frozen=True)
class Found:
    """What a server takes and tells. `fields` go into every request, `fixed` into one of a fixed length."""

    completions: bool = True
    token_prompts: bool = False
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] | None = None
    counts: bool = False  # a total at the end
    running: bool = False  # how many tokens each event brings
    cached: bool = False
    timings: bool = False
    images: bool = False


@dataclass(frozen=True)
class _Try:
    """What came of one request: what its stream told, or the status and words of the refusal."""

    told: Told | None
    status: int
    words: str

    @property
    def good(self) -> bool:
        return self.told is not None


class Probe:
    """Asks `address` (its path up to and with /v1) about `model`."""

    def __init__(self, address: Address, model: str, limits: Limits) -> None:
        self.address, self.limits = address, limits
        self.base = {"model": model, "max_tokens": TOKENS, "temperature": 0.0, "stream": True}

    def ask(self, path: str, *parts: Mapping[str, Any]) -> _Try:
        """One request. RunError when there is no answer to it, or a 429; ParameterError when the key is refused."""
        body = dict(self.base)
        for part in parts:
            body |= part
        reply = exchange(self.address, [post(self.address, path, body, TOKENS)], at_once(1), self.limits)[0]
        if reply.failed not in (None, "closed", "asleep"):
            error = reply.error or ""
            raise RunError(error if reply.failed == "refused" else f"{self.address.url}{path}: {error}")
        try:
            response = response_of(reply)
            if response is None:
                return _Try(None, 0, reply.error or "closed the connection without an answer")
            if response.status != 200:
                words = self.address.told(refusal(response))
                if response.status in (401, 403):
                    raise ParameterError(f"{self.address.url}{path} {words}; give its key, or another")
                if response.status == 429:
                    raise RunError(f"{self.address.url}{path} {words}")
                return _Try(None, response.status, words)
            events, done = events_of(response)
        except Garbled as error:
            return _Try(None, 0, self.address.told(str(error)))
        told = openai(events)
        if told.error is not None:
            return _Try(None, 500, self.address.told(told.error))
        if not events or not (done or told.end_s is not None):
            return _Try(None, 0, "sent no stream of events that ends")
        return _Try(told, 200, "")

    def run(self) -> Found:
        """All that is to be found. RunError when a plain request fails."""
        whole = self.ask(COMPLETIONS, _IDS, _RUNNING, _FIXED)
        if whole.good:
            found = self._with(Found(fields=_RUNNING, fixed=_FIXED), whole)
            found = dataclasses.replace(found, token_prompts=_counts_ids(whole))
            prompt = _IDS if found.token_prompts else _TEXT
        else:
            found, prompt = self._one_by_one()
        path = COMPLETIONS if found.completions else CHAT
        if not found.running:
            timed = self.ask(path, prompt, _TIMINGS, found.fields)
            if timed.good and _running(timed):
                found = self._with(dataclasses.replace(found, fields={**found.fields, **_TIMINGS}), timed)
        if not found.counts:  # nobody could say that a length was kept
            found = dataclasses.replace(found, fixed=None)
        return dataclasses.replace(found, images=self._images(found))

    def _one_by_one(self) -> tuple[Found, Mapping[str, Any]]:
        """Each field by itself, after one was refused together with others."""
        plain, path, prompt = self.ask(COMPLETIONS, _TEXT), COMPLETIONS, _TEXT
        if not plain.good:
            first, path, prompt = plain, CHAT, _messages("Hello")
            plain = self.ask(CHAT, prompt)
            if not plain.good:
                worse = plain if first.status in (404, 405, 501) else first
                raise RunError(f"{self.address.url}: a plain request failed: {worse.words}")
        found = self._with(Found(completions=path == COMPLETIONS), plain)
        for fields in (_RUNNING, _TOTAL):
            if (told := self.ask(path, prompt, fields)).good:
                found = self._with(dataclasses.replace(found, fields=fields), told)
                break
        if self.ask(path, prompt, found.fields, _FIXED).good:
            found = dataclasses.replace(found, fixed=_FIXED)
        if found.completions:
            ids = self.ask(path, _IDS, found.fields)
            found = dataclasses.replace(found, token_prompts=ids.good and _counts_ids(ids))
        return found, prompt

    def _with(self, found: Found, seen: _Try) -> Found:
        told = seen.told
        assert told is not None
        return dataclasses.replace(
            found,
            counts=found.counts or told.completion_tokens is not None,
            running=found.running or _running(seen),
            cached=found.cached or told.cached_tokens is not None,
            timings=found.timings or bool(told.timings),
        )

    def _images(self, found: Found) -> bool:
        """Whether a picture makes a chat's prompt longer; where no count tells, whether it is taken."""
        picture = {"type": "image_url", "image_url": {"url": data_url(_grey(64))}}
        text = {"type": "text", "text": "What is this?"}
        seen = self.ask(CHAT, {"messages": [{"role": "user", "content": [text, picture]}]}, found.fields)
        if seen.told is None or not found.counts:
            return seen.good
        blind = self.ask(CHAT, _messages("What is this?"), found.fields)
        if blind.told is None or blind.told.prompt_tokens is None or seen.told.prompt_tokens is None:
            return True
        return seen.told.prompt_tokens > blind.told.prompt_tokens


def _messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _counts_ids(seen: _Try) -> bool:
    """Whether three ids were taken for three tokens, a mark of the beginning aside; not where no count says so."""
    assert seen.told is not None
    return seen.told.prompt_tokens in (len(_IDS["prompt"]), len(_IDS["prompt"]) + 1)


def _running(seen: _Try) -> bool:
    """Whether every event with text says how many tokens there are so far."""
    assert seen.told is not None
    pieces = [piece for piece in seen.told.pieces if piece.text or piece.reasoning]
    return bool(pieces) and all(piece.total is not None for piece in pieces)


def _grey(side: int) -> bytes:
    """A grey square as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * side) * side)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
