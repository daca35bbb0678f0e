"""The pieces a reference page is made of: its head, tables, and texts of docstrings as markdown."""

import re
from collections.abc import Iterable, Sequence

CODE = re.compile(r"(`+)(?:.*?[^`])?\1(?!`)", re.DOTALL)


def head(title: str, source: str, about: str) -> str:
    """The beginning of a page: its title, where its text comes from, and what it lists. `source` is a path from the
    repository's root; the page lies in docs/reference."""
    return (
        f"# {title}\n\n{about}\n\n*Made by `./lab docs` from [{source}](../../{source}); what is written here by hand is "
        "lost.*\n"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table; cells are markdown themselves, on one line."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(one_line(each).replace('|', chr(92) + '|') for each in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """A text with single spaces between its words."""
    return " ".join(text.split())


def code(text: str) -> str:
    """A text as a piece of code; nothing of nothing."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """A docstring's text as markdown: `<`, which would begin a tag, is escaped outside of code."""
    parts, end = [], 0
    for match in CODE.finditer(text):
        parts += [text[end : match.start()].replace("<", "&lt;"), match[0]]
        end = match.end()
    return "".join([*parts, text[end:].replace("<", "&lt;")])


def number(value: float) -> str:
    """A whole number without its fraction."""
    return f"{value:g}"
