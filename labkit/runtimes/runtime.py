"""The one interface behind which an engine is asked: labkit itself, llama-server, any OpenAI-compatible endpoint."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from labkit.errors import ParameterError
from labkit.runtimes.load import Load

Failure = Literal["refused", "status", "silent", "closed", "garbled", "short", "asleep", "cancelled", "engine"]
Progress = Callable[[int, int], None]  # requests done, requests in all

MOST_TOKENS = 1 << 20


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Ask:
    """One request: a prompt as text or as token ids, and how many tokens it is to emit.

    With `fixed` the output has that length whatever the model would say (its end token ignored). `chat`: the text goes
    through the model's chat template, as one message of a user. `images`: PNG or JPEG bytes, for endpoints that take them.
    `about` travels along untouched: content type, nominal length, depth."""

    prompt: str | tuple[int, ...]
    tokens: int
    fixed: bool = True
    chat: bool = False
    temperature: float = 0.0
    seed: int | None = None
    images: tuple[bytes, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ParameterError("a request has an empty prompt: give it at least one token")
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise ParameterError(f"a request for {self.tokens} tokens: give 1 to {MOST_TOKENS:,}")
        if (self.chat or self.images) and not isinstance(self.prompt, str):
            raise ParameterError("a chat message is text: give the prompt of a chat request as text, not as token ids")


@dataclass(frozen=True)
class Answer:
    """What came of one request. Times are seconds of `time.perf_counter`, taken on this side.

    `times`: when each token came; tokens of one event share its moment. `due_s` is when the load wanted it sent,
    `submit_s` when it was. `text` is the content, `reasoning` what the model thought before it. Counts are the server's
    own, None where it does not say; `timings` are times and counts it reports by its own clock. A request that failed has
    `failed` (how) and `error` (one line), and is never part of a rate. `notes`: what is odd about an answer that came
    whole, such as a reported time that cannot be."""

    ask: Ask
    submit_s: float
    times: tuple[float, ...] = ()
    end_s: float | None = None
    due_s: float | None = None
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    finish: str | None = None
    failed: Failure | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.failed is None) != (self.error is None):
            raise ParameterError(
                f"an answer that failed says how and why: failed={self.failed!r}, error={self.error!r}"
            )

    @property
    def good(self) -> bool:
        """Whether it came whole."""
        return self.failed is None

    @property
    def first_s(self) -> float | None:
        """When its first token came."""
        return self.times[0] if self.times else None

    @property
    def last_s(self) -> float | None:
        """When its last token came."""
        return self.times[-1] if self.times else None


def ability(about: str) -> Any:
    """A field of `Abilities` that is false until a runtime shows it, with what it is."""
    return field(default=False, metadata={"about": about})


@dataclass(frozen=True)
class Abilities:
    """What a runtime can be asked for, and what it tells."""

    token_prompts: bool = ability("takes prompts as token ids")
    fixed_length: bool = ability("gives an output of exactly so many tokens")
    token_count: bool = ability("says how many tokens an event brings, or one event is one token")
    cached_tokens: bool = ability("says how much of a prompt came from a cache")
    drafts: bool = ability("says how many drafted tokens were accepted")
    own_timings: bool = ability("reports times by its own clock")
    tokenizer: bool = ability("turns text into its token ids and back")
    counters: bool = ability("counts requests and tokens since it started")
    images: bool = ability("takes images beside text")
    own_process: bool = ability("runs beside this process, which started it")


class Runtime(ABC):
    """An engine that answers requests; a context manager. Closing twice is harmless.

    `name` is its kind (`llama-server`), `label` tells two of a kind apart in cells and pictures."""

    name: str
    label: str
    model: str  # as it calls the model it holds
    can: Abilities

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """For the record: kind, version, arguments, address without secrets, and what it reports of its settings."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Its settings as the running process reports them, by our names: slots, context, ub, kv, model, quant, draft;
        only those that it tells."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, its own way, nothing added in front. ParameterError where it has no tokenizer."""

    @abstractmethod
    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids. ParameterError where it has no tokenizer."""

    @abstractmethod
    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """Sends the requests as `load` says and collects the answers, in the order of the requests.

        A request that fails is an answer that says so; nothing is sent again. ParameterError for a request that this
        runtime cannot be asked (see `can`). Ctrl-C cancels what is still to come."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """Its own counters since it started, by our names: requests, prompt_tokens, cached_tokens, completion_tokens,
        drafted, accepted, preempted; empty where it has none. Asked before and after a measurement."""

    @property
    def origin(self) -> Mapping[str, int]:
        """What was started for it, for `run.measure(..., start=runtime)`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stops what was started for it, and nothing else."""

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_asks(asks: Sequence[Ask], can: Abilities, name: str) -> None:
    """ParameterError, with the remedy, for the first request that a runtime of these abilities cannot be asked."""
    for ask in asks:
        if not isinstance(ask.prompt, str) and not can.token_prompts:
            raise ParameterError(f"{name} takes no token ids as a prompt; give text")
        if ask.fixed and not can.fixed_length:
            raise ParameterError(
                f"{name} cannot be told to emit exactly {ask.tokens} tokens (no ignore_eos); ask with fixed=False"
            )
        if ask.images and not can.images:
            raise ParameterError(f"{name} takes no images")
