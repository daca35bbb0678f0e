"""`lab init`: a lab of your own, outside labkit's repository."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def command(folder: Path) -> None:
    """Start a lab of your own in DIR, which must be new or empty.

    It gets a template experiment, empty ledgers, and a `./lab` that runs labkit on it. What lies in labkit's own
    repository are examples.
    """
    import shlex

    from labkit.lab.init import make_lab
    from labkit.lab.settle import shown

    made = make_lab(folder)
    click.echo(f"made a lab in {made}: notebooks/template.ipynb, data/, figures/ and four empty ledgers")
    click.echo(f"next: cd {shlex.quote(shown(made))} && ./lab run template, then ./lab new YOUR-QUESTION")
