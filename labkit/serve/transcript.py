"""The text of one choice and the log-probabilities of its tokens, in step whether streamed or given whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from labkit.engine.request import Completion, Token
from labkit.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Entry:
    """One token's log-probability, those of the most likely ones beside it, and the character of the text it starts at."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    start: int


class Transcript:
    """Takes tokens, gives text with the entries of the tokens whose text has been shown.

    A token whose text is held back (half a character, or what could begin a stop string) waits with it; one whose text
    was cut off with a stop string, and the end token behind the text, have no entry. `wanted`: whether entries are.
    """

    def __init__(self, tokenizer: Tokenizer, wanted: bool) -> None:
        self._wanted = wanted
        self._detokeniser = tokenizer.stream()
        self._made = 0  # characters of all tokens so far, cut or not
        self._shown = 0
        self._held: list[Entry] = []

    def push(self, token: Token) -> tuple[str, list[Entry]]:
        """The text that `token` lets be shown, and the entries that go with it; both may be empty."""
        if self._wanted and token.id >= 0:
            self._held.append(Entry(token.id, token.logprob, token.top, self._made))
            self._made += len(self._detokeniser.push(token.id))
        self._shown += len(token.text)
        return token.text, self._free() if token.text else []

    def end(self, finish: str) -> list[Entry]:
        """The entries still to be given once all tokens were pushed."""
        return self._free() if finish == "stop" else self._held

    def _free(self) -> list[Entry]:
        free = [entry for entry in self._held if entry.start < self._shown]
        self._held = [entry for entry in self._held if entry.start >= self._shown]
        return free


def entries_of(tokenizer: Tokenizer, done: Completion) -> list[Entry]:
    """The entries of a completion that was not streamed."""
    transcript = Transcript(tokenizer, True)
    entries: list[Entry] = []
    for token in _tokens(done):
        entries += transcript.push(token)[1]
    entries += transcript.push(Token(-1, done.text, 0.0))[1]
    return entries + transcript.end(done.finish)


def _tokens(done: Completion) -> Iterator[Token]:
    for token_id, logprob, top in zip_longest(done.token_ids, done.logprobs, done.top_logprobs, fillvalue=()):
        yield Token(token_id, "", logprob, top)  # type: ignore[arg-type]
