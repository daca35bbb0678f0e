"""Streams over HTTP: when tokens came, from pieces of bytes however they were cut."""

import json

import pytest

from labkit.errors import RunError
from labkit.runtimes.arrivals import Reply, events_of, post_streams, token_times

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    raw = text.encode()
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


def event(count: int, content: str = "é") -> str:
    return f"data: {json.dumps({'content': content, 'tokens_predicted': count}, ensure_ascii=False)}\n\n"


def reply(*pieces: bytes) -> Reply:
    """Piece i came at second i."""
    return Reply(0.0, [(float(i), piece) for i, piece in enumerate(pieces)], True)


def test_a_token_came_when_the_last_byte_of_its_event_did() -> None:
    pieces = [HEAD, chunk(event(1)), chunk(event(2)) + chunk(event(3)), b"0\r\n\r\n"]
    assert token_times(events_of(reply(*pieces)), 3) == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_however_bytes_are_cut_the_events_are_the_same(size: int) -> None:
    raw = HEAD + chunk(":\n\n") + chunk(event(1)) + chunk(event(2) + event(3)) + b"0\r\n\r\n"
    cut = reply(*(raw[i : i + size] for i in range(0, len(raw), size)))
    times = token_times(events_of(cut), 3)
    # the moment the byte before the chunk's own line end was there
    ends = [raw.index(b"\n\n\r\n", raw.index(chunk(event(1)))) + 1, raw.index(chunk(event(2) + event(3)))]
    assert times[0] == float(ends[0] // size)
    assert times[0] < times[1] <= times[2]


def test_an_event_split_over_chunks_counts_with_its_last_part() -> None:
    text = event(1).encode()
    first, second = text[:10], text[10:]
    parts = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (first, second)]
    assert token_times(events_of(reply(HEAD, *parts, b"0\r\n\r\n")), 1) == [2.0]


def test_an_event_that_brings_two_tokens_counts_for_both() -> None:
    assert token_times(events_of(reply(HEAD, chunk(event(1)), chunk(event(3)), b"0\r\n\r\n")), 3) == [1.0, 2.0, 2.0]


def test_without_a_count_each_event_with_content_is_a_token() -> None:
    body = [chunk('data: {"content": "a"}\n\n'), chunk('data: {"content": ""}\n\n'), chunk('data: {"tokens": [4]}\n\n')]
    assert token_times(events_of(reply(HEAD, *body, chunk("data: [DONE]\n\n"), b"0\r\n\r\n")), 2) == [1.0, 3.0]


def test_too_few_tokens_are_an_error_that_says_how_many() -> None:
    with pytest.raises(RunError, match="asked for 5 tokens, it sent 1"):
        token_times(events_of(reply(HEAD, chunk(event(1)), b"0\r\n\r\n")), 5)


def test_a_failure_after_the_last_token_does_not_lose_the_times() -> None:
    failed = chunk('data: {"error": {"message": "no format"}}\n\n')
    assert token_times(events_of(reply(HEAD, chunk(event(1)), failed, b"0\r\n\r\n")), 1) == [1.0]
    with pytest.raises(RunError, match="no format"):
        token_times(events_of(reply(HEAD, chunk(event(1)), failed, b"0\r\n\r\n")), 2)


def test_an_answer_that_is_not_200_is_told_with_what_the_server_said() -> None:
    with pytest.raises(RunError, match=r"400 Bad Request: \{\"error\": \"too long\"\}"):
        events_of(reply(b'HTTP/1.1 400 Bad Request\r\nContent-Length: 21\r\n\r\n{"error": "too long"}'))
    with pytest.raises(RunError, match="the server answered nothing"):
        events_of(reply(b""))


def test_an_event_that_is_not_json_is_an_error() -> None:
    with pytest.raises(RunError, match="not JSON"):
        events_of(reply(HEAD, chunk("data: oops\n\n"), b"0\r\n\r\n"))


def test_nobody_listening_is_one_clear_error() -> None:
    with pytest.raises(RunError, match=r"127\.0\.0\.1:1 did not answer"):
        post_streams("127.0.0.1", 1, "/completion", [{}])
