"""The reference of runtimes: the kinds that can be asked, what each may be able to do, how loads arrive and requests fail."""

import inspect
from dataclasses import fields
from typing import get_args

from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, one_line, prose, table
from labkit.runtimes.load import Load
from labkit.runtimes.opening import open_runtime
from labkit.runtimes.registry import kinds
from labkit.runtimes.runtime import Abilities, Answer, Ask, Failure, Runtime

ABOUT = (
    "The engines that the same question can be asked of. `./lab runtimes` says which of them run here and why others do not; "
    "`./lab runtimes ADDRESS` asks a server what it can do."
)


@reference
def runtimes() -> Pages:
    """Kinds, abilities, requests, answers, loads and failures."""
    rows = (
        (code(one.name), prose(one.about), f"[{code(place(one.module))}](../../{place(one.module)})")
        for one in kinds().values()
    )
    can = ((code(each.name), each.metadata["about"]) for each in fields(Abilities))
    parts = [
        head("Runtimes", "labkit/runtimes", ABOUT),
        table(("kind", "what it is", "module"), rows),
        f"## open_runtime\n\n{paragraphs(open_runtime)}\n",
        "## Abilities\n\nWhat a runtime can do is found out when it is opened, and stands in its `can`. A request that it "
        "cannot be asked is refused before it is sent.\n",
        table(("ability", "a runtime that has it"), can),
        *(f"## {one.__name__}\n\n{paragraphs(one)}\n" for one in (Ask, Answer, Load, Runtime)),
        "## How a request fails\n\nA request that does not come whole is an answer whose `failed` says how, in one word: "
        f"{', '.join(map(code, get_args(Failure)))}; `error` says why in a line. It is kept, and part of no rate.\n",
    ]
    yield "runtimes.md", "\n".join(parts)


def place(module: str) -> str:
    """A module's file from the repository's root."""
    return f"{module.replace('.', '/')}.py"


def paragraphs(thing: object) -> str:
    """A docstring as markdown, a paragraph a line."""
    text = inspect.cleandoc(getattr(thing, "__doc__", "") or "")
    return "\n\n".join(prose(one_line(part)) for part in text.split("\n\n"))
