"""Stands before every path: whom the server answers, errors in one shape, and no client that takes its answer too slowly."""

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labkit.serve.counters import Counters
from labkit.serve.errors import SERVER, ApiError
from labkit.serve.limits import Limits

log = logging.getLogger("labkit.serve")


class Gate:
    """Wraps an application. `key`: what a client must show, as `Authorization: Bearer KEY`, on all paths but `open`.

    Without a key the server is for this machine alone, and answers only to its names: a web page elsewhere that points a
    name of its own at 127.0.0.1 gets 403.
    """

    def __init__(
        self, app: ASGIApp, *, key: str | None, paths: Collection[str], open: Collection[str], counters: Counters, limits: Limits
    ) -> None:  # fmt: skip
        self.app, self.counters, self.limits = app, counters, limits
        self._key = None if key is None else key.encode()
        self._paths, self._open = frozenset(paths), frozenset(open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        begun = ended = False

        async def watched(message: Message) -> None:
            nonlocal begun, ended
            if message["type"] == "http.response.start":
                begun = True
                self.counters.answers[path, message["status"]] += 1
            else:
                ended = not message.get("more_body", False)
            try:
                async with asyncio.timeout(self.limits.send_s):
                    await send(message)
            except TimeoutError:
                scope["state"]["abort"]()
                raise ConnectionAbortedError("the client does not take its answer") from None

        try:
            self._admit(scope)
            await self.app(scope, receive, watched)
        except ApiError as error:
            if not begun:
                await error.response(scope, receive, watched)
        except ConnectionAbortedError:
            self.counters.hangups += 1
        except Exception:
            log.exception("an answer failed")
            if not begun:
                broken = ApiError(500, "The server had an error; its log says which.", type=SERVER)
                await broken.response(scope, receive, watched)
            elif not ended:
                scope["state"]["abort"]()

    def _admit(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._key is None:
            if not _is_here(headers.get(b"host", b"")):
                raise ApiError(403, "This server answers on this machine alone: ask for 127.0.0.1 or localhost.")
            return
        if scope["path"] in self._open:
            return
        scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(shown.strip(), self._key) or scheme.lower() != b"bearer":
            said = (
                "Incorrect API key provided." if shown else "You didn't provide an API key: send Authorization: Bearer."
            )
            raise ApiError(401, said, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _is_here(host: bytes) -> bool:
    """Whether a Host header names this machine itself."""
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
