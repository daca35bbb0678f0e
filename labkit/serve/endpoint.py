"""One endpoint that generates: reads the body, takes a place, asks the engine, answers, and lets go when the client leaves."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from labkit.errors import LabError
from labkit.serve.answers import Answer, Usage
from labkit.serve.errors import ApiError, of_lab_error, of_validation
from labkit.serve.limits import Limits
from labkit.serve.prepare import Preparation, choices
from labkit.serve.queue import Call, Queue
from labkit.serve.requests import Body
from labkit.serve.streaming import HEADERS, events
from labkit.serve.transcript import entries_of


class Endpoint:
    """An ASGI application for one path. `kind`: the body it takes; `answer`: makes the answer it gives."""

    def __init__(
        self, kind: type[Body], answer: Callable[[], Answer], queue: Queue, preparation: Preparation, limits: Limits,
        hidden: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.kind, self.answer, self.queue, self.preparation = kind, answer, queue, preparation
        self.limits, self.hidden = limits, hidden

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._read(await read_body(scope, receive, self.limits))
        work = asyncio.create_task(self._work(body, scope, send))
        watch = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.queue.counters.hangups += 1
                return
            work.result()
        except LabError as error:
            raise of_lab_error(error, self.hidden) from None
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    def _read(self, raw: bytes) -> Body:
        try:
            body = self.kind.model_validate_json(raw)
        except ValidationError as error:
            raise of_validation(error) from None
        name = self.queue.engine.model.name
        if body.model != name:
            raise ApiError(
                404,
                f"The model '{body.model[:80]}' does not exist; this server has '{name}'.",
                param="model",
                code="model_not_found",
            )
        return body

    async def _work(self, body: Body, scope: Scope, send: Send) -> None:
        calls = await self._submit(body)
        try:
            if body.stream:
                await self._stream(body, calls, send)
            else:
                await self._whole(body, calls, scope, send)
        finally:
            for call in calls:
                call.cancel()

    async def _submit(self, body: Body) -> list[Call]:
        """The calls of all choices, in their places."""
        count = choices(body)
        self.queue.take(count)
        try:
            loop = asyncio.get_running_loop()
            asks = await loop.run_in_executor(self.queue.beside, self.preparation.asks, body)
        except BaseException:
            self.queue.give_back(count)
            raise
        return self.queue.submit(asks, streaming=bool(body.stream))

    async def _whole(self, body: Body, calls: list[Call], scope: Scope, send: Send) -> None:
        changed = calls[0].changed
        while not all(call.ended for call in calls):
            changed.clear()
            await changed.wait()
        done = [call.completion for call in calls]
        answer = self.answer()
        wanted = body.top is not None
        made = [
            answer.choice(i, each, entries_of(answer.tokenizer, each) if wanted else None)
            for i, each in enumerate(done)
        ]
        prompts = sum(len(each.prompt_ids) for each in done[:: body.n or 1])
        usage = Usage(prompts, sum(len(each.token_ids) for each in done))
        await JSONResponse(answer.complete(made, usage))(scope, _nothing, send)

    async def _stream(self, body: Body, calls: list[Call], send: Send) -> None:
        begun = False
        async with contextlib.aclosing(events(calls, self.answer(), body)) as pieces:
            async for piece in pieces:
                if not begun:
                    begun = True
                    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _nothing() -> Message:
    raise AssertionError("an answer does not read")


async def gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body. ApiError: 415 when it is not JSON, 413 beyond the limit, 408 when it takes too long.

    What is still to come behind an early answer the connection reads and drops.
    """
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":  # a web page elsewhere cannot send this one without asking first
        raise ApiError(415, f"The Content-Type is {kind.decode('latin-1')[:80]!r}: send application/json.")
    told = headers.get(b"content-length", b"")
    if told.isdigit() and (len(told) > 18 or int(told) > limits.body_bytes):
        raise _too_large(limits, told.decode()[:18])
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "The client left while it sent the body.")
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise _too_large(limits, f"{len(body)} or more")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        said = f"The body did not come within {limits.body_s:g} s."
        raise ApiError(408, said, code="timeout", headers={"Connection": "close"}) from None


def _too_large(limits: Limits, size: str) -> ApiError:
    said = f"The body has {size} bytes; this server takes at most {limits.body_bytes}."
    return ApiError(413, said, code="request_too_large")
