"""`Engine`: a model on a device, with slots that decode together; requests join and leave while others run."""

import atexit
import itertools
import operator
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.engine import weights as resident
from labkit.engine.cache import plan_memory, token_bytes
from labkit.engine.executor import RING, Executor, micro_batch, padded, working_bytes
from labkit.engine.request import Completion, Generation, Request, Stream, Token
from labkit.engine.sampling import Sampling
from labkit.engine.scheduler import Scheduler, Slot, Step
from labkit.errors import DeviceError, EngineError, LabError, ParameterError
from labkit.models.model import Model
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.vulkan.device import Device
from labkit.vulkan.profile import Profile

SUBMIT_TARGET_S = 0.3  # several steps share a submit only while it stays below this: a desktop shares the card
CANCEL_S = 10.0  # how long an interrupted call waits for its requests to leave their slots
NOT_A_TOKEN = 0xFFFFFFFF  # what the sampler reports for logits that are not numbers
MAX_SLOTS, MAX_CONTEXT, MAX_TOP = 256, 1 << 20, 64
PROMPT_TYPES = "text or a list of token ids"

_devices: dict[Any, Device] = {}
_devices_lock = threading.Lock()
_numbers = itertools.count(1)  # of the engines of this process


def default_device(selector: int | str | None = None) -> Device:
    """The process's shared device for `selector`, opened on first use, so that engines can share weights."""
    if selector is not None and not isinstance(selector, int | str):
        raise ParameterError(f"device={selector!r} is not a Device, an index, a part of a name, cpu or gpu")
    with _devices_lock:
        device = _devices.get(selector)
        if device is None or device.closed:
            device = _devices[selector] = Device(selector)
        return device


@dataclass(frozen=True)
class StepRecord:
    """One submit: when it ran, its steps and rows, GPU seconds of a step (read a few times a second), host CPU seconds."""

    start_s: float
    end_s: float
    steps: int
    rows: int
    decoding: int
    decode_only: bool
    gpu_s: float
    host_s: float
    dispatches: int


@dataclass(frozen=True)
class _Batch:
    """A step with the slots its tokens go to and what their requests ask of the program."""

    step: Step
    slots: list[Slot]
    top: int
    plain: bool
    streaming: bool

    def later(self, steps: int) -> "_Batch":
        return _Batch(self.step.later(steps), self.slots, self.top, self.plain, self.streaming)


