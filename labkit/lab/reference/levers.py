"""The reference of levers: what can be varied, how it acts, and what must move when it does."""

from labkit.lab.levers import ANEW, LEVERS
from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, one_line, prose, table

ABOUT = (
    "What a plan or a sweep may vary. A lever acts on the recorded *program*, on the *data*, on the *schedule* of requests, "
    "or by a *restart*, and then it says what must be made anew for another value to take. Its witness is what must move "
    "with it, and where a record has that. A lever of your own goes into `data/levers.toml` of your lab "
    "([how](../../AGENTS.md#a-lever))."
)


@reference
def levers() -> Pages:
    """Every lever once, by its own name."""
    known = {one.name: one for one in LEVERS.values()}
    rows = (
        (
            code(one.name), ", ".join(map(code, one.names[1:])), prose(one.about).rstrip("."), prose(one.values), one.acts,
            one.needs, f"{one.witness.kind}: {prose(one.witness.read)}",
        )
        for _, one in sorted(known.items())
    )  # fmt: skip
    columns = ("lever", "also called", "what it is", "values", "acts on", "made anew", "witness")
    restarts = table(
        ("made anew", "what that is"), ((name, prose(one_line(text))) for name, text in ANEW.items() if name)
    )
    yield (
        "levers.md",
        f"{head('Levers', 'labkit/lab/levers.py', ABOUT)}\n{table(columns, rows)}\n## What is made anew\n\n{restarts}",
    )
