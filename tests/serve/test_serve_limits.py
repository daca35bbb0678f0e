"""What clients cannot do to the server: fill it, stall it, keep slots they left, get in without the key."""

import http.client
import json
import socket
import threading
import time

import pytest
from running_server import NAME

KEY = "a key of 16 letters"
ENDLESS = {"max_tokens": 100, "ignore_eos": True}


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    connection.close()
    return b"".join(parts)


def refusal(answer: bytes) -> tuple[int, dict]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


class Held:
    """Keeps the engine's thread from going on, so that what it holds can be counted."""

    def __init__(self, engine, monkeypatch):
        self.gate, self.arrived = threading.Event(), threading.Event()
        run = engine._run

        def wait(batch, began):
            self.arrived.set()
            assert self.gate.wait(30)
            run(batch, began)

        monkeypatch.setattr(engine, "_run", wait)


# the queue


def test_a_full_queue_is_429_with_the_seconds_to_wait_and_takes_again_afterwards(serving, monkeypatch):
    running = serving(slots=2, queue=1)
    held = Held(running.engine, monkeypatch)
    clients = [running.begin(**ENDLESS) for _ in range(3)]
    assert running.until(lambda: running.app.queue.taken == 3)
    for streamed in (False, True):
        status, answer, headers = running.post(prompt="x", stream=streamed)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "2 completions run and 1 wait" in answer["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 60
    assert running.ask("GET", "/health")[0] == 200
    held.gate.set()
    for client in clients:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.close()
    assert running.idle()
    assert running.post(prompt="x", max_tokens=2)[0] == 200


def test_more_choices_than_places_are_refused_whole(serving):
    running = serving(slots=2, queue=1)
    status, answer, _ = running.post(prompt="x", n=4)
    assert (status, answer["error"]["param"]) == (400, "n")
    assert "at most 3" in answer["error"]["message"]
    assert running.post(prompt="x", n=3, max_tokens=2)[0] == 200
    assert running.idle()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_frees_its_slot_at_once_and_its_place_in_the_line(serving, monkeypatch, streamed):
    running = serving(slots=1, queue=4)
    held = Held(running.engine, monkeypatch)
    clients = [running.begin(stream=streamed, **ENDLESS) for _ in range(4)]
    assert running.until(lambda: running.app.queue.taken == 4)
    for client in clients[1:]:
        client.close()
    assert running.until(lambda: running.app.counters.hangups == 3)
    clients[0].close()
    assert running.until(lambda: running.app.counters.hangups == 4)
    held.gate.set()
    assert running.idle()
    assert running.app.counters.finishes == {"cancelled": 4}
    assert running.app.counters.completion_tokens <= 1, "the slot was free a step later"
    assert running.post(prompt="x", max_tokens=2)[0] == 200


def test_a_client_that_leaves_while_its_prompt_is_read_leaves_no_place_taken(serving, monkeypatch):
    running = serving(slots=1, queue=0)
    begun, go = threading.Event(), threading.Event()
    chat = running.engine.model.chat

    def slow(messages):
        begun.set()
        assert go.wait(20)
        return chat(messages)

    monkeypatch.setattr(running.engine.model, "chat", slow)
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    client = running.open(head.encode() + b"\r\n\r\n" + body)
    assert begun.wait(20)
    client.close()
    assert running.until(lambda: running.app.queue.taken == 0)
    go.set()
    assert running.idle()
    assert running.post(prompt="x", max_tokens=2)[0] == 200


# bodies and clients that dribble


@pytest.mark.parametrize("declared", [True, False])
def test_a_huge_body_is_413_and_the_client_hears_it(serving, declared):
    running = serving(body_bytes=10_000)
    body = json.dumps({"model": NAME, "prompt": "x" * 300_000}).encode()
    if declared:
        status, answer, _ = running.ask("POST", "/v1/completions", raw=body)
    else:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client = running.open(head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        client.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        status, error = refusal(read_all(client))
        answer = {"error": error}
    assert (status, answer["error"]["code"]) == (413, "request_too_large")
    assert "at most 10000" in answer["error"]["message"]
    assert running.post(prompt="x", max_tokens=2)[0] == 200


def test_the_connection_can_be_used_again_after_a_refusal(serving):
    running = serving()
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    for body, status in ((b"{", 400), (b"x" * (2 << 20), 413)):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection")) == (status, None)
        answer.read()
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", 408), (b"POST /v1/compl", 408), (HEAD, 408), (HEAD + b"Content-Length: 900\r\n\r\n{", 408)],
    ids=["nothing", "part of a line", "part of the head", "part of the body"],
)
def test_a_client_that_dribbles_is_let_go_of_while_others_are_served(serving, sent, status):
    running = serving(head_s=0.5, body_s=0.5)
    clients = [running.open(sent) for _ in range(20)]
    for _ in range(4):  # a byte now and then does not keep it
        time.sleep(0.1)
        for client in clients:
            client.sendall(b"x")
    assert running.post(prompt="x", max_tokens=2)[0] == 200
    for client in clients:
        client.settimeout(10)
        got, error = refusal(read_all(client))
        assert (got, error["code"]) == (status, "timeout")
    assert running.until(lambda: not running.server.server_state.connections)


def test_a_client_that_does_not_read_its_stream_is_let_go_of(serving):
    running = serving(slots=1, context=2048, send_s=0.5, queue=0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", running.port))
    body = {"model": NAME, "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 2000, "logprobs": 20}
    data = json.dumps(body).encode()
    client.sendall(HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    assert running.until(lambda: running.app.counters.hangups == 1, 60)
    assert running.idle()
    client.close()
    assert running.post(prompt="x", max_tokens=2)[0] == 200


def test_one_connection_too_many_is_told_so(serving):
    running = serving(connections=3)
    clients = [running.open(b"") for _ in range(3)]
    assert running.until(lambda: len(running.server.server_state.connections) == 3)
    status, error = refusal(read_all(running.open(b"")))
    assert (status, error["message"]) == (503, "All 3 connections are in use.")
    for client in clients:
        client.close()
    assert running.until(lambda: not running.server.server_state.connections)
    assert running.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,
        b"GET / HTTP/one\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: minus\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["tls", "version", "length", "long line", "bytes"],
)
def test_what_is_not_http_gets_400_and_the_server_lives_on(serving, sent):
    running = serving()
    answer = read_all(running.open(sent))
    assert answer.startswith(b"HTTP/1.1 400")
    assert refusal(answer)[1]["type"] == "invalid_request_error"
    assert running.ask("GET", "/health")[0] == 200


# who may ask


def test_a_key_opens_everything_and_nothing_but_health_opens_without(serving):
    running = serving(key=KEY)
    for shown in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"Authorization": "Bearer é".encode()},
    ):
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("GET", "/metrics"),
            ("GET", "/nothing"),
        ):
            status, answer, _ = running.ask(method, path, **shown)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert KEY not in json.dumps(answer)
    assert running.ask("GET", "/health")[0] == 200
    right = {"Authorization": f"Bearer {KEY}", "Host": "lab.example:8000"}
    assert running.ask("GET", "/v1/models", **right)[0] == 200
    assert running.ask("POST", "/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 2}, **right)[0] == 200


def test_a_wrong_key_with_a_large_body_still_hears_401(serving):
    running = serving(key=KEY)
    status, answer, _ = running.ask("POST", "/v1/completions", raw=b"x" * 900_000)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")


def test_without_a_key_only_names_of_this_machine_are_answered(serving):
    running = serving()
    for host, status in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 403), ("", 403)):
        assert running.ask("GET", "/v1/models", Host=host)[0] == status, host


