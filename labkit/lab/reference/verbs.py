"""The reference of the command: every verb of `lab` with its help, arguments and options, as click has them."""

import inspect
import re
from collections.abc import Iterator

import click

from labkit.cli import lab
from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, one_line, prose, table

ABOUT = (
    "Every verb of `./lab`, as `./lab VERB --help` shows it. A verb that reads has `--json`. Exit codes: 0 done whatever the "
    "verdict, 1 a cell failed, 2 usage or bad input, 3 the audit withheld the finding, 4 the kernel died, 5 it took too long."
)


@reference
def verbs() -> Pages:
    """Every verb, those of a group beneath it."""
    found = list(commands(lab, "lab"))
    rows = ((f"[{code(path)}](#{anchor(path)})", prose(command.get_short_help_str(400))) for path, command in found)
    sections = "\n".join(section(path, command) for path, command in found)
    yield (
        "cli.md",
        f"{head('The verbs of lab', 'labkit/commands', ABOUT)}\n{table(('verb', 'what it does'), rows)}\n{sections}",
    )


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """(its words, the command) of each command below a group, depth first."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if command is None or command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        for word, inner in getattr(command, "beneath", {}).items():  # of a command that takes arguments of its own too
            yield f"{path} {name} {word}", inner


def anchor(path: str) -> str:
    """The anchor of a command's section."""
    return path.replace(" ", "-")


def section(path: str, command: click.Command) -> str:
    """A command's usage, help, and options."""
    context = click.Context(command, info_name=path, terminal_width=400, max_content_width=400)
    usage = " ".join([f"./{path}", *command.collect_usage_pieces(context)])
    options = [
        (f"`{record[0]}`", prose(record[1]))
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts and (record := parameter.get_help_record(context))
    ]  # fmt: skip
    shown = f"\n{table(('option', 'what it does'), options)}" if options else ""
    return f"## {path}\n\n```text\n{usage}\n```\n\n{help_text(command)}{shown}"


def help_text(command: click.Command) -> str:
    """A command's help as markdown: a paragraph that click leaves as it stands becomes a block of code."""
    parts = []
    for paragraph in re.split(r"\n{2,}", inspect.cleandoc(command.help or "")):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            parts.append("```text\n" + inspect.cleandoc("\n".join(lines[1:])) + "\n```")
        else:
            parts.append(prose(one_line(paragraph)))
    return "\n\n".join(parts) + "\n"