class Engine:
    """A model ready to generate on a Vulkan device.

    `model`: a `Model`, a catalogue name or a path (or a `ShapeModel`, for speed only).
    `device`: a `Device`, or a selector for the shared one.
    `slots`: streams that decode together (1 to 256). `context`: positions a slot holds. `kv`: "f16" or "f32" cache.
    `arithmetic`: "exact" (float32 activations, the same order of sums at every width: ids equal those of the solo run)
    or "fast" (the fastest cut for each width; bitwise repeatable at one width).
    `ub`: the micro-batch, rows of prompts read in one step, a power of two from 16 to 4096; by default 2048 on a GPU with
    cooperative matrices and memory to spare, 512 on other GPUs, 32 on a CPU driver. `engine.ub` is what it came to.
    Raises ParameterError, ModelError, DeviceError or OutOfDeviceMemory, in one line, before anything is left allocated.
    """

    def __init__(
        self,
        model: AnyModel | str,
        device: Device | int | str | None = None,
        *,
        slots: int = 32,
        context: int = 1024,
        kv: str = "f16",
        arithmetic: str = "fast",
        ub: int | None = None,
        progress: Any = None,
    ) -> None:
        self._closed = False
        _whole("slots", slots, 1, MAX_SLOTS)
        _whole("context", context, 8, MAX_CONTEXT)
        if kv not in ("f16", "f32"):
            raise ParameterError(f"kv={kv!r} is not one of f16, f32")
        if arithmetic not in ("exact", "fast"):
            raise ParameterError(f"arithmetic={arithmetic!r} is not one of exact, fast")
        if not isinstance(model, str | Model | ShapeModel):
            raise ParameterError(f"model={model!r} is not a Model, a catalogue name or a path")
        self.model: AnyModel = Model(model) if isinstance(model, str) else model
        if context > self.model.config.context:
            raise ParameterError(
                f"context={context} is more than the {self.model.config.context} positions {self.model.name} was made for"
            )
        self.device = device if isinstance(device, Device) else default_device(device)
        self.device.alive()
        self.slots, self.context, self.kv, self.arithmetic = slots, context, kv, arithmetic
        self.ub = micro_batch(self.model.config, self.device, slots, context, ub)
        working = working_bytes(self.model.config, self.device, slots, context, self.ub)
        loaded = resident.is_loaded(self.model, self.device)
        plan_memory(self.model, self.device, slots=slots, context=context, kv=kv, working=working, loaded=loaded)
        self.tokenizer = self.model.tokenizer
        self.weights = resident.acquire(self.model, self.device, progress)
        try:
            self.executor = Executor(
                self.model.config, self.weights, self.device, slots=slots, context=context, kv=kv, arithmetic=arithmetic,
                ub=self.ub, stop_ids=sorted(self.tokenizer.eos_ids),
            )  # fmt: skip
        except BaseException:
            resident.release(self.weights)
            raise
        self.number = next(_numbers)
        self.scheduler = Scheduler(slots, context, self.executor.max_rows, self.ub)
        self.steps: list[StepRecord] = []
        self._ended: list[Request] = []  # requests that a submit finished, to be woken once it is on record
        self._batch: _Batch | None = None  # what runs next, when it is known
        self._step_s: dict[int, float] = {}  # seconds a step takes, by padded width
        self._mutex = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._error: BaseException | None = None
        self._finalizer = weakref.finalize(self, _free, self.executor, self.weights)
        self._finalizer.atexit = False  # `_close_all` does it, once the thread has stopped
        _engines.add(self)

    # asking for text

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]] | str,
        *,
        max_tokens: int = 64,
        sampling: Sampling | Sequence[Sampling] | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int = 0,
        **settings: Any,
    ) -> Generation:
        """Complete every prompt (text or token ids), all at once; returns a `Generation` in their order.

        `sampling`, or its fields as keywords (temperature=0.0, top_p=..., seed=...). `logprobs`: how many of the most
        likely tokens to report a step. `stop`: strings that end a completion; they are cut off. `stop_ids`: token ids that do,
        beside the model's own end tokens; theirs stay. `ignore_eos`: go on past the end token.
        Raises ParameterError or EngineError; an interrupt cancels the requests and leaves the engine usable.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        if not isinstance(prompts, Iterable):
            raise ParameterError(f"prompts are a list, each {PROMPT_TYPES}, not {type(prompts).__name__}")
        prompts = list(prompts)
        if not prompts:
            raise ParameterError("no prompts were given")
        each = [sampling] * len(prompts) if not isinstance(sampling, Sequence) else list(sampling)
        if len(each) != len(prompts):
            raise ParameterError(f"{len(each)} samplings for {len(prompts)} prompts: give one, or one a prompt")
        common: dict[str, Any] = {
            "max_tokens": max_tokens,
            "stop": stop,
            "stop_ids": stop_ids,
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
        }
        requests = [
            self._request(prompt, _sampling(one, settings), streaming=False, **common)
            for prompt, one in zip(prompts, each, strict=True)
        ]
        try:
            self._submit(requests)
            for request in requests:
                request.done.wait()
        except LabError:  # none was taken
            raise
        except BaseException:
            for request in requests:
                request.cancelled = True
            end = time.monotonic() + CANCEL_S
            for request in requests:
                request.done.wait(max(0.0, end - time.monotonic()))
            raise
        for request in requests:
            if request.error is not None:
                raise request.error
        return Generation([_completion(request) for request in requests])

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int = 0,
        **settings: Any,
    ) -> Stream:
        """Tokens of one completion as they are made. Leaving the loop early, or `close()`, cancels the request."""
        request = self._request(
            prompt, _sampling(sampling, settings), max_tokens=max_tokens, stop=stop, stop_ids=stop_ids,
            ignore_eos=ignore_eos, logprobs=logprobs, streaming=True,
        )  # fmt: skip
        self._submit([request])
        return Stream(request)

    def submit(
        self,
        prompt: str | Sequence[int],
        deliver: Callable[[Token | None], None],
        *,
        streaming: bool,
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int = 0,
    ) -> Request:
        """Ask for one completion and do not wait: for servers, which have a loop of their own.

        `deliver` is called on the engine's thread, must return at once and must not raise: with each token as it is made
        when `streaming`, and with None at the end, when `completion` or `error` of the request is set. Setting its
        `cancelled` frees the slot a step later, or takes it out of the waiting line.
        """
        request = self._request(
            prompt, _sampling(sampling, {}), max_tokens=max_tokens, stop=stop, stop_ids=stop_ids, ignore_eos=ignore_eos,
            logprobs=logprobs, streaming=streaming, deliver=deliver,
        )  # fmt: skip
        self._submit([request])
        return request

    def chat(self, messages: Sequence[Mapping[str, Any]] | str, **options: Any) -> Completion:
        """One completion of a conversation ([{"role": "user", "content": ...}], or one user text) by the model's template."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        completion: Completion = self.generate([self.model.chat(messages)], **options)[0]
        return completion

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt; special tokens in text are parsed. Raises ParameterError when it is empty or off."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, special=True, bos=self.tokenizer.add_bos)
        elif isinstance(prompt, bytes) or (isinstance(prompt, Sequence) and any(isinstance(i, bool) for i in prompt)):
            raise ParameterError(f"a prompt is {PROMPT_TYPES}, not {prompt!r:.40}")
        else:
            try:
                ids = [operator.index(i) for i in prompt]
            except (TypeError, ValueError):
                raise ParameterError(f"a prompt is {PROMPT_TYPES}, not {type(prompt).__name__}") from None
        if not ids:
            raise ParameterError("the prompt is empty: give at least one token of text")
        wrong = next((i for i in ids if not 0 <= i < self.model.config.vocab), None)
        if wrong is not None:
            raise ParameterError(f"token id {wrong} is outside the vocabulary of {self.model.config.vocab}")
        return ids

    def _request(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        stop: Sequence[str],
        stop_ids: Sequence[int],
        ignore_eos: bool,
        logprobs: int,
        streaming: bool,
        deliver: Callable[[Token | None], None] | None = None,
    ) -> Request:
        _whole("max_tokens", max_tokens, 1, 1 << 30)
        _whole("logprobs", logprobs, 0, MAX_TOP)
        if stop is not None and not isinstance(stop, str | Sequence):
            raise ParameterError(f"stop={stop!r}: stop strings are a text or a list of texts")
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        if any(not isinstance(s, str) or not s for s in stops):
            raise ParameterError(f"stop={stop!r}: stop strings are non-empty texts")
        for token in stop_ids:
            _whole("a stop id", token, 0, self.model.config.vocab - 1)
        ids = self.encode(prompt)
        if len(ids) > self.context - 1:
            longest = self.model.config.context
            longer = f" or open the engine with context={min(len(ids) + max_tokens, longest)}"
            raise ParameterError(
                f"the prompt has {len(ids)} tokens; a context of {self.context} takes at most {self.context - 1}: "
                f"shorten it{longer if len(ids) < longest else ''}"
            )
        sampling.check_vocabulary(self.model.config.vocab)
        request = Request(
            ids, sampling.seeded(), max_tokens=max_tokens, stop=stops, stop_ids=frozenset(stop_ids), ignore_eos=ignore_eos,
            top=logprobs, streaming=streaming, deliver=deliver, submit_s=time.perf_counter(),
        )  # fmt: skip
        request.detokeniser = self.tokenizer.stream()
        return request

    def _submit(self, requests: list[Request]) -> None:
        with self._mutex:
            self.alive()
            self.scheduler.waiting.extend(requests)
            if self._thread is None:
                self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._mutex), daemon=True)
                self._thread.name = "labkit-engine"
                self._thread.start()
            self._mutex.notify_all()

    def alive(self) -> None:
        """Raise EngineError or DeviceError, in one line, when the engine takes no more requests."""
        if self._error is not None:
            raise EngineError(f"the engine stopped after an error: {self._error}")
        if self._closed:
            raise EngineError("the engine is closed; open a new one")
        self.device.alive()

    # the engine thread

    def _turn(self) -> bool:
        """One round of the engine thread: drop, admit, run, hand out. False when there is nothing to do."""
        began = time.thread_time()
        with self._mutex:
            for slot in list(self.scheduler.busy):
                if slot.request is not None and slot.request.cancelled:
                    self._finish(slot, "cancelled")
            for request in [r for r in self.scheduler.waiting if r.cancelled]:
                self.scheduler.waiting.remove(request)
                request.finish("cancelled")
                self._ended.append(request)
            filled = self.scheduler.admit()
        self._wake()
        for slot in filled:
            assert slot.request is not None
            slot.request.start_s = time.perf_counter()
            self.executor.open_slot(slot.index, slot.request.sampling, slot.request.ignore_eos)
            self._batch = None
        if self._batch is None:
            self._batch = self._plan()
        if self._batch is None:
            return False
        self._run(self._batch, began)
        return True

    def _plan(self) -> "_Batch | None":
        """The next step and what its requests ask of the program; None when nothing waits."""
        deepest = max((len(slot.ids) for slot in self.scheduler.busy), default=0)
        step = self.scheduler.plan(self.executor.row_limit(deepest))
        if step is None:
            return None
        requests = [slot.request for slot in self.scheduler.busy if slot.request is not None]
        top = max(request.top for request in requests)
        return _Batch(
            step,
            [self.scheduler.slots[int(step.rows[i, 1])] for i in step.wanted],
            top=MAX_TOP if top > 8 else 8 if top else 0,
            plain=all(request.sampling.plain for request in requests),
            streaming=any(request.streaming for request in requests),
        )

    def _steps_for(self, batch: "_Batch", width: int) -> int:
        """How many steps to put in one submit: one when a request waits or streams, more when none does."""
        if not batch.step.decode_only or self.scheduler.waiting or batch.streaming:
            return 1
        left = min(self.scheduler.remaining(slot) for slot in batch.slots)  # a submit ends with the first stream to end
        seconds = self._step_s.get(width)
        fits = 1 if seconds is None else max(1, int(SUBMIT_TARGET_S / max(seconds, 1e-6)))
        return max(1, min(RING, left, fits))

    def _run(self, batch: "_Batch", began: float) -> None:
        executor, step = self.executor, batch.step
        width = padded(len(step.rows))
        times = self._steps_for(batch, width)
        program = executor.prepare(step, top=batch.top, plain=batch.plain, steps=times)
        started = time.perf_counter()
        outputs = executor.run(program, step, times)
        ended = time.perf_counter()
        if step.decode_only:
            each = (ended - started) / times
            known = self._step_s.get(width)
            self._step_s[width] = each if known is None else 0.7 * known + 0.3 * each
            self._batch = batch.later(times)  # kept unless a request ends below
        else:
            self._batch = None
            slots, last = np.unique(step.rows[::-1, 1], return_index=True)
            for slot, position in zip(slots.tolist(), step.rows[::-1][last, 2].tolist(), strict=True):
                self.scheduler.slots[slot].computed = position + 1
        try:
            for number, output in enumerate(outputs):
                now = ended if times == 1 else started + (ended - started) * (number + 1) / times
                self._hand_out(batch, output, now)
            if len(self.steps) < 1_000_000:
                self.steps.append(
                    StepRecord(
                        started, ended, times, len(step.rows), len(step.wanted), step.decode_only,
                        executor.gpu_seconds(program, ended), time.thread_time() - began, program.dispatches,
                    )
                )  # fmt: skip
        finally:  # a caller whose request ended finds its last step in `steps`
            self._wake()

    def _hand_out(self, batch: "_Batch", output: Any, now: float) -> None:
        """Give each wanted row its token. Slots whose request ended earlier in the same submit are skipped."""
        tokens, logprobs, top_ids, top_logprobs = output
        ends, decoding, context = self.tokenizer.eos_ids, batch.step.decode_only, self.context
        for i, slot in enumerate(batch.slots):
            request = slot.request
            if request is None:
                continue
            token = tokens[i]
            if token == NOT_A_TOKEN:
                error = EngineError(f"the model's logits are not numbers at position {len(slot.ids) - 1}")
                self._release(slot)
                request.fail(error)
                continue
            ids, made = slot.ids, request.token_ids
            if decoding:
                slot.computed = len(ids)
            ids.append(token)
            made.append(token)
            request.logprobs.append(logprobs[i])
            request.times.append(now)
            if request.watched:  # else its text is put together once, at the end
                top: tuple[tuple[int, float], ...] = ()
                if request.top:
                    top = tuple(zip(top_ids[i][: request.top], top_logprobs[i][: request.top], strict=True))
                if request.watch(token, logprobs[i], top, now):
                    self._finish(slot, "stop", stopped=True)
                    continue
            if (token in ends and not request.ignore_eos) or token in request.stop_ids:
                self._finish(slot, "stop")
            elif len(made) >= request.max_tokens:
                self._finish(slot, "length")
            elif len(ids) > context:
                self._finish(slot, "context")

    def _finish(self, slot: Slot, reason: str, *, stopped: bool = False) -> None:
        request = slot.request
        self._release(slot)
        if request is not None:
            request.finish(reason, stopped=stopped)
            self._ended.append(request)

    def _wake(self) -> None:
        """Give what ended to those who wait for it."""
        ended, self._ended = self._ended, []
        for request in ended:
            request.wake()

    def _release(self, slot: Slot) -> None:
        self._batch = None
        self.executor.rows_changed()
        self.scheduler.free(slot)

    def _fail_all(self, error: BaseException) -> None:
        """An error in the engine thread: every request gets it, and the engine takes no more."""
        told = (
            error if isinstance(error, LabError) else EngineError(f"the engine failed: {type(error).__name__}: {error}")
        )
        with self._mutex:  # so that no request slips in behind
            self._error = error
            for slot in list(self.scheduler.busy):
                if slot.request:
                    slot.request.fail(told)
                self.scheduler.free(slot)
            while self.scheduler.waiting:
                self.scheduler.waiting.popleft().fail(told)

    # what it is

    @property
    def origin(self) -> dict[str, int]:
        """Which device, upload of the weights and engine of this process it is: its start, for `run.measure(start=...)`."""
        return {**self.device.origin, "weights": self.weights.number, "engine": self.number}

    @property
    def closed(self) -> bool:
        """True after `close()`."""
        return self._closed

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held on the device, by purpose."""
        return {"weights": self.weights.nbytes, **self.executor.memory}

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes one position of one stream takes in the cache, all layers."""
        return token_bytes(self.model.config, self.kv)

    def micro_batches(self, prompt_tokens: int) -> int:
        """Steps in which a prompt of `prompt_tokens`, alone, is read. Two `ub` that give one number of steps, one, are the
        same program: there the knob is inactive. Raises ParameterError for fewer tokens than one."""
        _whole("prompt_tokens", prompt_tokens, 1, 1 << 30)
        return -(-prompt_tokens // min(self.ub, self.executor.max_rows))

    def dispatches(self, width: int) -> int:
        """Dispatches of one decode step at `width` streams."""
        return len(self.executor.decode_program(width).dispatches)

    def profile(self, width: int, depth: int, repeats: int = 5) -> Profile:
        """(dispatch, GPU seconds) of a greedy decode step of `width` streams at `depth` positions, each dispatch behind a
        barrier and the least of `repeats`: for shares of a step's time. Empty where the device has no timestamps. Raises
        ParameterError for what the engine does not hold, EngineError while requests run."""
        _whole("width", width, 1, self.slots)
        _whole("depth", depth, 1, self.context)
        _whole("repeats", repeats, 1, 100)
        with self._mutex:
            self.alive()
            if self.scheduler.busy or self.scheduler.waiting:
                raise EngineError("a step is profiled between requests: wait for those that run, or cancel them")
            if not self.device.info.timestamp_bits:
                return Profile(self.device)
            return self.executor.profile(width, depth, repeats)

    def fingerprints(self, widths: Sequence[int]) -> dict[str, str]:
        """Fingerprints of the decode programs at these widths, for the run record."""
        return {f"decode {w}": self.executor.decode_program(w).fingerprint for w in widths}

    def close(self) -> None:
        """Cancel what runs, stop the thread, free all device memory (weights when no other engine uses them)."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._stopping = True
            for slot in self.scheduler.busy:
                if slot.request:
                    slot.request.cancelled = True
            for request in self.scheduler.waiting:
                request.cancelled = True
            self._mutex.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._finalizer()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.scheduler.busy)} of {self.slots} slots busy"
        return (
            f"<Engine {self.model.name} on {self.device.name}: context {self.context}, kv {self.kv}, "
            f"{self.arithmetic}, {state}>"
        )

    def _repr_html_(self) -> str:
        from labkit.show.engine import engine_html

        return engine_html(self)


def _serve(reference: "weakref.ref[Engine]", mutex: threading.Condition) -> None:
    """The engine thread: runs while there is work, sleeps otherwise, ends when the engine is closed or forgotten."""
    while True:
        engine = reference()
        if engine is None:
            return
        try:
            worked = engine._turn()
        except BaseException as error:
            engine._fail_all(error)
            return
        if worked:
            continue
        with mutex:
            if engine.scheduler.waiting or engine.scheduler.busy:
                continue
            if engine._stopping:
                return
            del engine
            mutex.wait(timeout=1.0)


def _close_all() -> None:
    """At the interpreter's end: engines stop before what they use goes, and shared devices keep their pipelines."""
    for engine in list(_engines):
        engine.close()
    with _devices_lock:
        for device in _devices.values():
            device.close()


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
atexit.register(_close_all)


def _free(executor: Executor, weights: resident.ResidentWeights) -> None:
    executor.close()
    resident.release(weights)


def _completion(request: Request) -> Completion:
    assert request.completion is not None
    return request.completion


def _sampling(given: Sampling | None, settings: dict[str, Any]) -> Sampling:
    if given is None:
        return Sampling(**_known(settings))
    if settings:
        raise ParameterError(f"give sampling=... or {', '.join(settings)}, not both")
    if not isinstance(given, Sampling):
        raise ParameterError(f"sampling={given!r} is not a Sampling")
    return given


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    names = Sampling.names()
    for name in settings:
        if name not in names:
            raise ParameterError(f"{name!r} is not a setting; there are {', '.join(names)}")
    return settings


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ParameterError(f"{name}={value!r} is not a whole number from {least} to {most}")


__all__ = ["Completion", "DeviceError", "Engine", "Generation", "Sampling", "StepRecord", "Token", "default_device"]
