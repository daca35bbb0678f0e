"""A row of requests.jsonl: the columns that the lab knows, each with what it says."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class RequestRow(BaseModel):
    """One request of a run, a line of JSON. Times are seconds since the run's start. What nobody told is left out, and an
    experiment may add columns of its own."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    block: int
    """The repetition it belongs to."""
    cell: dict[str, Any]
    """The knob values it was sent at."""
    request: int | None = None
    """Its number in the file of another tool that it came from."""
    slot: int | None = None
    """The place of the engine that answered it."""
    prompt_sha256: str | None = None
    """Hash of the prompt: equal prompts have equal hashes."""
    block_hashes: list[str] | None = None
    """Hashes of the prompt's blocks of tokens, each with all before it: equal beginnings have equal hashes."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, as whoever answered counts them."""
    cached_tokens: int | None = None
    """Of the prompt's tokens, those that came from a cache."""
    completion_tokens: int | None = None
    """Tokens that were emitted."""
    asked_tokens: int | None = None
    """Tokens that were asked for."""
    due_s: float | None = None
    """When the load wanted it sent."""
    submit_s: float | None = None
    """When it was sent."""
    start_s: float | None = None
    """When it got a slot."""
    first_token_s: float | None = None
    """When its first token came."""
    last_token_s: float | None = None
    """When its last token came."""
    end_s: float | None = None
    """When its answer ended."""
    ttft_s: float | None = None
    """Seconds to the first token, where a tool of another make tells durations."""
    tpot_s: float | None = None
    """Seconds a token after the first, where a tool of another make tells durations."""
    e2e_s: float | None = None
    """Seconds to the last token, where a tool of another make tells durations."""
    gaps_s: list[float] | None = None
    """Seconds between one event and the next."""
    event_tokens: list[int] | None = None
    """How many tokens each event brought, where some brought several."""
    drafted: int | None = None
    """Tokens that were drafted for it."""
    accepted: int | None = None
    """Drafted tokens that were accepted."""
    server: dict[str, Any] | None = None
    """Times and counts that the server reports by its own clock."""
    settings: dict[str, Any] | None = None
    """What the process that answered reports of its settings."""
    finish: str | None = None
    """Why it ended: length, stop, error."""
    failed: str | None = None
    """How it failed, in one word; left out when it came whole."""
    error: str | None = None
    """Why it failed, in one line."""
    notes: list[str] | None = None
    """What is odd about an answer that came whole."""
    text: str | None = None
    """What was emitted."""
    reasoning: str | None = None
    """What the model thought before it."""
    content: str | None = None
    """The type of its prompt's content: prose, code."""
    nominal_prompt_tokens: int | None = None
    """Tokens that its prompt was to have."""
    context_tokens: int | None = None
    """Tokens before it that it goes on from."""
    sized: str | None = None
    """By whose tokens its prompt was cut to length."""
    images: int | None = None
    """Images that were sent with it."""
    image_pixels: int | None = None
    """Pixels of these together."""
    cache: str | None = None
    """Whether its prompt was declared warm or cold."""
