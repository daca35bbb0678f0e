"""Code: small Python functions and classes of templates, every name drawn anew."""

import random
from collections.abc import Iterator

from labkit.measure.workloads.content import Draft, content, tag

VERBS = (
    "load",
    "merge",
    "count",
    "split",
    "find",
    "scale",
    "pack",
    "trim",
    "rank",
    "join",
    "check",
    "sum",
    "shift",
    "route",
)
NOUNS = (
    "orders", "frames", "tokens", "routes", "pixels", "users", "blocks", "weights", "events", "cells", "parts", "rows",
    "samples", "pages", "edges", "queues", "ranges", "prices",
)  # fmt: skip
SHORT = (
    "left",
    "right",
    "total",
    "limit",
    "offset",
    "width",
    "depth",
    "rate",
    "index",
    "value",
    "step",
    "bound",
    "share",
)
OPERATORS = ("+", "-", "*", "//", "%")
COMPARISONS = ("<", ">", "<=", ">=", "!=")


def function(chance: random.Random) -> str:
    """One function or class of 5 to 14 lines."""
    verb, noun, other = chance.choice(VERBS), *chance.sample(NOUNS, 2)
    a, b, c = chance.sample(SHORT, 3)
    n, m = chance.randrange(2, 999), chance.randrange(2, 99)
    operator, than = chance.choice(OPERATORS), chance.choice(COMPARISONS)
    lines = (
        (
            f"def {verb}_{noun}({noun}, {a}={n}):",
            f"    {b} = 0",
            f"    for {c}, item in enumerate({noun}):",
            f"        if item {than} {a}:",
            f"            {b} += item {operator} {m}",
            "        else:",
            f"            {b} -= {c}",
            f"    return {b}",
        ),
        (
            f"class {noun.title()}{other.title()}:",
            f"    def __init__(self, {a}, {b}={m}):",
            f"        self.{a} = {a}",
            f"        self.{b} = {b}",
            "",
            f"    def {verb}(self, {c}):",
            f"        return [{c} {operator} each for each in self.{a}[: self.{b}]]",
        ),
        (
            f"def {verb}_{noun}_by_{a}(path, {b}={n}):",
            "    found = {}",
            "    with open(path) as file:",
            "        for line in file:",
            f"            key, _, {c} = line.partition({chance.choice(':;,=|')!r})",
            f"            if len({c}) {than} {b}:",
            f"                found.setdefault(key.strip(), []).append({c})",
            "    return found",
        ),
        (
            f"def {verb}_{other}({a}, {b}):",
            "    try:",
            f"        {c} = {a}[{m}] {operator} {b}",
            "    except (IndexError, ZeroDivisionError):",
            f"        raise ValueError('cannot {verb} {noun}') from None",
            f"    return max({c}, {n})",
        ),
        (
            f"{noun.upper()} = {{name: {n} {operator} {m} for name in {chance.sample(NOUNS, 4)!r}}}",
            "",
            f"def {verb}_{noun}({b}):",
            f"    while {b} {than} {n}:",
            f"        {b} = {b} {operator} {m}",
            f"        yield {b}, {noun.upper()}.get({c!r})",
        ),
    )
    return "\n".join(chance.choice(lines)) + "\n"


def functions(chance: random.Random) -> Iterator[str]:
    """Functions and classes without an end."""
    while True:
        yield function(chance) + "\n\n"


@content("code")
def code(chance: random.Random) -> Draft:
    """A Python module of small functions and classes, with the request to add another."""
    question = "\n\n# Write the next function of this module, with its tests.\n"
    return Draft(f"# {tag(chance)}\n\n", functions(chance), question)
