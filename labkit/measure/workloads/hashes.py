"""Hashes of a prompt: of the whole, and of each of its blocks, by which a prompt sent again is seen."""

import hashlib
from collections.abc import Sequence

BLOCK = 16  # tokens, as caches of prefixes have them
DIGITS = 12


def prompt_sha256(ids: Sequence[int]) -> str:
    """The hash of a prompt's token ids, as the engine's own rows have it."""
    return hashlib.sha256(repr([int(i) for i in ids]).encode()).hexdigest()


def text_sha256(text: str) -> str:
    """The hash of a prompt of which the ids are not known."""
    return hashlib.sha256(text.encode()).hexdigest()


def block_hashes(ids: Sequence[int]) -> list[str]:
    """A hash a block of 16 token ids, each of the block alone; the last block may be shorter."""
    return [prompt_sha256(ids[at : at + BLOCK])[:DIGITS] for at in range(0, len(ids), BLOCK)]
