"""Many streaming HTTP requests at once, by one thread that only notes when bytes came; they are understood afterwards.

A thread a stream, each decoding JSON as it comes, would make the client the slow part at some thousand tokens a second.
"""

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import RunError

SILENCE_S = 300.0  # a server that sends nothing for so long is taken for hung


@dataclass
class Reply:
    """What came back of one request: pieces of bytes with the moment each came (`time.perf_counter`)."""

    submit_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    done: bool = False


@dataclass(frozen=True)
class Event:
    """One server-sent event: when its last byte came, and its JSON."""

    time_s: float
    data: dict[str, Any]


def post_streams(host: str, port: int, path: str, bodies: Sequence[dict[str, Any]]) -> list[Reply]:
    """POST every body at once, each on a connection of its own, and collect the answers until each is closed.

    RunError when a connection is refused, or all are silent for long."""
    replies = [Reply() for _ in bodies]
    connections: list[socket.socket] = []
    try:
        for _ in bodies:
            connection = socket.create_connection((host, port), timeout=30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(connection)
        requests = [_request(host, port, path, body) for body in bodies]
        with selectors.DefaultSelector() as waiting:
            for reply, connection, request in zip(replies, connections, requests, strict=True):
                reply.submit_s = time.perf_counter()
                connection.sendall(request)
                connection.setblocking(False)
                waiting.register(connection, selectors.EVENT_READ, reply)
            _collect(waiting, sum(not reply.done for reply in replies))
    except OSError as error:
        raise RunError(f"{host}:{port} did not answer: {error.strerror or error}") from None
    finally:
        for connection in connections:
            connection.close()
    return replies


def _request(host: str, port: int, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _collect(waiting: selectors.BaseSelector, left: int) -> None:
    clock = time.perf_counter
    last = clock()
    while left:
        ready = waiting.select(timeout=1.0)
        if not ready and clock() - last > SILENCE_S:
            raise RunError(f"the server sent nothing for {SILENCE_S:.0f} s, with {left} answers to come")
        for key, _ in ready:
            connection, reply = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                continue
            last = clock()
            if data:
                reply.pieces.append((last, data))
            if not data or data.endswith(b"0\r\n\r\n"):  # closed, or the last chunk of the answer
                reply.done = True
                waiting.unregister(connection)
                left -= 1


def events_of(reply: Reply) -> list[Event]:
    """The events of a reply, in order. RunError for an answer that is not 200, or not a stream of events."""
    raw = b"".join(piece for _, piece in reply.pieces)
    head, separator, body = raw.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace")
    if not separator or " 200" not in status:
        said = body.decode(errors="replace").strip()[:300]
        raise RunError(f"the server answered {status or 'nothing'}{': ' + said if said else ''}")
    chunked = b"transfer-encoding: chunked" in head.lower()
    content, ends = _unchunk(body) if chunked else (body, None)
    events = []
    start = 0
    while (end := content.find(b"\n\n", start)) >= 0:
        event = content[start:end].strip()
        at = end + 2 if ends is None else _place(ends, end + 1)
        start = end + 2
        if not event.startswith(b"data:"):
            continue
        text = event[5:].strip()
        if text == b"[DONE]":
            continue
        try:
            data = json.loads(text)
        except ValueError:
            raise RunError(f"the server sent an event that is not JSON: {text[:120]!r}") from None
        events.append(Event(_time_of(reply, len(head) + 4 + at), data))
    return events


def _unchunk(body: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The content of a chunked body, and for each chunk where its content ends and where that is in the body."""
    content, places, at = bytearray(), [], 0
    while (line := body.find(b"\r\n", at)) >= 0:
        try:
            size = int(body[at:line].split(b";")[0], 16)
        except ValueError:
            break
        if size == 0:
            break
        content += body[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
        places.append((len(content), at - 2))
    return bytes(content), places


def _place(ends: list[tuple[int, int]], offset: int) -> int:
    """Bytes of the chunked body that must have come for the content up to and with `offset`."""
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if ends[middle][0] > offset:
            high = middle
        else:
            low = middle + 1
    end_content, end_body = ends[min(low, len(ends) - 1)]
    return end_body - (end_content - offset - 1)


def _time_of(reply: Reply, count: int) -> float:
    """When the first `count` bytes of the reply were all there."""
    have = 0
    for moment, piece in reply.pieces:
        have += len(piece)
        if have >= count:
            return moment
    return reply.pieces[-1][0]


def token_times(events: Sequence[Event], wanted: int) -> list[float]:
    """When each of the `wanted` tokens came. An event that says how many there are so far brings all that are new.

    RunError when the server failed before it had sent them, or sent another number."""
    times: list[float] = []
    for event in events:
        data = event.data
        if "error" in data:
            if len(times) == wanted:  # it only failed to make something of the text
                break
            raise RunError(f"the server failed: {str(data['error'])[:300]}")
        total = data.get("tokens_predicted")
        if not isinstance(total, int):
            total = len(times) + (1 if data.get("content") or data.get("tokens") else 0)
        times += [event.time_s] * max(0, total - len(times))
    if len(times) != wanted:
        raise RunError(f"asked for {wanted} tokens, it sent {len(times)}")
    return times
