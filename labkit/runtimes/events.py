"""A reply's bytes understood after the fact: its status, its body without chunks, its events and when each had come."""

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from labkit.runtimes.address import MOST_READ, clean
from labkit.runtimes.client import Reply


class Garbled(Exception):
    """What came is not what it should be; the text says how, in one line of any length."""


@dataclass(frozen=True)
class Event:
    """One server-sent event: when its last byte came, and its JSON."""

    time_s: float
    data: dict[str, Any]


@dataclass
class Response:
    """An HTTP answer. `content` is its body without chunks; `whole`: whether its end had come, None where only the end of
    the connection could tell.

    `time_of(n)`: when the first n bytes of the content were all there."""

    status: int
    reason: str
    content: bytes
    whole: bool | None
    _offset: int  # of the body in the raw bytes
    _chunks: list[tuple[int, int]] | None  # of each chunk: where it ends in the content, and in the body
    _moments: list[float]
    _counts: list[int] = field(repr=False)  # raw bytes there at each moment

    def time_of(self, count: int) -> float:
        """See above; `count` from 1."""
        place = count
        if self._chunks is not None:
            end_content, end_body = self._chunks[
                min(bisect_left(self._chunks, count, key=lambda each: each[0]), len(self._chunks) - 1)
            ]
            place = end_body - (end_content - count)
        i = bisect_left(self._counts, self._offset + place)
        return self._moments[min(i, len(self._moments) - 1)]


def response_of(reply: Reply) -> Response | None:
    """The answer of a reply; None when not a byte came. Garbled when it is not HTTP."""
    raw = b"".join(piece for _, piece in reply.pieces)
    if not raw:
        return None
    head, separator, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.decode("latin-1").split(" ", 2)
    if not words[0].startswith("HTTP/") or len(words) < 2 or not (words[1].isascii() and words[1].isdigit()):
        raise Garbled(f"it does not speak HTTP: {_quoted(raw)}")
    fields = {
        name.strip().lower(): value.strip().lower() for name, _, value in (each.partition(b":") for each in lines)
    }
    chunks: list[tuple[int, int]] | None = None
    whole: bool | None = None
    if not separator:
        whole = False
    elif b"chunked" in fields.get(b"transfer-encoding", b""):
        body, chunks, whole = _unchunk(body)
    elif (size := fields.get(b"content-length", b"")).isdigit() and len(size) < 16:
        whole = int(size) <= len(body)
    counts = list(accumulate(len(piece) for _, piece in reply.pieces))
    reason = clean(words[2]) if len(words) > 2 else ""
    moments = [moment for moment, _ in reply.pieces]
    return Response(int(words[1]), reason, body, whole, len(head) + len(separator), chunks, moments, counts)


def _unchunk(body: bytes) -> tuple[bytes, list[tuple[int, int]] | None, bool]:
    """The content of a chunked body, for each chunk where it ends in the content and in the body, and whether the last
    came. Garbled when a chunk has no length."""
    content, at = bytearray(), 0
    places: list[tuple[int, int]] = []
    while (line := body.find(b"\r\n", at)) >= 0:
        told = body[at:line].split(b";")[0].strip()
        try:
            size = int(told, 16) if len(told) <= 16 else -1
        except ValueError:
            size = -1
        if size < 0:
            raise Garbled(f"a piece of its answer has no length: {_quoted(told)}")
        if size == 0:
            return bytes(content), places or None, True
        part = body[line + 2 : line + 2 + size]
        content += part
        places.append((len(content), line + 2 + len(part)))
        at = line + 2 + size + 2
    return bytes(content), places or None, False


def events_of(response: Response) -> tuple[list[Event], bool]:
    """The events of a stream in order, and whether it said `[DONE]`. Garbled for one that is not a JSON object.

    An event whose end had not come when the connection was closed is left out."""
    events, done, data = [], False, []
    content, at = response.content, 0
    while (end := content.find(b"\n", at)) >= 0:
        line, at = content[at:end].rstrip(b"\r"), end + 1
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name == b"error":  # not of the standard: llama.cpp once said so
                data.append(b'{"error":' + (value.strip() or b"null") + b"}")
        elif data:
            text, data = b"\n".join(data).strip(), []
            if text == b"[DONE]":
                done = True
            elif text and not done:
                events.append(Event(response.time_of(at), _object(text)))
    return events, done


def _object(text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise Garbled(f"it sent an event that is not a JSON object: {_quoted(text)}")
    return data


def _quoted(raw: bytes) -> str:
    return f"'{clean(raw[:MOST_READ].decode(errors='replace'))}'"
