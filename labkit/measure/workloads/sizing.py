"""Texts of an exact number of tokens, by the tokenizer of the engine that is to read them."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import ParameterError

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]
TRIES = 24  # other cuts
FILLER = (" a", " the", "\n", " I", ".")  # what is one token in most vocabularies
CHARACTERS = 5  # a token, to begin with


@dataclass(frozen=True)
class Coder:
    """A tokenizer as it is used here. `vocabulary` holds the ids that stand for text of their own, empty where the
    tokenizer does not tell; `in_front` is how many tokens it puts before a text."""

    encode: Encode
    decode: Decode
    vocabulary: tuple[int, ...] = ()
    takes_ids: bool = True
    in_front: int = 0


def coder_of(tokenizer: Any) -> Coder:
    """A `Runtime`, a `Model` or a `Tokenizer` of labkit as a coder. ParameterError for a runtime without a tokenizer, and
    for anything else."""
    if not hasattr(tokenizer, "tokenize"):
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a model's
    if hasattr(tokenizer, "tokenize") and hasattr(tokenizer, "detokenize"):
        can = getattr(tokenizer, "can", None)
        if can is not None and not can.tokenizer:
            raise ParameterError(
                f"{tokenizer.label} has no tokenizer to size prompts with; give the model's own, as Model(...).tokenizer"
            )
        return Coder(tokenizer.tokenize, tokenizer.detokenize, takes_ids=can is None or can.token_prompts)
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode"):
        return Coder(
            tokenizer.encode, tokenizer.decode, plain_ids(tokenizer), in_front=int(getattr(tokenizer, "add_bos", False))
        )
    raise ParameterError(
        f"{type(tokenizer).__name__} is no tokenizer: it needs tokenize and detokenize, or encode and decode"
    )


def plain_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids of a labkit tokenizer that are text: no control tokens, no parts of characters."""
    if not (hasattr(tokenizer, "is_control") and hasattr(tokenizer, "token_bytes")):
        return ()
    return tuple(i for i in range(len(tokenizer)) if not tokenizer.is_control(i) and tokenizer.token_bytes(i).isascii())


def long_enough(encode: Encode, opening: str, pieces: Iterator[str], tokens: int) -> list[int]:
    """The ids of the opening and as many pieces as make at least `tokens`."""
    text, wanted = opening, CHARACTERS * tokens + 64
    while True:
        while len(text) < wanted:
            text += next(pieces)
        ids = encode(text)
        if len(ids) >= tokens:
            return ids
        wanted = max(wanted, len(text)) * 2


def fit(coder: Coder, front: str, ids: Sequence[int], tail: str, tokens: int) -> str | None:
    """`front`, the beginning of the text of `ids` and `tail`, of exactly `tokens` together when tokenised again; None
    where no cut and no filler gives it.

    A cut between two tokens is not always one: what stands before it may merge otherwise. So every cut is tokenised
    again, others near it are tried, then short words are put before the tail."""
    edge = tokens - (len(coder.encode(tail)) if tail else 0) - (len(coder.encode(front)) if front else 0)
    tried: set[int] = set()
    cut = edge
    for _ in range(TRIES):
        if not 0 <= cut <= len(ids):
            break
        tried.add(cut)
        text = front + coder.decode(ids[:cut]) + tail
        off = tokens - len(coder.encode(text))
        if off == 0:
            return text
        cut += off
        if cut in tried:
            cut = next((near for d in range(1, TRIES) for near in (edge - d, edge + d) if near not in tried), -1)
    for cut, filler in itertools.product(range(min(edge, len(ids)), max(-1, edge - 4), -1), FILLER):
        body = front + coder.decode(ids[:cut])
        for count in range(1, TRIES):
            text = body + filler * count + tail
            have = len(coder.encode(text))
            if have == tokens:
                return text
            if have > tokens:
                break
    return None
