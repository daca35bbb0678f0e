"""Requests over real sockets as a load wants them: each has its own outcome, whatever the server does to others."""

import itertools
import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_server import HEAD, LAST, Script, ScriptedServer, Told, answering, chunk, native, native_end, plain

from labkit.errors import ParameterError
from labkit.runtimes import client, clocks
from labkit.runtimes.address import Address, read_url
from labkit.runtimes.answers import native as native_dialect
from labkit.runtimes.answers import read_answer
from labkit.runtimes.bodies import post
from labkit.runtimes.client import Limits, exchange
from labkit.runtimes.load import Load, at_once
from labkit.runtimes.runtime import Answer, Ask, Progress, no_progress

TLS = Path(__file__).resolve().parents[1] / "data" / "tls"
GOOD = (HEAD, native(1), native(2), native_end(2))


def ask(
    address: Address | ScriptedServer,
    *prompts: str,
    load: Load | None = None,
    limits: Limits | None = None,
    progress: Progress = no_progress,
) -> list[Answer]:
    """Two tokens behind each prompt, as llama-server's own endpoint has it."""
    where = address if isinstance(address, Address) else read_url(address.url)
    asks = [Ask(prompt, 2) for prompt in prompts]
    posts = [post(where, "/completion", {"prompt": each.prompt, "n_predict": 2}, 2) for each in asks]
    replies = exchange(where, posts, load or at_once(len(asks)), limits or Limits(), progress)
    return [read_answer(each, reply, native_dialect, where) for each, reply in zip(asks, replies, strict=True)]


def by_prompt(**scripts: Script) -> Script:
    """The script named by the prompt; a good answer for any other."""

    def script(told: Told, connection: socket.socket) -> None:
        scripts.get(told.body["prompt"], answering(*GOOD))(told, connection)

    return script


