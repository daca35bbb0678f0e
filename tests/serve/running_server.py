"""A real server on a loopback port in a thread, and the ways to ask it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.engine.engine import Engine

pytest.importorskip("starlette", reason="lab serve needs starlette, which is not installed")
pytest.importorskip("uvicorn", reason="lab serve needs uvicorn, which is not installed")

from labkit.serve.app import App
from labkit.serve.limits import Limits
from labkit.serve.server import Server, address_of, bind

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
NAME = "llama-q4_1"


class Served:
    """A running server: its engine, its app and its address."""

    def __init__(self, engine: Engine, limits: Limits, key: str | None = None) -> None:
        self.engine, self.app = engine, App(engine, limits, key)
        bound = bind("127.0.0.1", 0)
        self.port, self.url = bound.getsockname()[1], address_of(bound)
        self.server = Server(self.app)
        self.thread = threading.Thread(target=self.server.serve_on, args=(bound,), daemon=True)
        self.thread.start()
        end = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server did not end"

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, JSON or text, headers in lower case) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"} if sent is not None else {}
            connection.request(method, path, sent, kind | {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            text = answer.read().decode()
            told = {k.lower(): v for k, v in answer.getheaders()}
            parsed = json.loads(text) if told.get("content-type", "").startswith("application/json") else text
            return answer.status, parsed, told
        finally:
            connection.close()

    def post(self, path: str = "/v1/completions", **body: Any) -> tuple[int, Any, dict[str, str]]:
        """One request with the model's name and a prompt unless given."""
        return self.ask("POST", path, {"model": NAME} | body)

    def stream(self, path: str = "/v1/completions", **body: Any) -> list[Any]:
        """The events of a stream; the last must be [DONE]."""
        status, text, headers = self.ask("POST", path, {"model": NAME, "stream": True} | body)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), text
        lines = [line for line in text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def open(self, data: bytes) -> socket.socket:
        """A connection on which `data` was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(data)
        return connection

    def begin(self, **body: Any) -> socket.socket:
        """A connection on which a completion was asked for and nothing read."""
        data = json.dumps({"model": NAME, "prompt": "def main", "ignore_eos": True} | body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        return self.open(head.encode() + b"\r\n\r\n" + data)

    def idle(self, seconds: float = 10.0) -> bool:
        """Whether every slot and place becomes free."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.engine.scheduler.busy and not self.engine.scheduler.waiting and self.app.queue.taken == 0:
                return True
            time.sleep(0.01)
        return False

    def until(self, holds: Callable[[], bool], seconds: float = 20.0) -> bool:
        """Waits for something to hold."""
        end = time.monotonic() + seconds
        while not holds() and time.monotonic() < end:
            time.sleep(0.005)
        return holds()
