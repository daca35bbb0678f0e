"""`lab note`: an entry by hand in a ledger."""

import click


@click.command()
@click.argument("kind", type=click.Choice(("finding", "mistake", "problem")))
@click.argument("text")
def command(kind: str, text: str) -> None:
    """Write a dated entry by hand: a finding, a mistake or an open problem.

    The first line of TEXT is its heading; `-` reads it from stdin. The entry says that it is a person's word.
    """
    import sys

    from labkit.lab.events import Ledger
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import MOST_WORDS, note

    places: dict[str, Ledger] = {"finding": "FINDINGS.md", "mistake": "MISTAKES.md", "problem": "OPEN-PROBLEMS.md"}
    lab = Lab()
    path = note(lab.root, sys.stdin.read(MOST_WORDS + 2) if text == "-" else text, places[kind])
    click.echo(f"noted in {places[kind]} ({path.relative_to(lab.root)})")