def test_a_form_of_a_web_page_is_refused(serving):
    running = serving()
    connection = running.open(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close"
        b"\r\n\r\n{}"
    )
    assert refusal(read_all(connection))[0] == 415


# when the engine or the server ends


def test_an_engine_that_failed_is_told_of_without_its_insides(serving, monkeypatch):
    running = serving()

    def broken(batch, began):
        raise RuntimeError("the insides")

    monkeypatch.setattr(running.engine, "_run", broken)
    status, answer, _ = running.post(prompt="x")
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert running.ask("GET", "/health")[0] == 503
    assert running.post(prompt="x", stream=True)[0] == 500
    assert running.app.queue.taken == 0


def test_an_engine_that_fails_within_a_stream_ends_it_with_an_error(serving, monkeypatch):
    running = serving()
    run, steps = running.engine._run, iter(range(100))

    def breaks(batch, began):
        if next(steps) == 5:
            raise RuntimeError("the insides")
        run(batch, began)

    monkeypatch.setattr(running.engine, "_run", breaks)
    events = running.stream(prompt="x", **ENDLESS)
    assert len(events) > 1
    assert events[-1]["error"]["type"] == "server_error"
    assert "insides" not in json.dumps(events)


def test_a_fault_of_the_server_is_500_without_its_insides_and_logged(serving, monkeypatch, caplog):
    running = serving()

    def broken(body):
        raise ZeroDivisionError("the insides")

    monkeypatch.setattr("labkit.serve.endpoint.Preparation.asks", lambda self, body: broken(body))
    status, answer, _ = running.post(prompt="x")
    assert (status, answer["error"]["message"]) == (500, "The server had an error; its log says which.")
    assert running.until(lambda: "the insides" in caplog.text)
    assert running.app.queue.taken == 0


def test_the_server_ends_within_seconds_whatever_runs(serving):
    running = serving(slots=1, context=2048, queue=4, stop_s=1.0)
    clients = [running.begin(stream=True, max_tokens=2000) for _ in range(3)]
    clients += [running.open(b""), running.open(HEAD)]
    assert running.until(lambda: running.app.queue.taken == 3)
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < 5
    assert running.until(lambda: not running.engine.scheduler.busy and not running.engine.scheduler.waiting)
    for client in clients:
        client.close()
