"""The reference of modules: every file of labkit with the sentence that it begins with."""

from itertools import groupby
from pathlib import Path

import labkit
from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, one_line, prose, table

QUOTES = '"""'
ABOUT = "Every module of labkit, a folder a section, each with the first sentence of its docstring."


@reference
def modules() -> Pages:
    """Every module, by folder."""
    root = Path(labkit.__file__).parent
    files = sorted(root.rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name))
    parts = [head("Modules", "labkit", ABOUT)]
    for folder, inside in groupby(files, key=lambda path: path.parent):
        name = folder.relative_to(root.parent).as_posix()
        rows = []
        for path in inside:
            place = path.relative_to(root.parent).as_posix()
            if path.name == "__init__.py":
                parts.append(f"## {name}\n\n{first_sentence(path)}\n")
            else:
                rows.append((f"[{code(path.name)}](../../{place})", first_sentence(path)))
        if rows:
            parts.append(table(("module", "what it is"), rows))
    yield "modules.md", "\n".join(parts)


def first_sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, as markdown."""
    begin, _, text = path.read_text(encoding="utf-8").partition(QUOTES)
    return "" if begin else prose(one_line(text.partition("\n\n")[0].partition(QUOTES)[0]))
