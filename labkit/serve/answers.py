"""The answers of the two endpoints as plain data: whole, or in the pieces of a stream."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.engine.request import Completion
from labkit.models.tokenizer import Tokenizer
from labkit.serve.transcript import Entry

UNLIKELY = -9999.0  # what OpenAI's API writes for a probability of 0
FINISHES = {"stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class Usage:
    """Token counts: of each prompt once, however many choices it has, and of all that was generated."""

    prompt: int
    completion: int

    @property
    def body(self) -> dict[str, int]:
        """As the API has it."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


class Answer(ABC):
    """What both endpoints' answers share: one id and one time, whole and in every piece."""

    prefix, whole, piece = "", "", ""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def complete(self, choices: Iterable[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        return {**self._head, "object": self.whole, "choices": list(choices), "usage": usage.body}

    def chunk(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """One piece of a stream."""
        return {**self._head, "object": self.piece, "choices": list(choices), **more}

    @abstractmethod
    def choice(self, index: int, done: Completion, entries: list[Entry] | None) -> dict[str, Any]:
        """One choice of a whole answer; `entries` None when log-probabilities were not asked for."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What comes before the first text of a streamed choice, if anything."""
        return None

    @abstractmethod
    def delta(self, index: int, text: str, entries: list[Entry] | None, finish: str | None) -> dict[str, Any]:
        """One piece of a streamed choice; `finish` in its last."""


class CompletionAnswer(Answer):
    """POST /v1/completions."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    def choice(self, index: int, done: Completion, entries: list[Entry] | None) -> dict[str, Any]:
        return self._choice(index, done.text, entries, done.finish)

    def delta(self, index: int, text: str, entries: list[Entry] | None, finish: str | None) -> dict[str, Any]:
        return self._choice(index, text, entries or None, finish)

    def _choice(self, index: int, text: str, entries: list[Entry] | None, finish: str | None) -> dict[str, Any]:
        reason = FINISHES.get(finish) if finish else None
        return {"index": index, "text": text, "logprobs": self._logprobs(entries), "finish_reason": reason}

    def _logprobs(self, entries: list[Entry] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [_told(entry.logprob) for entry in entries],
            "top_logprobs": [
                {self._name(i): _told(value) for i, value in (*entry.top, (entry.token_id, entry.logprob))}
                for entry in entries
            ],
            "text_offset": [entry.start for entry in entries],
        }

    def _name(self, token_id: int) -> str:
        raw = self.tokenizer.token_bytes(token_id, special=True)
        try:
            return raw.decode()
        except UnicodeDecodeError:  # as OpenAI's API writes part of a character
            return "bytes:" + _escaped(raw)


class ChatAnswer(Answer):
    """POST /v1/chat/completions."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, done: Completion, entries: list[Entry] | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": done.text, "refusal": None}
        reason = FINISHES.get(done.finish)
        return {"index": index, "message": message, "logprobs": self._logprobs(entries), "finish_reason": reason}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, entries: list[Entry] | None, finish: str | None) -> dict[str, Any]:
        delta = {"content": text} if text or not finish else {}
        reason = FINISHES.get(finish) if finish else None
        return {"index": index, "delta": delta, "logprobs": self._logprobs(entries or None), "finish_reason": reason}

    def _logprobs(self, entries: list[Entry] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        content = [
            self._token(entry.token_id, entry.logprob) | {"top_logprobs": [self._token(*each) for each in entry.top]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token_id, special=True)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = _escaped(raw)
        return {"token": text, "logprob": _told(logprob), "bytes": list(raw)}


def _escaped(raw: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in raw)


def _told(logprob: float) -> float:
    return max(round(logprob, 6), UNLIKELY)
