"""A request from the moment it is asked for to its completion, and what a caller gets back."""

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labkit.engine.sampling import Sampling
from labkit.errors import ParameterError

SHOWN = 60  # characters of a completion in a line about it


class Token(NamedTuple):
    """One generated token: its id, the text that became printable with it, its log-probability, and when it came.

    `logprob` is of the model's own distribution (no temperature, no penalties). `top` holds (id, logprob) of the most
    likely tokens, when asked for. `time_s` is seconds of `time.perf_counter`. Where text is still held back at the end
    (it could have begun a stop string, or is half a character), a last Token of id -1 carries it.
    """

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    time_s: float = 0.0


@dataclass(frozen=True)
class Completion:
    """What one request produced.

    `finish`: "stop" (end token or stop string), "length" (max_tokens), "context" (the slot is full), "cancelled".
    Times are seconds of `time.perf_counter`; `token_times_s` has one entry a token.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    slot: int
    submit_s: float
    start_s: float
    first_token_s: float | None
    last_token_s: float | None
    token_times_s: tuple[float, ...] = field(repr=False, default=())

    @property
    def ttft_s(self) -> float | None:
        """Seconds from submit to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.submit_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first: (last - first) / (tokens - 1)."""
        if self.first_token_s is None or self.last_token_s is None or len(self.token_ids) < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (len(self.token_ids) - 1)

    def row(self, since: Callable[[float], float] = float) -> dict[str, Any]:
        """What a run record keeps of the request: hash and counts, times through `since` (`run.elapsed`)."""

        def at(moment: float | None) -> float | None:
            return None if moment is None else since(moment)

        return {
            "slot": self.slot,
            "prompt_sha256": hashlib.sha256(repr(list(self.prompt_ids)).encode()).hexdigest(),
            "prompt_tokens": len(self.prompt_ids),
            "cached_tokens": 0,  # of the prompt, not computed anew: the engine has no cache of prefixes
            "completion_tokens": len(self.token_ids),
            "submit_s": at(self.submit_s),
            "start_s": at(self.start_s),
            "first_token_s": at(self.first_token_s),
            "last_token_s": at(self.last_token_s),
            "finish": self.finish,
        }

    def __repr__(self) -> str:
        return f"<Completion of {len(self.token_ids)} tokens ({self.finish}): {self.text[:SHOWN]!r}>"

    def _repr_html_(self) -> str:
        from labkit.show.pieces import facts_table, verbatim

        times = {"TTFT": self.ttft_s, "time per token after it": self.tpot_s}
        facts = {
            "text": verbatim(self.text),
            "tokens": f"{len(self.token_ids)} after {len(self.prompt_ids)} of the prompt, in slot {self.slot}",
            "finish": self.finish,
            **{name: f"{1e3 * seconds:.1f} ms" for name, seconds in times.items() if seconds is not None},
        }
        return facts_table(facts)


class Generation(Sequence[Completion]):
    """The completions of one `generate` call, in the order of the prompts."""

    def __init__(self, completions: list[Completion]) -> None:
        self._completions = completions

    def __getitem__(self, index: Any) -> Any:
        return self._completions[index]

    def __len__(self) -> int:
        return len(self._completions)

    @property
    def texts(self) -> list[str]:
        """The generated texts."""
        return [c.text for c in self._completions]

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """The generated token ids."""
        return [c.token_ids for c in self._completions]

    @property
    def tokens(self) -> int:
        """Tokens generated in all."""
        return sum(len(c.token_ids) for c in self._completions)

    def __repr__(self) -> str:
        return f"<Generation of {len(self)} completions, {self.tokens} tokens>"

    def _repr_html_(self) -> str:
        from labkit.show.pieces import table, verbatim

        rows = ((verbatim(c.text), len(c.token_ids), c.finish) for c in self._completions)
        return table(("text", "tokens", "finish"), rows, numbers=(1,))


class Request:
    """A request inside the engine. The engine's thread alone changes it; callers wait on `done` or read `events`."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        ignore_eos: bool,
        top: int,
        streaming: bool,
        submit_s: float,
        stop_ids: frozenset[int] = frozenset(),
        deliver: Callable[[Token | None], None] | None = None,
    ) -> None:
        if not prompt_ids:
            raise ParameterError("the prompt is empty: give at least one token")
        self.prompt_ids = tuple(prompt_ids)
        self.sampling, self.max_tokens, self.stop, self.ignore_eos, self.top = (
            sampling,
            max_tokens,
            stop,
            ignore_eos,
            top,
        )
        self.stop_ids = stop_ids
        self.streaming = streaming
        self.watched = streaming or bool(stop) or top > 0  # each token is looked at as it comes
        self.events: queue.SimpleQueue[Token | None] = queue.SimpleQueue()
        self.deliver = self.events.put if deliver is None else deliver
        self.done = threading.Event()
        self.cancelled = False
        self.error: BaseException | None = None
        self.completion: Completion | None = None
        self.submit_s, self.start_s = submit_s, submit_s
        # grown by the engine
        self.slot = -1
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[tuple[tuple[int, float], ...]] = []
        self.times: list[float] = []
        self.pieces: list[str] = []  # the text so far
        self.held = ""  # text that could still become part of a stop string
        self.detokeniser: Any = None

    def watch(self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...], now: float) -> bool:
        """Text, events and log-probabilities of the token just appended, for a request that is `watched`.

        True when a stop string was completed by it (the text is then cut before it).
        """
        if self.top:
            self.tops.append(top)
        piece = self.detokeniser.push(token_id)
        stopped = False
        if self.stop:
            piece, stopped = self._look_for_stop(piece)
        self.pieces.append(piece)
        if self.streaming:
            self.deliver(Token(token_id, piece, logprob, top, now))
        return stopped

    def _look_for_stop(self, piece: str) -> tuple[str, bool]:
        """What of held + piece may be shown, and whether a stop string lies in it."""
        text = self.held + piece
        found = [at for at in (text.find(s) for s in self.stop) if at >= 0]
        if found:
            self.held = ""
            return text[: min(found)], True
        keep = 0
        for stop in self.stop:
            for length in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:length]):
                    keep = max(keep, length)
                    break
        self.held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep], False

    def finish(self, reason: str, *, stopped: bool = False) -> None:
        """Make the completion; `wake` gives it to the caller."""
        if not self.watched:
            push = self.detokeniser.push
            self.pieces = [push(token) for token in self.token_ids]
        rest = "" if stopped else self.held + self.detokeniser.flush()
        self.pieces.append(rest)
        self.completion = Completion(
            text="".join(self.pieces),
            token_ids=tuple(self.token_ids),
            prompt_ids=self.prompt_ids,
            finish=reason,
            logprobs=tuple(self.logprobs),
            top_logprobs=tuple(self.tops),
            slot=self.slot,
            submit_s=self.submit_s,
            start_s=self.start_s,
            first_token_s=self.times[0] if self.times else None,
            last_token_s=self.times[-1] if self.times else None,
            token_times_s=tuple(self.times),
        )
        if self.streaming and rest:
            self.deliver(Token(-1, rest, 0.0, (), self.times[-1] if self.times else self.submit_s))

    def wake(self) -> None:
        """Give what `finish` or `fail` left to the caller."""
        self.deliver(None)
        self.done.set()

    def fail(self, error: BaseException) -> None:
        """Wake the caller with an error."""
        self.error = error
        self.wake()

    def tokens(self) -> Iterator[Token]:
        """Tokens as they come (streaming requests)."""
        while True:
            token = self.events.get()
            if token is None:
                break
            yield token
        if self.error is not None:
            raise self.error


class Stream(Iterator[Token]):
    """The tokens of one request as they come. Closing it, leaving its `with`, or letting go of it cancels the request."""

    def __init__(self, request: Request) -> None:
        self._request, self._tokens = request, request.tokens()

    def __next__(self) -> Token:
        try:
            return next(self._tokens)
        except BaseException:
            self.close()
            raise

    @property
    def completion(self) -> Completion | None:
        """The whole, once the request has ended."""
        return self._request.completion

    def close(self) -> None:
        """Cancel what is still to come; the slot is free a step later."""
        self._request.cancelled = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
