"""A server that answers as told, byte by byte, for tests of what a client makes of it; and events in their usual forms."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
Script = Callable[["Told", socket.socket], None]


class Told:
    """One request as the server got it."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.line = head.split(b"\r\n", 1)[0].decode()
        self.path = self.line.split(" ")[1]
        self.head = head.decode()
        self.body: Any = json.loads(body) if body else None


def chunk(text: str) -> bytes:
    raw = text.encode()
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


def event(data: Any) -> bytes:
    return chunk(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")


def native(number: int, text: str = " w") -> bytes:
    """An event of /completion with one token, the `number`th."""
    return event({"content": text, "tokens": [300], "stop": False, "tokens_predicted": number})


def native_end(number: int, **more: Any) -> bytes:
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": number}
    return event(last | {"tokens_evaluated": 3} | more) + LAST


def plain(status: str, body: bytes, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class ScriptedServer:
    """Answers every request by calling `script(request, connection)` in a thread; closes the connection behind it."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script, self.tls = script, tls
        self.requests: list[Told] = []
        self.hung_up = threading.Event()  # a client closed a connection while `until_left` waited for it
        self.over = threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listening.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            raw = b""
            while b"\r\n\r\n" not in raw:
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                raw += piece
            head, _, body = raw.partition(b"\r\n\r\n")
            size = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
            while len(body) < size:
                body += connection.recv(1 << 16)
            told = Told(head, body)
            self.requests.append(told)
            self.script(told, connection)
        connection.close()

    def until_left(self, connection: socket.socket, seconds: float = 20.0) -> None:
        """Sends nothing until the client hangs up."""
        connection.settimeout(seconds)
        with contextlib.suppress(OSError):
            if connection.recv(1) == b"":
                self.hung_up.set()

    def close(self) -> None:
        self.over.set()
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def __enter__(self) -> "ScriptedServer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def answering(*pieces: bytes, gap_s: float = 0.0) -> Script:
    """A script that sends these pieces, whatever was asked."""

    def script(told: Told, connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(gap_s)

    return script
