"""Places for completions, as many as the engine's slots and a bounded number behind them, and the calls that hold them."""

import asyncio
import contextlib
import math
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from labkit.engine.engine import Engine
from labkit.engine.request import Completion, Token
from labkit.serve.counters import Counters
from labkit.serve.errors import BUSY, SERVER, ApiError
from labkit.serve.prepare import Ask

RETRY_MOST_S = 60


class Call:
    """One completion under way. The engine's thread fills `inbox`; the loop reads it when `changed` is set.

    Its place is given back when the engine has let go of it, whoever asked for that.
    """

    def __init__(self, ask: Ask, changed: asyncio.Event, queue: "Queue", *, streaming: bool) -> None:
        self.ask, self.changed, self.queue = ask, changed, queue
        self.inbox: deque[Token] = deque()
        self.ended = False  # as the loop knows it
        self._over = False  # as the engine's thread has said
        self.request = queue.engine.submit(
            ask.ids, self._deliver, streaming=streaming, max_tokens=ask.max_tokens, sampling=ask.sampling, stop=ask.stop,
            stop_ids=ask.stop_ids, ignore_eos=ask.ignore_eos, logprobs=ask.logprobs or 0,
        )  # fmt: skip

    def _deliver(self, token: Token | None) -> None:
        """On the engine's thread."""
        if token is None:
            self._over = True
        else:
            self.inbox.append(token)
        self.queue.wake(self)

    def arrived(self) -> None:
        """On the loop, after something was delivered."""
        if self._over and not self.ended:
            self.ended = True
            self.queue.left(self)
        self.changed.set()

    @property
    def completion(self) -> Completion:
        """The whole, once it ended. ApiError when the engine failed or was told to stop."""
        if self.request.error is not None:
            raise self.request.error
        done = self.request.completion
        if done is None or done.finish == "cancelled":
            raise ApiError(503, "The server is stopping; the completion was cut short.", type=SERVER)
        return done

    def cancel(self) -> None:
        """Let go of the slot, or of the place in the line; harmless once it ended."""
        self.request.cancelled = True


class Queue:
    """The engine as the loop sees it: `capacity` completions at once, of which `engine.slots` decode."""

    def __init__(self, engine: Engine, waiting: int, counters: Counters) -> None:
        self.engine, self.capacity, self.counters = engine, engine.slots + waiting, counters
        self.taken = 0
        self.stopping = False
        self.beside = ThreadPoolExecutor(2, thread_name_prefix="labkit-prepare")  # tokenizer and chat template
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[Call] = deque()
        self._told = False
        self._left_s: float | None = None
        self._interval_s = 1.0  # between two places becoming free, as of late

    def take(self, count: int) -> None:
        """Take `count` places or raise ApiError: 429 with Retry-After when they are not free, 503 when stopping."""
        if self.stopping:
            raise ApiError(503, "The server is stopping.", type=SERVER, headers={"Retry-After": "5"})
        if count > self.capacity:
            raise ApiError(
                400,
                f"The request asks for {count} completions; this server takes at most {self.capacity} at once.",
                param="n",
            )
        if self.taken + count > self.capacity:
            wait = self.retry_after(count)
            raise ApiError(
                429,
                f"{min(self.taken, self.engine.slots)} completions run and {max(0, self.taken - self.engine.slots)} wait, "
                f"and this server takes {self.capacity} in all: try again in {wait} s.",
                type=BUSY,
                code="rate_limit_exceeded",
                headers={"Retry-After": str(wait)},
            )
        self.taken += count

    def retry_after(self, count: int) -> int:
        """Whole seconds until `count` places are free, going by how fast they became so lately."""
        return max(1, min(RETRY_MOST_S, math.ceil(self._interval_s * count)))

    def give_back(self, count: int) -> None:
        """Give back places taken for completions that were never submitted."""
        self.taken -= count

    def submit(self, asks: list[Ask], *, streaming: bool) -> list[Call]:
        """Hand completions to the engine; their places were taken. LabError when the engine takes no more."""
        self._loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        calls: list[Call] = []
        try:
            for ask in asks:
                calls.append(Call(ask, changed, self, streaming=streaming))  # noqa: PERF401 - those made are let go of
        except BaseException:
            self.give_back(len(asks) - len(calls))
            for call in calls:
                call.cancel()
            raise
        return calls

    def wake(self, call: Call) -> None:
        """On the engine's thread: have the loop look at `call`. One wake-up serves all that comes before it is heard."""
        self._arrived.append(call)
        if not self._told:
            self._told = True
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._told = False
        while self._arrived:
            self._arrived.popleft().arrived()

    def left(self, call: Call) -> None:
        """A call ended: its place is free, and what it did is counted."""
        self.taken -= 1
        now = time.monotonic()
        if self._left_s is not None:
            self._interval_s = 0.9 * self._interval_s + 0.1 * min(now - self._left_s, RETRY_MOST_S)
        self._left_s = now
        self.counters.ended(call.request)
        self.counters.fold(self.engine)

    def close(self) -> None:
        """Take nothing more."""
        self.stopping = True
        self.beside.shutdown(wait=False, cancel_futures=True)
