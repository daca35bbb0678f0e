"""labkit's own engine as a runtime: in this process, asked without any transport, its tokens timed as they are made."""

import contextlib
import queue
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from labkit import __version__
from labkit.engine.engine import CANCEL_S, Engine
from labkit.engine.request import Completion, Request, Token
from labkit.engine.sampling import Sampling
from labkit.errors import LabError, ParameterError
from labkit.models.model import Model
from labkit.runtimes.load import Load
from labkit.runtimes.registry import Wanted, opener, unless
from labkit.runtimes.runtime import Abilities, Answer, Ask, Progress, Runtime, check_asks, no_progress
from labkit.runtimes.settings import settings_of
from labkit.vulkan.device import list_devices, select

NAME = "labkit"


class LabkitEngine(Runtime):
    """An `Engine` of this process. Requests stream, as they do over HTTP, so a submit holds one step: each token is there
    when its time says so.

    `own`: what `close` closes beside nothing else, the engine and what it was opened for; an engine that somebody else
    opened stays open. ParameterError, before anything is sent, for a request that does not fit the context."""

    name = NAME

    def __init__(self, engine: Engine, *, label: str = NAME, own: Sequence[Any] = ()) -> None:
        if not isinstance(engine.model, Model):
            raise ParameterError(f"{engine.model.name} is a shape without a tokenizer's texts; ask a model's file")
        self.engine, self.label, self.model = engine, label, engine.model.name
        self._own = tuple(own)
        self._first_step = len(engine.steps)
        self._sums = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
        self.can = Abilities(
            token_prompts=True, fixed_length=True, token_count=True, cached_tokens=True, tokenizer=True, counters=True
        )

    def describe(self) -> dict[str, Any]:
        """See `Runtime`."""
        return {"kind": NAME, "label": self.label, "version": __version__, "device": self.engine.device.name} | {
            "settings": self.settings()
        }

    def settings(self) -> dict[str, Any]:
        """See `Runtime`."""
        return settings_of(self.engine)

    def tokenize(self, text: str) -> list[int]:
        """See `Runtime`."""
        return list(self.engine.tokenizer.encode(text, special=True, bos=False))

    def detokenize(self, ids: Sequence[int]) -> str:
        """See `Runtime`."""
        text: str = self.engine.tokenizer.decode(list(ids))
        return text

    def counters(self) -> dict[str, float]:
        """Sums over what this runtime was asked, and the engine's steps since it became one; nothing of a prompt comes
        from a cache."""
        steps = sum(record.steps for record in self.engine.steps[self._first_step :])
        return {**{name: float(value) for name, value in self._sums.items()}, "steps": float(steps)}

    @property
    def origin(self) -> dict[str, int]:
        """The device, upload of the weights and engine of this process."""
        return self.engine.origin

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`. A device that is lost fails the requests that are open and those still to be sent."""
        check_asks(asks, self.can, self.label)
        prompts = [self._prompt(ask) for ask in asks]
        samplings = [Sampling(temperature=ask.temperature, seed=ask.seed) for ask in asks]
        dues = list(load.moments(len(asks)))
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        sent: dict[int, Request | Answer] = {}  # what is open; an answer where the engine took the request no more
        answers: dict[int, Answer] = {}
        began, following = time.perf_counter(), 0
        try:
            while len(answers) < len(asks):
                wait_s = None  # until a request ends
                if following < len(asks) and not (load.closed and len(sent) >= load.streams):
                    wait_s = began + dues[following] - time.perf_counter()
                    if wait_s <= 0:
                        sent[following] = self._send(
                            asks[following], prompts[following], samplings[following], following, ended
                        )
                        following += 1
                        continue
                with contextlib.suppress(queue.Empty):
                    number = ended.get(timeout=wait_s)
                    due_s = None if load.closed else began + dues[number]
                    answers[number] = replace(self._answer(asks[number], sent.pop(number)), due_s=due_s)
                    progress(len(answers), len(asks))
        except BaseException:
            cancel(each for each in sent.values() if isinstance(each, Request))
            raise
        return [answers[number] for number in range(len(asks))]

    def _prompt(self, ask: Ask) -> list[int]:
        """Token ids of a request's prompt. ParameterError where they, or what is to come behind them, do not fit."""
        engine, prompt = self.engine, ask.prompt
        if ask.chat:
            assert isinstance(engine.model, Model)
            prompt = engine.model.chat([{"role": "user", "content": prompt}])
        ids = engine.encode(prompt)
        behind = ask.tokens - 1 if ask.fixed else 0  # the last token takes no position
        if len(ids) > min(engine.context - behind, engine.context - 1):
            wanted = f" and {ask.tokens} are to follow" if ask.fixed else ""
            raise ParameterError(
                f"the prompt has {len(ids)} tokens{wanted}; a slot of {self.label} holds {engine.context} positions: "
                f"shorten it, or give a larger context"
            )
        return ids

    def _send(
        self, ask: Ask, ids: list[int], sampling: Sampling, number: int, ended: "queue.SimpleQueue[int]"
    ) -> Request | Answer:
        def deliver(token: Token | None) -> None:
            if token is None:
                ended.put(number)

        options: dict[str, Any] = {"max_tokens": ask.tokens, "sampling": sampling, "ignore_eos": ask.fixed}
        moment = time.perf_counter()
        try:
            return self.engine.submit(ids, deliver, streaming=True, **options)
        except LabError as error:
            ended.put(number)
            return Answer(ask, moment, end_s=moment, failed="engine", error=one_line(error))

    def _answer(self, ask: Ask, sent: Request | Answer) -> Answer:
        if isinstance(sent, Answer):
            return sent
        done = sent.completion
        if sent.error is not None or done is None:
            return Answer(
                ask, sent.submit_s, times=tuple(sent.times), end_s=time.perf_counter(), failed="engine",
                error=one_line(sent.error), token_ids=tuple(sent.token_ids), prompt_tokens=len(sent.prompt_ids),
            )  # fmt: skip
        self._count(done)
        failed: dict[str, Any] = {}
        if done.finish == "cancelled":
            failed = {"failed": "cancelled", "error": "the request was cancelled before its end"}
        return Answer(
            ask, done.submit_s, times=done.token_times_s, end_s=done.last_token_s, text=done.text,
            token_ids=done.token_ids, prompt_tokens=len(done.prompt_ids), completion_tokens=len(done.token_ids),
            cached_tokens=0, finish="length" if done.finish == "context" else done.finish, **failed,
        )  # fmt: skip

    def _count(self, done: Completion) -> None:
        self._sums["requests"] += 1
        self._sums["prompt_tokens"] += len(done.prompt_ids) if done.token_ids else 0
        self._sums["completion_tokens"] += len(done.token_ids)

    def close(self) -> None:
        """See `Runtime`."""
        for each in self._own:
            each.close()


def cancel(requests: Iterable[Request]) -> None:
    """Let go of the slots that requests hold, and wait until they are free."""
    requests = list(requests)
    for request in requests:
        request.cancelled = True
    end = time.monotonic() + CANCEL_S
    for request in requests:
        request.done.wait(max(0.0, end - time.monotonic()))


def one_line(error: BaseException | None) -> str:
    """The first line of what an error says."""
    return (str(error or "").strip().splitlines() or ["the engine gave nothing"])[0]


def missing(argument: str = "") -> str | None:
    """Why labkit's engine cannot run here."""
    return unless(lambda: select(list_devices(), None))


@opener(NAME, missing=missing)
def open_labkit(wanted: Wanted) -> Runtime:
    """labkit's own engine, in this process."""
    wanted.refuse_draft()
    wanted.refuse_argument()
    options: dict[str, Any] = wanted.options(["arithmetic"])
    model = Model(wanted.model)
    try:
        engine = Engine(
            model, wanted.device, slots=wanted.slots, context=wanted.context, ub=wanted.ub, kv=wanted.kv, **options
        )
    except BaseException:
        model.close()
        raise
    return LabkitEngine(engine, label=wanted.label or NAME, own=(engine, model))