def reset(told: Told, connection: socket.socket) -> None:
    connection.sendall(HEAD + native(1))
    time.sleep(0.05)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Counting:
    """Answers after a while, and keeps how many were open at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.most, self.lock = seconds, 0, 0, threading.Lock()

    def __call__(self, told: Told, connection: socket.socket) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        connection.sendall(b"".join(GOOD))


def test_a_closed_loop_keeps_its_number_open_and_sends_the_next_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, ends, stages = Counting(0.1), [], []
    submit = client._Exchange._submit

    def noted(self: client._Exchange, each: client._Connection) -> None:
        stages.append([one.stage for one in self.open.values()])
        submit(self, each)

    monkeypatch.setattr(client._Exchange, "_submit", noted)
    with ScriptedServer(counting) as server:
        answers = ask(server, *"abcdefg", load=Load("concurrent", streams=3), progress=lambda *done: ends.append(done))
        assert sorted(each.body["prompt"] for each in server.requests) == list("abcdefg")
    assert [answer.ask.prompt for answer in answers] == list("abcdefg")
    assert all(answer.good and len(answer.times) == 2 and answer.due_s is None for answer in answers)
    assert counting.most == 3
    assert ends == [(i, 7) for i in range(1, 8)]
    assert stages[0] == ["ready"] * 3  # the first are sent when all of them are connected
    sent = sorted(answer.submit_s for answer in answers)
    done = sorted(answer.end_s or 0.0 for answer in answers)
    assert all(sent[i + 3] >= done[i] for i in range(4))


def test_one_at_a_time_is_one_after_the_other() -> None:
    with ScriptedServer(answering(*GOOD)) as server:
        answers = ask(server, *"abc", load=Load("concurrent", streams=1))
    assert all((after.submit_s >= (before.end_s or 0)) for before, after in itertools.pairwise(answers))


def test_an_open_loop_sends_at_its_moments_whatever_is_open() -> None:
    all_there, load = threading.Barrier(8), Load("poisson", rate=40.0, seed=5)

    def script(told: Told, connection: socket.socket) -> None:
        all_there.wait(20)  # none ends before all were sent
        connection.sendall(b"".join(GOOD))

    with ScriptedServer(script) as server:
        answers = ask(server, *"abcdefgh", load=load)
    assert all(answer.good for answer in answers)
    dues = [answer.due_s for answer in answers]
    start = dues[0] - next(load.moments(1))  # type: ignore[operator]
    assert dues == pytest.approx([start + moment for moment in load.moments(8)])
    late = [answer.submit_s - answer.due_s for answer in answers]  # type: ignore[operator]
    assert min(late) >= 0
    assert max(late) < 1.0  # as long as a busy machine may let a process wait


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("401 Unauthorized", b'{"error": {"message": "Incorrect API key"}}', "answered 401 Unauthorized: Incorrect API key"),
        ("404 Not Found", b'{"object": "error", "message": "no such model"}', "answered 404 Not Found: no such model"),
        ("429 Too Many Requests", b'{"detail": "slow\\ndown"}', "answered 429 Too Many Requests: slow down"),
        ("500 Internal Server Error", b"\x1b[31mboom\x00\r\n" * 900, "answered 500 Internal Server Error: [31mboom [31mboom"),
        ("503 ", b"", "answered 503"),
        ("302 Found", b"<a>", "answered 302 Found: it points to another address; give that one"),
    ],
)  # fmt: skip
def test_a_refused_request_has_the_servers_words_in_one_line_and_others_go_on(
    status: str, body: bytes, said: str
) -> None:
    with ScriptedServer(by_prompt(bad=answering(plain(status, body)))) as server:
        bad, good = ask(server, "bad", "good")
    assert (bad.failed, bad.times, bad.text) == ("status", (), "")
    assert str(bad.error).startswith(said)
    assert str(bad.error).isprintable()
    assert len(str(bad.error)) < 350
    assert good.good


def test_nobody_listening_is_a_failure_of_each_request() -> None:
    answers = ask(Address("127.0.0.1", 1), "a", "b", "c", load=Load("concurrent", streams=2))
    assert [answer.failed for answer in answers] == ["refused"] * 3
    assert answers[0].error == "http://127.0.0.1:1 did not answer: connection refused"


def test_a_host_that_does_not_exist_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*arguments: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    answer = ask(Address("nowhere.invalid", 80), "a")[0]
    assert (answer.failed, answer.error) == ("refused", "http://nowhere.invalid did not answer: there is no such host")


def test_a_second_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answering(*GOOD)) as server:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in (1, server.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: places)
        assert ask(Address("two.invalid", 80), "a")[0].good


def test_want_of_file_descriptors_here_is_not_blamed_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(client.socket, "socket", none_left)
    answer = ask(Address("127.0.0.1", 80), "a")[0]
    assert answer.failed == "refused"
    assert "raise `ulimit -n` or send fewer at once" in str(answer.error)


def test_a_server_that_hangs_midway_is_cut_after_a_silence_and_the_others_are_whole() -> None:
    held: list[ScriptedServer] = []

    def hang(told: Told, connection: socket.socket) -> None:
        connection.sendall(HEAD + native(1))
        held[0].until_left(connection)

    with ScriptedServer(by_prompt(bad=hang)) as server:
        held.append(server)
        bad, good = ask(server, "bad", "good", limits=Limits(silence_s=0.8))
        assert server.hung_up.wait(5)  # it is told, by the end of the connection
    assert (bad.failed, bad.times) == ("silent", ())
    assert bad.error == "it sent nothing for 0.8 s, after 1 token"
    assert good.good


def test_an_answer_that_waits_in_a_queue_is_not_taken_for_hung_while_others_come() -> None:
    last = answering(HEAD, *(native(1) for _ in range(10)), native(2), native_end(2), gap_s=0.1)

    def queued(told: Told, connection: socket.socket) -> None:
        time.sleep(1.0)
        connection.sendall(b"".join(GOOD))

    with ScriptedServer(by_prompt(queued=queued, last=last)) as server:
        answers = ask(server, "queued", "last", limits=Limits(silence_s=0.6))
    assert [answer.error for answer in answers] == [None, None]


def test_a_server_that_only_dribbles_is_cut_at_the_limit_of_a_whole_request() -> None:
    def dribble(told: Told, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for _ in range(200):
            connection.sendall(chunk(":\n\n"))
            time.sleep(0.05)

    with ScriptedServer(dribble) as server:
        answer = ask(server, "a", limits=Limits(silence_s=5.0, whole_s=0.5))[0]
    assert answer.failed == "silent"
    assert str(answer.error).startswith("it was not done after 0.5 s")


def test_a_connection_closed_or_reset_midway_has_no_times() -> None:
    scripts = by_prompt(fin=answering(HEAD, native(1)), rst=reset, nothing=answering())
    with ScriptedServer(scripts) as server:
        fin, rst, nothing, good = ask(server, "fin", "rst", "nothing", "good")
    assert fin.error == "the connection was closed midway, after 1 token"
    assert (
        rst.error == "the connection was closed midway, after 1 token (the connection broke: connection reset by peer)"
    )
    assert nothing.error == "the connection was closed without an answer"
    assert [each.failed for each in (fin, rst, nothing)] == ["closed"] * 3
    assert [each.times for each in (fin, rst, nothing)] == [()] * 3
    assert good.good


def test_an_endless_answer_is_cut_and_fails() -> None:
    def endless(told: Told, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while True:  # until the client hangs up
            connection.sendall(chunk("data: " + "x" * 60000))

    with ScriptedServer(by_prompt(bad=endless)) as server:
        bad, good = ask(server, "bad", "good")
    assert bad.failed == "garbled"
    assert bad.error == "it sent over 4.21 MB, and was cut"
    assert good.good


def test_garbage_is_told_from_an_answer() -> None:
    scripts = by_prompt(bad=answering(bytes(range(256)) * 9), json=answering(HEAD, chunk("data: {oops\n\n"), LAST))
    with ScriptedServer(scripts) as server:
        bad, json, good = ask(server, "bad", "json", "good")
    assert bad.failed == json.failed == "garbled"
    assert "it does not speak HTTP" in str(bad.error)
    assert "an event that is not a JSON object: '{oops'" in str(json.error)
    assert good.good


def test_a_server_that_does_not_take_the_request_is_cut_after_a_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = Address("127.0.0.1", deaf.getsockname()[1])
        answer = ask(address, "x" * 12_000_000, limits=Limits(silence_s=0.4))[0]
    assert answer.failed == "silent"
    assert str(answer.error).startswith("it took nothing of the request for 0.4 s")


def test_a_refusal_before_the_request_was_taken_whole_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            connection, _ = listening.accept()
            connection.recv(1000)
            connection.sendall(plain("413 Too Large", b'{"error": "too large"}'))
            time.sleep(0.3)
            connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        answer = ask(Address("127.0.0.1", listening.getsockname()[1]), "x" * 12_000_000)[0]
    assert (answer.failed, answer.error) == ("status", "answered 413 Too Large: too large")


def test_a_machine_that_slept_meanwhile_fails_what_was_open(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = [1000.0]
    monkeypatch.setattr(client, "asleep_s", lambda: slept[0])

    def sleep(told: Told, connection: socket.socket) -> None:
        connection.sendall(b"".join(GOOD[:2]))
        slept[0] += 61.0
        connection.sendall(b"".join(GOOD[2:]))

    with ScriptedServer(by_prompt(before=sleep)) as server:
        during, after = ask(server, "before", "after", load=Load("concurrent", streams=1))
    assert (during.failed, during.times) == ("asleep", ())
    assert during.error == "this machine slept for 61 s while the request was open"
    assert after.good


def test_sleep_is_what_one_clock_counts_and_the_other_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    at = {time.CLOCK_BOOTTIME: 500.0, time.CLOCK_MONOTONIC: 200.0}
    monkeypatch.setattr(time, "clock_gettime", at.__getitem__)
    assert clocks.asleep_s() == 300.0


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    before = time.perf_counter()
    with ScriptedServer(answering(*GOOD, gap_s=0.02)) as server:
        answer = ask(server, "a")[0]
    assert time.time() <= 10**9  # the patched one
    assert answer.good
    assert before < answer.submit_s < answer.times[0] < answer.times[1] < time.perf_counter()


def test_an_interrupt_closes_every_connection() -> None:
    held: list[ScriptedServer] = []
    left, all_there = threading.Semaphore(0), threading.Barrier(3, action=lambda: os.kill(os.getpid(), signal.SIGINT))

    def hang(told: Told, connection: socket.socket) -> None:
        connection.sendall(HEAD + native(1))
        all_there.wait(20)
        held[0].until_left(connection)
        left.release()

    with ScriptedServer(hang) as server:
        held.append(server)
        with pytest.raises(KeyboardInterrupt):
            ask(server, *"abcdef", load=Load("concurrent", streams=3))
        assert all(left.acquire(timeout=10) for _ in range(3))
        assert len(server.requests) == 3


@pytest.fixture
def secret_server() -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "self-signed.pem", TLS / "self-signed-key.pem")
    with ScriptedServer(answering(*GOOD), tls=context) as server:
        yield server


def test_https_works_with_the_file_of_its_authority_and_not_without(secret_server: ScriptedServer) -> None:
    trusted = read_url(secret_server.url, ca_file=str(TLS / "self-signed.pem"))
    assert all(answer.good and len(answer.times) == 2 for answer in ask(trusted, "a", "b"))
    answer = ask(read_url(secret_server.url), "a")[0]
    assert answer.failed == "refused"
    assert answer.error == (
        f"{secret_server.url} did not answer: its certificate is not trusted (self-signed certificate); give the file of its "
        "authority as ca_file"
    )


def test_https_where_there_is_none_is_said_so() -> None:
    with ScriptedServer(answering(*GOOD)) as server:
        answer = ask(read_url(server.url.replace("http:", "https:")), "a", limits=Limits(silence_s=1.0, connect_s=1.0))[
            0
        ]
    assert answer.failed == "refused"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("localhost:8080", {}, "'localhost:8080' is no address: give http://HOST:PORT or https://HOST"),
        ("ftp://x", {}, "is no address"),
        ("http://", {}, "is no address"),
        ("http://x:99999", {}, "the address cannot be read"),
        ("http://[::1", {}, "the address cannot be read"),
        ("http://x/a b", {}, "has a host, a port or a path that cannot be"),
        ("http://me:hunter2@x", {}, "an address holds no name, password"),
        ("http://x/v1?key=hunter2", {}, "an address holds no name, password"),
        ("http://x", {"key": "hunter2\r\nX: y"}, "the key has characters other than plain ones"),
        ("https://x", {"ca_file": "/nonexistent.pem"}, "/nonexistent.pem holds no certificates to trust: No such file"),
        ("http://x", {"ca_file": "/nonexistent.pem"}, "certificates are given for an address that is not https"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_secrets(url: str, options: dict, said: str) -> None:
    with pytest.raises(ParameterError) as refused:
        read_url(url, **options)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_an_address_is_written_without_its_key() -> None:
    address = read_url("https://host.example/api/v1/", key="hunter2")
    assert (address.url, address.prefix, address.port) == ("https://host.example/api/v1", "/api/v1", 443)
    assert "hunter2" not in repr(address)
    assert b"Authorization: Bearer hunter2\r\n" in address.post("/x", {})
    assert read_url("http://[::1]:8080").url == "http://[::1]:8080"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ParameterError, match="is not a number of seconds above 0"):
        Limits(silence_s=value)
