"""Many HTTP requests as a load wants them, by one thread that only notes when bytes came; they are understood afterwards.

A thread a stream, each decoding JSON as it comes, would make the client the slow part at some thousand tokens a second.
"""

import errno
import math
import os
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.errors import ParameterError
from labkit.runtimes.address import Address, why
from labkit.runtimes.clocks import SLEPT_S, asleep_s
from labkit.runtimes.load import Load
from labkit.runtimes.runtime import Failure, Progress, no_progress

HEAD_BYTES = 1 << 16  # of an answer's first line and headers
READ_BYTES = 1 << 16
LOOK_S = 0.25  # how often it is looked for connections that have been silent too long
END = b"\r\n0\r\n\r\n"  # of a chunked answer


@dataclass(frozen=True)
class Limits:
    """How long a server is waited for: for a connection, for its next byte, and for a whole answer. Seconds.

    An answer that has not begun may wait in a queue: until its first byte, a byte of any other answer counts too."""

    silence_s: float = 300.0
    whole_s: float = 7200.0
    connect_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("silence_s", "whole_s", "connect_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= 7 * 86400):
                raise ParameterError(f"{name}={value!r} is not a number of seconds above 0, at most a week")


@dataclass(frozen=True)
class Post:
    """One request as bytes, and how many bytes its answer may have before it is cut."""

    data: bytes
    most_bytes: int


@dataclass
class Reply:
    """What came back of one request: pieces of bytes with the moment each came (`time.perf_counter`).

    `submit_s` is when its first byte went out, over a connection that was there already. `failed` and `error` are those of
    the connection; whether the bytes make an answer is for others to say."""

    submit_s: float = 0.0
    due_s: float | None = None
    end_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    failed: Failure | None = None
    error: str | None = None


@dataclass
class _Connection:
    """One open request. `stage`: connect, handshake, ready, send, read."""

    number: int
    reply: Reply
    post: Post
    socket: socket.socket
    slept: float  # the sleep of this machine until it was begun
    began_s: float
    last_s: float
    others: list[tuple[int, tuple]]  # addresses of the host still to be tried
    stage: str = "connect"
    sent: int = 0
    got: int = 0
    head: bytes | None = b""  # of the answer, until it is known how its end is told
    length: int | None = None  # bytes of the whole answer, where its head says
    chunked: bool = False
    tail: bytes = b""


def exchange(
    address: Address, posts: Sequence[Post], load: Load, limits: Limits, progress: Progress = no_progress
) -> list[Reply]:
    """Send every request as `load` says, each on a connection of its own, and collect the answers until each ends.

    The first requests of a closed loop are sent when all of their connections are there, so that they start together. An
    open loop's are sent at their moments, however many are open. Nothing raises but an interrupt, and what `progress`
    raises; both close every connection, which tells a server to stop."""
    return _Exchange(address, posts, load, limits, progress).run()


class _Exchange:
    """The state of one call of `exchange`."""

    def __init__(self, address: Address, posts: Sequence[Post], load: Load, limits: Limits, progress: Progress) -> None:
        self.address, self.posts, self.load, self.limits, self.progress = address, posts, load, limits, progress
        self.replies = [Reply() for _ in posts]
        self.open: dict[int, _Connection] = {}
        self.done = self.begun = 0
        self.together = load.closed  # the first wait for each other
        self.heard_s = 0.0  # when a byte came last, of any answer

    def run(self) -> list[Reply]:
        """All replies, in the order of the requests."""
        clock = time.perf_counter
        looked = start = clock()
        dues = list(self.load.moments(len(self.posts)))
        if not self.load.closed:
            for reply, due in zip(self.replies, dues, strict=True):
                reply.due_s = start + due
        self.places, self.nowhere = self._resolve()
        self.waiting = selectors.DefaultSelector()
        try:
            while self.begun < len(self.posts) or self.open:
                now = clock()
                while self.begun < len(self.posts) and self._may_begin(start + dues[self.begun], now):
                    self._begin(self.begun)
                    self.begun += 1
                if self.together and all(each.stage == "ready" for each in self.open.values()):
                    self.together = False
                    for each in list(self.open.values()):
                        self._submit(each)
                timeout = LOOK_S
                if not self.load.closed and self.begun < len(self.posts):
                    timeout = min(timeout, max(0.0, start + dues[self.begun] - clock()))
                for key, mask in self.waiting.select(timeout):
                    if key.data.number in self.open:
                        self._step(key.data, mask)
                if clock() - looked > LOOK_S:
                    looked = clock()
                    self._expire(looked)
        finally:
            for each in self.open.values():
                each.socket.close()
            self.waiting.close()
        return self.replies

    def _resolve(self) -> tuple[list[tuple[int, tuple]], str]:
        """(family, address) of the host in the order to try, and why there are none."""
        try:
            found = socket.getaddrinfo(self.address.host, self.address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            return [], why(error)
        except UnicodeError:
            return [], "there is no such host"
        return [(family, place) for family, _, _, _, place in found], ""

    def _may_begin(self, due: float, now: float) -> bool:
        return len(self.open) < self.load.streams if self.load.closed else due <= now

    def _begin(self, number: int) -> None:
        reply = self.replies[number]
        now = time.perf_counter()
        reply.submit_s = now
        if not self.places:
            self._fail_unopened(reply, self.nowhere)
            return
        try:
            first = self._connect(self.places[0])
        except OSError as error:
            self._fail_unopened(reply, _why_here(error))
            return
        connection = _Connection(
            number, reply, self.posts[number], first, asleep_s(), now, now, list(self.places[1:])
        )  # fmt: skip
        self.open[number] = connection
        self.waiting.register(first, selectors.EVENT_WRITE, connection)

    def _connect(self, place: tuple[int, tuple]) -> socket.socket:
        family, address = place
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = made.connect_ex(address)
            if code not in (0, errno.EINPROGRESS, errno.EAGAIN):
                raise OSError(code, os.strerror(code))
        except BaseException:
            made.close()
            raise
        return made

    def _fail_unopened(self, reply: Reply, reason: str) -> None:
        reply.failed, reply.error = "refused", f"{self.address.url} did not answer: {reason}"
        reply.end_s = time.perf_counter()
        self._count()

    def _count(self) -> None:
        self.done += 1
        self.progress(self.done, len(self.posts))

    def _step(self, each: _Connection, mask: int) -> None:
        """Whatever can be done for a connection that is ready."""
        try:
            if each.stage == "connect":
                self._connected(each)
            elif each.stage == "handshake":
                self._shake(each)
            else:
                if mask & selectors.EVENT_WRITE:
                    self._send(each)
                if mask & selectors.EVENT_READ and each.number in self.open:
                    self._read(each)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return
        except OSError as error:
            if each.stage in ("connect", "handshake"):
                self._end(each, "refused", f"{self.address.url} did not answer: {why(error)}")
            else:
                self._end(each, "closed", f"the connection broke: {why(error)}")

    def _connected(self, each: _Connection) -> None:
        code = each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code and each.others:  # another address of the same host
            self.waiting.unregister(each.socket)
            each.socket.close()
            each.socket = self._connect(each.others.pop(0))
            self.waiting.register(each.socket, selectors.EVENT_WRITE, each)
            return
        if code:
            raise OSError(code, os.strerror(code))
        if self.address.tls is None:
            self._ready(each)
            return
        self.waiting.unregister(each.socket)
        each.socket = self.address.tls.wrap_socket(
            each.socket, server_hostname=self.address.host, do_handshake_on_connect=False
        )
        each.stage = "handshake"
        self.waiting.register(each.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
        self._shake(each)

    def _shake(self, each: _Connection) -> None:
        assert isinstance(each.socket, ssl.SSLSocket)
        try:
            each.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.waiting.modify(each.socket, selectors.EVENT_READ, each)
        except ssl.SSLWantWriteError:
            self.waiting.modify(each.socket, selectors.EVENT_WRITE, each)
        else:
            self._ready(each)

    def _ready(self, each: _Connection) -> None:
        each.stage = "ready"
        each.last_s = time.perf_counter()
        self.waiting.modify(each.socket, selectors.EVENT_READ, each)
        if not self.together:
            self._submit(each)

    def _submit(self, each: _Connection) -> None:
        each.stage = "send"
        each.reply.submit_s = each.last_s = time.perf_counter()
        self.waiting.modify(each.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
        self._step(each, selectors.EVENT_WRITE)

    def _send(self, each: _Connection) -> None:
        try:
            each.sent += each.socket.send(memoryview(each.post.data)[each.sent :])
        except (BrokenPipeError, ConnectionResetError):
            each.sent = len(each.post.data)  # it takes no more of it, and may have said why
        each.last_s = time.perf_counter()
        if each.sent >= len(each.post.data):
            each.stage = "read"
            self.waiting.modify(each.socket, selectors.EVENT_READ, each)

    def _read(self, each: _Connection) -> None:
        while True:
            data = each.socket.recv(READ_BYTES)
            each.last_s = time.perf_counter()
            if not data:
                self._end(each)
                return
            self.heard_s = each.last_s
            each.reply.pieces.append((each.last_s, data))
            each.got += len(data)
            if each.got > each.post.most_bytes:
                self._end(each, "garbled", f"it sent over {each.post.most_bytes / 1e6:.3g} MB, and was cut")
                return
            if self._whole(each, data):
                self._end(each)
                return
            if not (isinstance(each.socket, ssl.SSLSocket) and each.socket.pending()):
                return

    def _whole(self, each: _Connection, data: bytes) -> bool:
        """Whether the answer is whole with `data`."""
        if each.head is not None:
            each.head += data
            end = each.head.find(b"\r\n\r\n")
            if end >= 0:
                fields = each.head[:end].lower().split(b"\r\n")[1:]
                told = {name.strip(): value.strip() for name, _, value in (line.partition(b":") for line in fields)}
                each.chunked = b"chunked" in told.get(b"transfer-encoding", b"")
                size = told.get(b"content-length", b"")
                if not each.chunked and size.isdigit() and len(size) < 16:
                    each.length = end + 4 + int(size)
            if end >= 0 or len(each.head) > HEAD_BYTES:
                each.head = None
        each.tail = (each.tail + data[-len(END) :])[-len(END) :]
        return (each.chunked and each.tail == END) or (each.length is not None and each.got >= each.length)

    def _expire(self, now: float) -> None:
        """End what has been silent, or has taken, too long."""
        limits = self.limits
        for each in list(self.open.values()):
            if each.stage in ("connect", "handshake"):
                if now - each.began_s > limits.connect_s:
                    what = f"{self.address.url} did not answer: no connection within {limits.connect_s:g} s"
                    self._end(each, "refused", what)
            elif each.stage == "ready":  # waits for others
                continue
            elif now - max(each.last_s, 0.0 if each.got else self.heard_s) > limits.silence_s:
                done = "sent nothing" if each.stage == "read" else "took nothing of the request"
                self._end(each, "silent", f"it {done} for {limits.silence_s:g} s")
            elif now - each.reply.submit_s > limits.whole_s:
                self._end(each, "silent", f"it was not done after {limits.whole_s:g} s")

    def _end(self, each: _Connection, failed: Failure | None = None, error: str | None = None) -> None:
        reply = each.reply
        reply.end_s = time.perf_counter()
        slept = asleep_s() - each.slept
        if slept > SLEPT_S:
            failed, error = "asleep", f"this machine slept for {slept:.0f} s while the request was open"
        reply.failed, reply.error = failed, error
        self.waiting.unregister(each.socket)
        each.socket.close()
        del self.open[each.number]
        self._count()


def _why_here(error: OSError) -> str:
    """Why no connection could be begun, which may be for want of file descriptors here."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "this process has too many files open for another connection; raise `ulimit -n` or send fewer at once"
    return why(error)
