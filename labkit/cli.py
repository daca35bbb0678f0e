"""The `lab` command: a click group whose verbs are the modules of `labkit/commands/`, imported when called."""

import importlib
import keyword
import pkgutil
import sys

import click

import labkit.commands
from labkit.errors import LabError


class LazyGroup(click.Group):
    """A group that imports `labkit/commands/<verb>.py` only when the verb is used; each holds a `command`. The module of
    a verb that Python keeps for itself ends in `_`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name.removesuffix("_") for module in pkgutil.iter_modules(labkit.commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = f"labkit.commands.{cmd_name}{'_' if keyword.iskeyword(cmd_name) else ''}"
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="labkit", prog_name="lab")
def lab() -> None:
    """A lab notebook for language models on your own GPU: run experiments, keep the ledger, publish."""


def main() -> None:
    """Entry point of `lab` and `python -m labkit`; a LabError ends in one line on stderr and its exit code."""
    try:
        lab(prog_name="lab")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
