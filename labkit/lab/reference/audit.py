"""The reference of the audit: each detector with its number, what it judges by, what it can say, and its version."""

import ast
import inspect
import sys
from collections.abc import Iterator

from labkit.audit.notice import OUTCOMES
from labkit.audit.registry import Detector, detectors
from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, number, prose, table

ABOUT = (
    "What stands between a run and the ledger, in the order it runs in. A detector says *ok*, *warn*, *fail* or *not "
    "assessable*, with its arithmetic. Only a *fail* withholds a finding, until a person waives it with a reason. The "
    "version goes up when a judgement changes, and stored audits are then made anew."
)


@reference
def audit() -> Pages:
    """Every detector: a table of all, then what each judges by."""
    known = detectors()
    rows = (
        (
            number(one.number),
            f"[{code(one.id)}](#{one.id})",
            prose(one.title),
            ", ".join(outcomes(one)),
            str(one.version),
        )
        for one in known.values()
    )
    yield (
        "audit.md",
        f"{head('What the audit detects', 'labkit/audit/detectors', ABOUT)}\n"
        f"{table(('number', 'detector', 'looks for', 'can say', 'version'), rows)}\n" + "\n".join(map(described, known.values())),
    )  # fmt: skip


def described(one: Detector) -> str:
    """A detector's section."""
    path = f"{one.module.replace('.', '/')}.py"
    follows = f"\n\nFrom it follow: {', '.join(map(code, one.explains))}." if one.explains else ""
    return f"## {one.id}\n\n{prose(one.about)}{follows}\n\n*[{path}](../../{path})*\n"


def outcomes(one: Detector) -> list[str]:
    """The outcomes that a detector's file can give, gravest last: those it writes, but not those it compares with."""
    tree = ast.parse(inspect.getsource(sys.modules[one.module]))
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    given = set(words(tree, compared))
    return [outcome for outcome in ("ok", "not assessable", "warn", "fail") if outcome in given]


def words(tree: ast.AST, but: set[int]) -> Iterator[str]:
    """The outcomes among a tree's texts, those of the nodes `but` left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in OUTCOMES and id(node) not in but:
            yield node.value
