"""Bytes as they came, cut anywhere: events, when each was there, and the tokens they bring."""

import itertools
import json
import random

import pytest
from scripted_server import HEAD, LAST, chunk

from labkit.runtimes.address import Address
from labkit.runtimes.answers import deal, native, openai, read_answer, sane
from labkit.runtimes.client import Reply
from labkit.runtimes.events import Event, Garbled, events_of, response_of
from labkit.runtimes.runtime import Answer, Ask

HERE = Address("127.0.0.1", 80)


def event(count: int, content: str = "é") -> str:
    return f"data: {json.dumps({'content': content, 'tokens_predicted': count}, ensure_ascii=False)}\n\n"


def end(count: int, **more: object) -> str:
    return (
        f"data: {json.dumps({'content': '', 'stop': True, 'stop_type': 'limit', 'tokens_predicted': count} | more)}\n\n"
    )


def reply(*pieces: bytes, end_s: float = 100.0) -> Reply:
    """Piece i came at second i."""
    return Reply(end_s=end_s, pieces=[(float(i), piece) for i, piece in enumerate(pieces)])


def events(*pieces: bytes) -> list[Event]:
    response = response_of(reply(*pieces))
    assert response is not None
    return events_of(response)[0]


def answer(*pieces: bytes, tokens: int = 3, fixed: bool = True, dialect: object = native) -> Answer:
    return read_answer(Ask((1, 2, 3), tokens, fixed=fixed), reply(*pieces), dialect, HERE)  # type: ignore[arg-type]


def said(*datas: dict) -> list[bytes]:
    """A stream of OpenAI's kind, an event a piece."""
    return [HEAD, *(chunk(f"data: {json.dumps(each)}\n\n") for each in datas), chunk("data: [DONE]\n\n") + LAST]


def delta(text: str = "", finish: str | None = None, **more: object) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]} | more


