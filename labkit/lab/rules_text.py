"""The rules as METHODOLOGY.md shows them, and the faults of rules that name what is not there."""

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.rules import GROUPS, NOT_HERE, PUBLISHED, RULES, Enforcer

DOCUMENT = "METHODOLOGY.md"
BEGIN = "<!-- rules: rendered from labkit/lab/rules.py by `lab docs`; edit them there -->"
END = "<!-- end of rules -->"


def rules_text() -> str:
    """All rules as tables, a group each, and the published rules beside them."""
    parts = []
    for group in GROUPS:
        rows = [one for one in RULES.values() if one.group == group]
        parts.append(f"### {group}\n\n| rule | why | enforced by |\n|---|---|---|")
        parts += [f"| {one.rule} | {one.why} | {'; '.join(map(shown, one.enforced))} |" for one in rows]
        parts.append("")
    answered = published_rules()
    parts += [
        "### Of the 47 published rules",
        "",
        "The rules of NikoCloud's `METHODOLOGY.md` (r9700-local-inference-notes, as of 2026-09-20), by their numbers: "
        f"{len(answered)} are answered by rules above, {len(NOT_HERE)} are not, and here is why.",
        "",
        "| published | answered by |",
        "|---|---|",
    ]
    for number in range(1, PUBLISHED + 1):
        there = "; ".join(RULES[name].rule.removesuffix(".") for name in answered.get(number, ()))
        asked, because = NOT_HERE.get(number, ("", ""))
        parts.append(f"| {number} | {there or f'*not here* ({asked}): {because}'}. |")
    return "\n".join(parts) + "\n"


def shown(one: Enforcer) -> str:
    """An enforcer as the table has it."""
    if one.kind == "person":
        return f"a person, who {one.name}"
    if one.kind == "test":
        file, _, name = one.name.partition("::")
        return f"the test [{name.removeprefix('test_').replace('_', ' ')}]({file})"
    if one.kind == "verb":
        return f"`lab {one.name}`"
    if one.kind == "detector":
        return f"the detector `{one.name}`"
    if one.kind == "field":
        return f"the field `{'.'.join(one.name.split('.')[-2:])}`"
    return f"`{one.name.removeprefix('labkit.')}`"


def published_rules() -> dict[int, list[str]]:
    """The ids of the rules that answer each published one."""
    found: dict[int, list[str]] = {}
    for one in RULES.values():
        for number in one.published:
            found.setdefault(number, []).append(one.id)
    return dict(sorted(found.items()))


def rendered(document: str) -> str:
    """The document with what stands between the markers made anew. ParameterError unless it has both, once, in order."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ParameterError(f"{DOCUMENT} needs the lines {BEGIN} and {END}, once each: the rules go between them")
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{rules_text()}\n{END}{rest.partition(END)[2]}"


def faults(root: Path | None = None) -> Iterator[str]:
    """A line for each enforcer that is not there, each published rule that is neither answered nor weighed, or both, and
    each detector that no rule names. Tests are looked for under `root`, where given."""
    from labkit.audit.registry import detectors

    for one in RULES.values():
        for each in one.enforced:
            if trouble := missing(each, root):
                yield f"the rule {one.id}: {trouble}"
    named = {each.name for one in RULES.values() for each in one.enforced if each.kind == "detector"}
    for id in detectors():
        if id not in named:
            yield f"no rule names the detector {id}: add it to one in labkit/lab/rules.py"
    answered = published_rules()
    for number in range(1, PUBLISHED + 1):
        if (number in answered) == (number in NOT_HERE):
            yield f"the published rule {number} is {'both answered and set aside' if number in answered else 'not weighed'}"
    for number in (*answered, *NOT_HERE):
        if not 1 <= number <= PUBLISHED:
            yield f"there is no published rule {number}"


def missing(one: Enforcer, root: Path | None = None) -> str:
    """Why an enforcer is not there; nothing where it is."""
    if one.kind == "detector":
        from labkit.audit.registry import detectors

        return "" if one.name in detectors() else f"there is no detector {one.name!r}"
    if one.kind == "check":
        return "" if callable(found(one.name)) else f"there is no function {one.name}"
    if one.kind == "field":
        owner, _, name = one.name.rpartition(".")
        return "" if name in fields_of(found(owner)) else f"{owner} has no field {name!r}"
    if one.kind == "verb":
        return "" if is_verb(one.name) else f"there is no verb `lab {one.name}`"
    if one.kind == "test" and root is not None:
        file, _, name = one.name.partition("::")
        path = root / file
        there = path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")
        return "" if there else f"there is no test {one.name}"
    return ""


def found(name: str) -> Any:
    """What a dotted name stands for, None where it stands for nothing."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part, None)
        return thing
    return None


def fields_of(owner: Any) -> set[str]:
    """The names of a schema's fields: of a pydantic model or a dataclass."""
    if dataclasses.is_dataclass(owner):
        return {field.name for field in dataclasses.fields(owner)}
    return set(getattr(owner, "model_fields", {}))


def is_verb(words: str) -> bool:
    """Whether `lab` has this verb, `ledger verify` say."""
    import click

    from labkit.cli import lab

    command: click.Command | None = lab
    for word in words.split():
        if not isinstance(command, click.Group):
            return False
        command = command.get_command(click.Context(command), word)
    return command is not None
