"""The server itself: a socket bound first, uvicorn run over it until it is told to stop."""

import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from labkit.errors import ParameterError
from labkit.serve.app import App
from labkit.serve.protocol import protocol_for

BACKLOG = 512
HEAD_BYTES = 1 << 16  # of a request's first line and headers
SEND_BYTES = 1 << 18  # the system keeps for a client that does not read; what comes behind waits for it
KEEP_ALIVE_S = 30


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not yet listening; port 0 takes any. ParameterError when it is in use or not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ParameterError(f"--host {host} --port {port} is no address to listen on: {error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        bound.bind(address)
    except OSError as error:
        bound.close()
        why = error.strerror or str(error)
        raise ParameterError(f"cannot listen on {host} port {port}: {why}; give another --port, or 0 for any") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL clients use."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves `app` on a bound socket. `should_exit = True` ends it, from any thread; in the main thread so do SIGINT and
    SIGTERM, and a second SIGINT at once. `announce` is called when it listens."""

    def __init__(self, app: App, announce: Callable[[], None] | None = None) -> None:
        self.app, self._announce = app, announce
        super().__init__(
            uvicorn.Config(
                app.asgi,
                http=protocol_for(app.limits),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(app.limits.stop_s)),
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )

    def serve_on(self, bound: socket.socket) -> None:
        """Serve until told to stop; requests that run then have `limits.stop_s` to end. The engine stays open."""
        try:
            self.run(sockets=[bound])
        finally:
            self.app.queue.close()
            bound.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._announce is not None:  # it listens now
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.queue.stopping = True
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was heeded is not raised again: its end is this server's, and the engine's to come."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
