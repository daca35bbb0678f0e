"""HTTP/1.1 as uvicorn speaks it, with a limit on how long a request's head may take and on how many connect at once."""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from labkit.serve.errors import INVALID, SERVER, ApiError
from labkit.serve.limits import Limits


def protocol_for(limits: Limits) -> type[H11Protocol]:
    """The protocol class of a server with these limits."""

    class GuardedProtocol(H11Protocol):
        """One connection. The app finds `abort` in its state: to end the connection without waiting for the client."""

        _head: asyncio.TimerHandle | None = None
        _last: asyncio.TimerHandle | None = None  # when a connection that is closing is closed whatever is still unsent

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state = {**self.app_state, "abort": transport.abort}
            if len(self.connections) > limits.connections:
                self._end(ApiError(503, f"All {limits.connections} connections are in use.", type=SERVER))
            else:
                self._head = self.loop.call_later(limits.head_s, self._late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            behind = (
                self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete
            )  # answered before it was whole
            if self.conn.their_state is not h11.IDLE and not behind:
                self._unset_head()
            elif self._head is None:  # the head of a request has begun, or the rest of one comes in to be dropped
                self._head = self.loop.call_later(limits.head_s, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unset_head()
            if self._last is not None:
                self._last.cancel()
                self._last = None
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing() and self._last is None:
                self._last = self.loop.call_later(limits.send_s, self.transport.abort)

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                super().timeout_keep_alive_handler()

        def send_400_response(self, msg: str) -> None:
            self._end(ApiError(400, msg, type=INVALID))

        def _unset_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _late(self) -> None:
            """The head did not come in time: a client that dribbles, or one that only connected."""
            self._head = None
            if self.transport.is_closing():
                return
            if self.cycle is not None and not self.conn.trailing_data[0]:
                self.transport.close()  # nothing was asked for since the last answer
            else:
                self._end(ApiError(408, f"No request came within {limits.head_s:g} s.", code="timeout"))

        def _end(self, error: ApiError) -> None:
            """Say so and hang up, without the app."""
            body = json.dumps(error.body).encode()
            head = (
                f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()
            self._last = self.loop.call_later(limits.send_s, self.transport.abort)

    return GuardedProtocol
