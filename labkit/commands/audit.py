"""`lab audit`: holds runs, files of claims and published sites against the known ways of fooling oneself."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.audit.report import Audit

ORDER = ("fail", "warn", "ok", "not assessable")


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN|CLAIMS.csv|SITE]...")
@click.option("--detectors", "listed", is_flag=True, help="List the detectors and what each judges by.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(targets: tuple[str, ...], listed: bool, as_json: bool) -> None:
    """Audit runs, a CSV of claims, or a published site's runs; every run of the lab where nothing is named.

    A run is an id (its start or end is enough) or a folder. The first notice shown is the root cause, what follows from
    it stands beneath. Ends with 3 when something fails and nobody waived it (`lab ledger waive RUN DETECTOR --reason`).
    """
    from labkit.lab.record import WITHHELD

    if listed:
        list_detectors(as_json)
        return
    from labkit.audit.targets import audit_target

    found = [audited for target in targets or ("",) for audited in audit_target(target)]
    if as_json:
        write_json([one.document() for one in found])
    else:
        show([(one.name, one.audit, one.trouble, one.waived) for one in found])
    if any(one.fails for one in found):
        sys.exit(WITHHELD)


def show(found: "list[tuple[str, Audit | None, str, dict[str, str]]]") -> None:
    """Prints each audit under its name, its counts last."""
    if not found:
        click.echo("no runs yet; start one with `lab run`")
    for number, (name, audit, trouble, waived) in enumerate(found):
        if number:
            click.echo()
        click.echo(name)
        if audit is None:
            click.echo(f"not assessable: {trouble}")
            continue
        click.echo(audit.text())
        for detector, reason in waived.items():
            click.echo(f"waived: {detector}: {reason}")
        click.echo(counts(audit))


def counts(audit: "Audit") -> str:
    """How many cells or rows stand as what: `16 fail, 9 warn, 153 ok, 30 not assessable, of 208 rows`."""
    standing = [audit.standing(subject) for subject in audit.subjects]
    parts = [f"{standing.count(outcome)} {outcome}" for outcome in ORDER if outcome in standing]
    what = "rows" if audit.kind == "claims" else "cells"
    return f"{', '.join(parts) or 'none'}, of {len(standing)} {what}"


def list_detectors(as_json: bool) -> None:
    """Prints the detectors in the order they run in."""
    import textwrap

    from labkit.audit.registry import detectors

    known = detectors().values()
    if as_json:
        write_json([{"id": d.id, "title": d.title, "about": d.about, "version": d.stamp} for d in known])
        return
    for one in known:
        about = textwrap.fill(" ".join(one.about.split()), 110, initial_indent="  ", subsequent_indent="  ")
        click.echo(f"{one.id} ({one.title}, version {one.stamp})\n{about}")


def write_json(thing: Any) -> None:
    """Writes JSON on stdout."""
    import json

    click.echo(json.dumps(thing, indent=2, ensure_ascii=False))


def require_file(path: Path) -> Path:
    """A path that is a file. ParameterError when it is not."""
    from labkit.errors import ParameterError

    if not path.is_file():
        raise ParameterError(f"{path} is not a file of claims; give a .csv, as data/claims/r9700.csv")
    return path
