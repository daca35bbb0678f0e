"""`lab docs`: writes what the documentation says of the code from the code itself: the reference, and the lab's rules."""

import click


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; end with 2 when a document does not say what the code says."
)
@click.option("--json", "as_json", is_flag=True, help="Write the rules as JSON on stdout, and no document.")
def command(check: bool, as_json: bool) -> None:
    """Write docs/reference/ (metrics, verbs, schemas, detectors, levers, runtimes, modules) and the rules in METHODOLOGY.md.

    Each page is made of what the code says of itself; the rules are data in labkit/lab/rules.py. Refuses while a rule names
    a detector, a function, a field, a test or a verb that does not exist.
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
    from labkit.lab.reference import FOLDER, reference_files, stale_files
    from labkit.lab.rules_text import DOCUMENT, faults, rendered

    root = Lab().root
    path = root / DOCUMENT
    if not path.is_file():
        raise ParameterError(
            f"{path} is not there: documents are written in labkit's own repository (--json shows the rules)"
        )
    if wrong := list(faults(root)):
        raise ParameterError("; ".join(wrong))
    old = path.read_text(encoding="utf-8")
    new = rendered(old)
    files = reference_files()
    differ, unwritten = stale_files(root, files)
    if unwritten:
        raise ParameterError(f"{FOLDER / unwritten[0]} is not one that `lab docs` writes; move it or remove it")
    named = [str(FOLDER / name) for name in differ] + ([DOCUMENT] if old != new else [])
    if not named:
        click.echo(f"{FOLDER}/ and {DOCUMENT} say what the code says ({len(files)} files, {len(RULES)} rules)")
    elif check:
        shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
        verb = "does" if len(named) == 1 else "do"
        raise ParameterError(f"{shown} {verb} not say what the code says; `lab docs` writes it")
    else:
        for name in differ:
            (root / FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(root / FOLDER / name, files[name])
        if old != new:
            write_atomic(path, new)
        click.echo(f"wrote {', '.join(named)}")
