"""What a client may send: the bodies of the two endpoints, each field checked before anything is done with it.

Fields of OpenAI's API that would change the answer and that the engine lacks are refused unless they say nothing (null or
their default); those that change nothing (`user`, `metadata`) are taken; unknown ones are refused, as OpenAI's server does.
`top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`, `ignore_eos` and `min_tokens` are vLLM's, under its names.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, model_validator

from labkit.serve.limits import MOST_CHOICES

MOST_TOP = 20  # top_logprobs of OpenAI's API
MOST_STOPS, MOST_STOP_IDS = 16, 256


def only(*allowed: Any) -> AfterValidator:
    """The check of a field that says nothing: it may be one of `allowed`, or null."""

    def check(value: Any) -> Any:
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            raise ValueError("this is not supported by this server, leave it out")
        return value

    return AfterValidator(check)


Finite = Annotated[float, Field(allow_inf_nan=False)]
StopText = Annotated[str, Field(min_length=1, max_length=512)]
Stops = StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)]


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 31 for each in value)


def prompts_of(value: Any) -> list[str | list[int]]:
    """The prompts of a completion: a text, a list of texts, token ids, or a list of lists of them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if isinstance(value[0], int) and _is_ids(value):
            return [value]
        if all(isinstance(each, str) for each in value) or all(_is_ids(each) for each in value):
            return value
    raise ValueError("a prompt is a text, a list of texts, a list of token ids, or a list of lists of token ids")


def content_of(value: Any) -> str | None:
    """The text of a message's content: itself, or that of its parts in one piece."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("the content of a message is a text or a list of parts")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('a part other than {"type": "text", "text": "..."} is not supported by this server')
    return "".join(part["text"] for part in value)


class Sent(BaseModel):
    """Part of a body: of the exact types, without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class StreamOptions(Sent):
    """What a stream tells beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the counts so far with every chunk
    include_obfuscation: bool | None = None


class Body(Sent, ABC):
    """What both endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[Annotated[str, Field(max_length=20)], Finite] | None = None
    # of vLLM's API
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=100)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=MOST_STOP_IDS)] | None = (
        None
    )
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    # taken, and of no consequence here
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    store: Annotated[Any, only(False)] = None

    @model_validator(mode="after")
    def _together(self) -> "Body":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        if self.min_tokens and not (self.ignore_eos and not self.stop and not self.stop_token_ids):
            raise ValueError("min_tokens needs ignore_eos, and no stop: this server cannot forbid the end until then")
        return self

    @property
    @abstractmethod
    def top(self) -> int | None:
        """Most likely tokens to tell a step; None when log-probabilities were not asked for."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_so_far(self) -> bool:
        """Whether every chunk of a stream has its token counts."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: Annotated[Any, AfterValidator(prompts_of)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    echo: Annotated[Any, only(False)] = None
    suffix: Annotated[Any, only("")] = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None

    @model_validator(mode="after")
    def _best(self) -> "CompletionBody":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of is not supported by this server, unless it equals n")
        return self

    @property
    def top(self) -> int | None:
        return self.logprobs


class Message(Sent):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Any, AfterValidator(content_of)] = None
    name: str | None = None
    refusal: str | None = None
    annotations: Annotated[Any, only([])] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None
    tool_calls: Annotated[Any, only([])] = None

    @property
    def plain(self) -> dict[str, str]:
        """As a chat template takes it: its text in one piece, a developer's words as the system's."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content or ""}


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    prediction: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _top(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed when logprobs is true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("give max_completion_tokens or max_tokens, not both")
        return self

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
