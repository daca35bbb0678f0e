"""`lab docs`: renders what METHODOLOGY.md says of the lab's rules from the rules themselves."""

import click


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; end with 2 when the document does not say what the rules say."
)
@click.option("--json", "as_json", is_flag=True, help="Write the rules as JSON on stdout, and no document.")
def command(check: bool, as_json: bool) -> None:
    """Render the lab's rules, each with what enforces it, between the markers in METHODOLOGY.md.

    The rules are data in labkit/lab/rules.py. Refuses while one names a detector, a function, a field, a test or a verb
    that does not exist.
    """
    import json

    from labkit.errors import ParameterError
    from labkit.lab.rules import RULES

    if as_json:
        rows = [
            {
                "id": one.id, "group": one.group, "rule": one.rule, "why": one.why, "published": list(one.published),
                "enforced": [{"kind": each.kind, "name": each.name} for each in one.enforced],
            }
            for one in RULES.values()
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from labkit.lab.lab import Lab
    from labkit.lab.record import write_atomic
    from labkit.lab.rules_text import DOCUMENT, faults, rendered

    root = Lab().root
    path = root / DOCUMENT
    if not path.is_file():
        raise ParameterError(
            f"{path} is not there: the rules are rendered in labkit's own repository (--json shows them)"
        )
    if wrong := list(faults(root)):
        raise ParameterError("; ".join(wrong))
    old = path.read_text(encoding="utf-8")
    new = rendered(old)
    if old == new:
        click.echo(f"{DOCUMENT} says what the rules say ({len(RULES)} rules)")
    elif check:
        raise ParameterError(f"{DOCUMENT} does not say what labkit/lab/rules.py says; `lab docs` renders it")
    else:
        write_atomic(path, new)
        click.echo(f"rendered {len(RULES)} rules into {DOCUMENT}")
