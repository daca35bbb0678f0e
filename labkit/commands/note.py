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

    from labkit.errors import LedgerError
    from labkit.lab.events import Ledger
    from labkit.lab.lab import Lab
    from labkit.lab.ledger import MOST_WORDS, note

    places: dict[str, Ledger] = {"finding": "FINDINGS.md", "mistake": "MISTAKES.md", "problem": "OPEN-PROBLEMS.md"}
    if text == "-":
        try:
            text = sys.stdin.buffer.read(4 * MOST_WORDS + 4).decode("utf-8")
        except UnicodeDecodeError:
            raise LedgerError("what came on stdin is not UTF-8 text") from None
    lab = Lab()
    path = note(lab.root, text, places[kind])
    click.echo(f"noted in {places[kind]} ({path.relative_to(lab.root)})")
