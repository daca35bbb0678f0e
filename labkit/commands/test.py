"""`lab test`: run the project's tests with pytest, those that need a GPU only where there is one."""

import importlib.util
import os
import sys
from pathlib import Path

import click

from labkit.errors import LabError


def without_gpu(arguments: tuple[str, ...]) -> list[str]:
    """pytest's arguments with `not gpu` joined to whatever marker expression they hold."""
    kept, expressions = [], ["not gpu"]
    words = iter(arguments)
    for word in words:
        if word == "-m":
            expressions.append(f"({next(words, '')})")
        elif word.startswith("-m") and not word.startswith("--"):
            expressions.append(f"({word[2:].removeprefix('=')})")
        else:
            kept.append(word)
    return ["-m", " and ".join(expressions), *kept]


def has_gpu() -> bool:
    """Whether some Vulkan device that labkit can use is not the CPU."""
    from labkit.diagnosis.listing import list_apart

    return any(device["usable"] and device["type"] != "cpu" for device in list_apart().devices)


@click.command(
    name="test",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["--help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run pytest over the repository's tests; ARGUMENTS are passed on to it (`lab test -m quick`)."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests").is_dir():
        raise LabError(f"there are no tests beside {root / 'labkit'}: run `./lab test` in a checkout of the repository")
    if importlib.util.find_spec("pytest") is None:
        raise LabError(
            f"pytest is not installed for {sys.executable}: use `./lab test`, or `pip install -e '.[lab,dev]'`"
        )
    words = list(arguments)
    if not has_gpu():
        words = without_gpu(arguments)
        # no GPU can be used here, so the CPU is meant even if the PCI bus shows one
        os.environ.setdefault("LABKIT_DEVICE", "cpu")
        click.echo("no GPU can be used here: the tests that need one are left out", err=True)
    os.chdir(root)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *words])
