"""Copy and edit: a text to be repeated with one word changed, which drafting by copying does best at."""

import random
from collections.abc import Iterator

from labkit.measure.workloads.content import Draft, content, tag
from labkit.measure.workloads.contents.code import functions

NAMES = ("alpha", "delta", "gamma", "kappa", "lambda_", "omega", "sigma", "theta", "zeta", "upsilon")


def named(chance: random.Random, name: str) -> Iterator[str]:
    """Functions without an end, each of which says the name once."""
    for piece in functions(chance):
        yield f"{name} = {chance.randrange(1000)}\n{piece}"


@content("copy-edit")
def copy_edit(chance: random.Random) -> Draft:
    """A Python module, with the request to repeat all of it with one name changed for another."""
    old, new = chance.sample(NAMES, 2)
    question = f"\n\n# Repeat this module from its first line, word for word, with {old} renamed to {new}.\n"
    return Draft(f"# {tag(chance)}\n\n", named(chance, old), question)
