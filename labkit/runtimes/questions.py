"""Small questions asked of a server beside its streams: one whole answer, within a time and a size, or one clear error."""

import json
from collections.abc import Mapping
from typing import Any

from labkit.errors import RunError
from labkit.runtimes.address import Address
from labkit.runtimes.client import Limits, Post, exchange
from labkit.runtimes.events import Garbled, response_of
from labkit.runtimes.load import at_once

MOST_BYTES = 16 << 20
WAIT_S = 30.0


def fetch(
    address: Address, path: str, body: Mapping[str, Any] | None = None, *, within_s: float = WAIT_S
) -> tuple[int, bytes]:
    """(status, body) of GET, or of POST with a JSON `body`. RunError when there is no whole answer in time."""
    request = address.head("GET", path, 0) if body is None else address.post(path, body)
    limits = Limits(silence_s=within_s, whole_s=within_s, connect_s=within_s)
    reply = exchange(address, [Post(request, MOST_BYTES)], at_once(1), limits)[0]
    where = f"{address.url}{path}"
    if reply.failed == "refused":
        raise RunError(reply.error)
    if reply.failed not in (None, "closed", "asleep"):  # an answer is as good after a sleep
        raise RunError(f"{where}: {reply.error}")
    try:
        response = response_of(reply)
    except Garbled as error:
        raise RunError(f"{where}: {address.told(str(error))}") from None
    if response is None or response.whole is False:
        raise RunError(f"{where}: {reply.error or 'the connection was closed without a whole answer'}")
    return response.status, response.content


def fetch_json(address: Address, path: str, body: Mapping[str, Any] | None = None, *, within_s: float = WAIT_S) -> Any:
    """The JSON of the answer; None where the server has none to give (a status other than 200, or no JSON)."""
    status, content = fetch(address, path, body, within_s=within_s)
    if status != 200:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
