"""`lab note`: a dated note by a person in a ledger."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from labkit.lab.events import Ledger


@click.command()
@click.argument("text")
@click.option("--mistake", "place", flag_value="MISTAKES.md", help="Put it in MISTAKES.md.")
@click.option("--problem", "place", flag_value="OPEN-PROBLEMS.md", help="Put it in OPEN-PROBLEMS.md.")
@click.option("--finding", "place", flag_value="FINDINGS.md", default="FINDINGS.md", help="FINDINGS.md (the default).")
def command(text: str, place: "Ledger") -> None:
    """Add a dated note to a ledger; the first line of TEXT is its heading, `-` reads it from stdin."""
    import sys

    from labkit.lab.lab import Lab
    from labkit.lab.ledger import note

    lab = Lab()
    path = note(lab.root, sys.stdin.read() if text == "-" else text, place)
    click.echo(f"noted in {place} ({path.relative_to(lab.root)})")
