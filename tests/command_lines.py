"""Lines of a document that are commands of `lab`, parsed as click would, without running anything."""

import re
import shlex

import click

from labkit.cli import lab


def fences(text: str, language: str) -> list[str]:
    """The blocks of code of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands_of(text: str) -> list[str]:
    """Every command shown in a markdown text: lines of shell blocks, those that go on joined, and `./lab ...` in a sentence."""
    blocks = (block.replace("\\\n", " ") for block in fences(text, "sh"))
    inline = (" ".join(words.split()) for words in re.findall(r"`(\./lab [^`]+)`", text))
    return [*(line for block in blocks for line in block.splitlines() if line), *inline]


def check_command(line: str) -> None:
    """Asserts that `lab` takes a line `./lab ...`; click.UsageError for what it does not take."""
    words = shlex.split(line, comments=True)[1:]
    if words == ["--help"]:
        return
    command = lab.get_command(click.Context(lab), words[0])
    assert command is not None, f"there is no verb {words[0]!r}"
    words = [word for word in words[1:] if word != "--help"]
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    if words or not isinstance(command, click.Group):
        command.make_context("lab", list(words))