def test_a_token_came_when_the_last_byte_of_its_event_did() -> None:
    pieces = [HEAD, chunk(event(1)), chunk(event(2)) + chunk(event(3)), chunk(end(3)) + LAST]
    assert answer(*pieces).times == (1.0, 2.0, 2.0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_however_bytes_are_cut_the_events_are_the_same(size: int) -> None:
    raw = HEAD + chunk(":\n\n") + chunk(event(1)) + chunk(event(2) + event(3)) + LAST
    cut = [raw[i : i + size] for i in range(0, len(raw), size)]
    times = [each.time_s for each in events(*cut)]
    # the moment the byte before the chunk's own line end was there
    ends = [raw.index(b"\n\n\r\n", raw.index(chunk(event(1)))) + 1, raw.index(chunk(event(2) + event(3)))]
    assert len(times) == 3
    assert times[0] == float(ends[0] // size)
    assert times[0] < times[1] <= times[2]


def test_an_event_split_over_chunks_counts_with_its_last_part() -> None:
    text = event(1).encode()
    first, second = text[:10], text[10:]
    parts = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (first, second)]
    assert [each.time_s for each in events(HEAD, *parts, LAST)] == [2.0]


def test_lines_may_end_as_windows_has_them_and_a_body_may_have_no_chunks() -> None:
    head = b"HTTP/1.0 200 OK\r\n\r\n"
    body = b': hello\r\n\r\nevent: x\r\ndata: {"content":\r\ndata: "a"}\r\n\r\ndata: [DONE]\r\n\r\ndata: {"content": "b"}\r\n\r\n'
    assert [each.data for each in events(head, body)] == [{"content": "a"}]


def test_what_is_no_http_or_has_no_chunk_lengths_is_garbled() -> None:
    with pytest.raises(Garbled, match=r"does not speak HTTP: 'SSH-2\.0"):
        response_of(reply(b"SSH-2.0-OpenSSH_9.2\r\n"))
    with pytest.raises(Garbled, match="a piece of its answer has no length: 'oops'"):
        response_of(reply(HEAD + b"oops\r\n"))
    assert response_of(reply()) is None


@pytest.mark.parametrize("text", ["oops", "[1]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_an_event_that_is_no_json_object_fails_the_answer(text: str) -> None:
    got = answer(HEAD, chunk(f"data: {text}\n\n"), chunk(end(3)) + LAST)
    assert got.failed == "garbled"
    assert "an event that is not a JSON object" in str(got.error)
    assert len(str(got.error)) < 350


def test_an_event_that_brings_two_tokens_counts_for_both() -> None:
    assert answer(HEAD, chunk(event(1)), chunk(event(3)), chunk(end(3)) + LAST).times == (1.0, 2.0, 2.0)


def test_without_a_count_each_event_with_content_is_a_token() -> None:
    texts = ['data: {"content": "a"}\n\n', 'data: {"content": ""}\n\n', 'data: {"tokens": [4]}\n\n']
    got = answer(HEAD, *map(chunk, texts), chunk('data: {"stop": true}\n\n') + LAST, tokens=2)
    assert got.times == (1.0, 3.0)
    assert got.completion_tokens is None


@pytest.mark.parametrize(
    ("count", "failed", "said"),
    [
        (1, "short", "asked for 3 tokens, it sent 1"),
        (5, "garbled", "asked for 3 tokens, it sent 5"),
        (10**12, "garbled", "asked for 3 tokens, it sent"),
    ],
)
def test_another_number_of_tokens_than_the_fixed_one_has_no_times(count: int, failed: str, said: str) -> None:
    got = answer(HEAD, chunk(event(count)), chunk(end(count)) + LAST)
    assert (got.failed, got.times) == (failed, ())
    assert said in str(got.error)
    free = answer(HEAD, chunk(event(count)), chunk(end(count)) + LAST, fixed=False)
    assert free.good == (count <= 3)


def test_a_failure_after_the_last_token_does_not_lose_the_times() -> None:
    failed = chunk('data: {"error": {"message": "no format"}}\n\n')
    kept = answer(HEAD, chunk(event(1)), failed, LAST, tokens=1)
    assert kept.times == (1.0,)
    assert kept.notes == ("it failed after its last token: no format",)
    lost = answer(HEAD, chunk(event(1)), failed, LAST, tokens=2)
    assert (lost.failed, lost.error) == ("engine", "it failed after 1 token: no format")


def test_a_stream_that_ends_too_early_is_told_from_one_that_was_closed() -> None:
    ended = answer(HEAD, chunk(event(1)), LAST)
    assert (ended.failed, ended.error) == ("short", "its stream ended without an end, after 1 token")
    closed = answer(HEAD, chunk(event(1)), chunk(event(2))[:-9])
    assert (closed.failed, closed.error) == ("closed", "the connection was closed midway, after 1 token")
    nothing = answer()
    assert (nothing.failed, nothing.error) == ("closed", "the connection was closed without an answer")
    page = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html")
    assert (page.failed, page.error) == ("garbled", "its answer is no stream of events: '<html'")


def test_an_answer_other_than_200_is_told_with_what_the_server_said() -> None:
    got = answer(b'HTTP/1.1 400 Bad Request\r\nContent-Length: 21\r\n\r\n{"error": "too\\nlong"}')
    assert (got.failed, got.error) == ("status", "answered 400 Bad Request: too long")


def test_a_running_count_says_how_many_tokens_an_event_brings() -> None:
    usage = [{"usage": {"completion_tokens": n, "prompt_tokens": 3}} for n in (2, 3, 4)]
    got = answer(
        *said(delta("ab") | usage[0], delta("c") | usage[1], delta("", "stop") | usage[2]), tokens=4, dialect=openai
    )
    assert got.times == (1.0, 1.0, 2.0, 3.0)  # the end token with the event that ends
    assert (got.text, got.finish, got.prompt_tokens, got.completion_tokens) == ("abc", "stop", 3, 4)
    assert got.notes == ()


def test_a_total_that_agrees_makes_each_event_a_token_and_one_more_is_the_end_token() -> None:
    total = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 3}}
    got = answer(*said(delta("a"), delta("bcd"), delta("", "stop"), total), dialect=openai)
    assert got.times == (1.0, 2.0, 3.0)
    assert got.notes == ()


def test_a_total_that_does_not_agree_is_dealt_out_by_length_and_said_so() -> None:
    total = {"choices": [], "usage": {"completion_tokens": 6, "prompt_tokens": 3}}
    got = answer(*said(delta("a"), delta("bcdef"), delta("", "length"), total), tokens=6, dialect=openai)
    assert got.times == (1.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    assert got.notes == ("6 tokens came in 2 events; how many each brought is taken from their lengths",)


@pytest.mark.parametrize(
    ("total", "lengths", "wanted"),
    [(6, [1, 5], [1, 5]), (3, [0, 0, 9], [1, 1, 1]), (2, [4, 4, 4, 4], [1, 0, 0, 1]),
     (0, [3, 3], [0, 0]), (4, [0, 0], [2, 2]), (1, [5, 5], [1, 0])],
)  # fmt: skip
def test_tokens_are_dealt_out_evenly_and_none_is_lost(total: int, lengths: list[int], wanted: list[int]) -> None:
    assert deal(total, lengths) == wanted
    assert sum(wanted) == total


def test_a_count_without_an_event_that_brings_any_is_no_answer() -> None:
    got = answer(*said({"usage": {"completion_tokens": 2, "prompt_tokens": 3}}), dialect=openai, fixed=False)
    assert (got.failed, got.error) == ("garbled", "it counts 2 tokens, and sent no event with any")


def test_thought_and_content_are_told_apart_by_either_name() -> None:
    thoughts = [{"choices": [{"delta": {name: "hm"}}]} for name in ("reasoning_content", "reasoning")]
    total = {"usage": {"completion_tokens": 3, "prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}}
    got = answer(*said(*thoughts, delta("yes", "stop"), {"choices": []} | total), dialect=openai)
    assert (got.reasoning, got.text, got.cached_tokens) == ("hmhm", "yes", 5)
    assert len(got.times) == 3
    assert got.notes == ("a prompt of 3 token ids was sent, the server counts 7",)


def test_fields_of_other_types_than_they_should_have_are_nothing() -> None:
    odd = {"choices": "x", "usage": [1], "timings": 3, "error": None}
    worse = {
        "choices": [{"delta": 4, "text": 5, "token_ids": {}, "finish_reason": 6}],
        "usage": {"completion_tokens": -1},
    }
    total = {"choices": [], "usage": {"completion_tokens": True, "prompt_tokens": 2.5, "prompt_tokens_details": 1}}
    got = answer(*said(odd, worse, total, delta("a", "stop")), tokens=1, dialect=openai)
    assert (got.times, got.completion_tokens, got.prompt_tokens) == ((4.0,), None, None)


def test_times_of_a_server_that_cannot_be_are_left_out_and_said_so() -> None:
    told = {"prompt_n": 5, "prompt_ms": -1.0, "prompt_per_second": 9.0, "predicted_ms": 5000.0, "predicted_n": 3}
    kept, notes = sane(told | {"predicted_per_second": 2.0, "odd": float("nan"), "model": "text", "yes": True}, 1000.0)
    assert kept == {"prompt_n": 5.0, "predicted_n": 3.0}
    assert notes == [
        "the server's prompt_ms=-1 cannot be, and is left out",
        "the server's predicted_ms=5000 is longer than the 1000 ms here, left out",
        "the server's odd=nan cannot be, and is left out",
    ]
    kept, notes = sane({"predicted_ms": 990.0, "predicted_per_second": 3.0, "big": 10**400}, 1000.0)
    assert kept == {"predicted_ms": 990.0, "predicted_per_second": 3.0}
    assert len(notes) == 1


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_make_anything_but_an_answer_or_a_failure(seed: int) -> None:
    chance = random.Random(f"bytes {seed}")
    whole = b"".join(said(delta("ab"), delta("c", "stop"), {"usage": {"completion_tokens": 2, "prompt_tokens": 3}}))
    native_whole = HEAD + b"".join(chunk(event(n)) for n in (1, 2)) + chunk(end(2)) + LAST
    outcomes = set()
    for _ in range(500):
        raw = bytearray(chance.choice([whole, native_whole]))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(raw))
            raw[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        cuts = sorted(chance.sample(range(1, len(raw)), 5))
        pieces = [bytes(raw[i:j]) for i, j in itertools.pairwise([0, *cuts, len(raw)])]
        got = answer(*pieces, tokens=2, fixed=chance.random() < 0.5, dialect=chance.choice([native, openai]))
        outcomes.add(got.failed)
        assert list(got.times) == sorted(got.times)
        assert len(got.times) <= 2
        assert got.good or (not got.times and str(got.error).isprintable() and len(str(got.error)) < 400)
        assert not got.good or got.completion_tokens in (None, len(got.times))
        assert not (got.good and got.ask.fixed) or len(got.times) == 2
    assert {None, "garbled", "short"} <= outcomes
