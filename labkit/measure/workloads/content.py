"""The registry of content types: each file of `contents/` declares one with `@content` and is found by itself."""

import functools
import importlib
import pkgutil
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.errors import ParameterError

TAG = 8  # characters that open a prompt, so that no two begin alike
LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Draft:
    """A text to be cut to length: how it opens, pieces without an end, and the question behind them. Without pieces it is
    drawn from the tokenizer's vocabulary."""

    opening: str
    pieces: Iterator[str] | None
    question: str = ""


Maker = Callable[[random.Random], Draft]


@dataclass(frozen=True)
class Content:
    """A content type: `make` drafts a text from a source of chance."""

    id: str
    about: str
    make: Maker


CONTENTS: dict[str, Content] = {}


def content(id: str) -> Callable[[Maker], Maker]:
    """Declares the decorated function as a content type; its docstring says what it is. ParameterError for a name that is
    taken."""

    def declare(make: Maker) -> Maker:
        if id in CONTENTS:
            raise ParameterError(f"the content type {id} is declared already, in {CONTENTS[id].make.__module__}")
        CONTENTS[id] = Content(id, " ".join((make.__doc__ or "").split()), make)
        return make

    return declare


@functools.cache
def _load() -> None:
    from labkit.measure.workloads import contents

    for module in pkgutil.iter_modules(contents.__path__):
        importlib.import_module(f"{contents.__name__}.{module.name}")


def content_types() -> dict[str, Content]:
    """All content types by their names."""
    _load()
    return dict(sorted(CONTENTS.items()))


def content_type(id: str) -> Content:
    """The content type of that name. ParameterError, with the ones there are, for an unknown one."""
    _load()
    if id not in CONTENTS:
        raise ParameterError(f"{id!r} is not a content type; there are {', '.join(sorted(CONTENTS))}")
    return CONTENTS[id]


def tag(chance: random.Random) -> str:
    """What opens a prompt and no other: eight letters and digits."""
    return "".join(chance.choices(LETTERS, k=TAG))
