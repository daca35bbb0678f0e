"""A streamed answer: server-sent events made of what the engine delivers, as it comes."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from labkit.errors import LabError
from labkit.serve.answers import Answer, Usage
from labkit.serve.errors import ApiError
from labkit.serve.queue import Call
from labkit.serve.requests import Body
from labkit.serve.transcript import Transcript

DONE = b"data: [DONE]\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


class Choice:
    """One choice of a stream: what has been delivered for it and not yet been sent."""

    def __init__(self, index: int, call: Call, answer: Answer, wanted: bool) -> None:
        self.index, self.call, self.answer, self.wanted = index, call, answer, wanted
        self.transcript = Transcript(answer.tokenizer, wanted)
        self.tokens = 0
        self.begun = self.finished = False

    def pieces(self) -> list[dict[str, Any]]:
        """What may be sent now. ApiError or LabError when the engine could not go on."""
        made: list[dict[str, Any]] = []
        while self.call.inbox:
            token = self.call.inbox.popleft()
            self.tokens += token.id >= 0
            text, entries = self.transcript.push(token)
            if text:
                made.append(self.answer.delta(self.index, text, entries if self.wanted else None, None))
        if self.call.ended and not self.call.inbox and not self.finished:
            done = self.call.completion
            self.finished = True
            rest = self.transcript.end(done.finish)
            made.append(self.answer.delta(self.index, "", rest if self.wanted else None, done.finish))
        if made and not self.begun:
            self.begun = True
            opening = self.answer.opening(self.index)
            made[:0] = [opening] if opening else []
        return made


async def events(calls: list[Call], answer: Answer, body: Body) -> AsyncGenerator[bytes, None]:
    """The events of a stream, several in one piece when they came together. The first is made when there is something to
    tell; an error before it is raised, one behind it becomes the last event before [DONE]."""
    choices = [Choice(i, call, answer, body.top is not None) for i, call in enumerate(calls)]
    changed = calls[0].changed
    prompts = sum(len(call.ask.ids) for call in calls[:: body.n or 1])
    begun = False
    try:
        while True:
            changed.clear()
            made = b""
            for choice in choices:
                for piece in choice.pieces():
                    more: dict[str, Any] = {}
                    if body.include_usage or body.usage_so_far:
                        so_far = Usage(prompts, sum(each.tokens for each in choices))
                        more["usage"] = so_far.body if body.usage_so_far else None
                    made += event(answer.chunk([piece], **more))
            if made:
                begun = True
                yield made
            if all(choice.finished for choice in choices):
                break
            await changed.wait()
    except (ApiError, LabError) as error:
        if not begun:
            raise
        told = error if isinstance(error, ApiError) else ApiError(500, "The engine failed.", type="server_error")
        yield event(told.body) + DONE
        return
    if body.include_usage:
        usage = Usage(prompts, sum(choice.tokens for choice in choices))
        yield event(answer.chunk([], usage=usage.body))
    yield DONE
