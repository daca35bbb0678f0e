"""`lab claims`: the published numbers the lab starts from, and which of them survive the physics."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.audit.claims import Claim

as_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
files_argument = click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE.csv]...")


@click.group()
def command() -> None:
    """Published claims, a row each, in data/claims/*.csv or any FILE.csv of the same columns."""


@command.command("list")
@files_argument
@click.option("--source", help="Only the rows of sources that begin so.")
@click.option("--metric", help="Only the rows of this metric.")
@as_json_option
def list_claims(files: tuple[Path, ...], source: str | None, metric: str | None, as_json: bool) -> None:
    """List the claims: id, value, metric, device, model, and what is known of their conditions."""
    from labkit.audit.claims import read_claims
    from labkit.commands.audit import write_json

    rows = [row for path in claim_files(files) for row in read_claims(path).rows]
    rows = [
        row for row in rows
        if row.texts["source"].startswith(source or "") and metric in (None, row.metric, row.texts["metric"])
    ]  # fmt: skip
    if as_json:
        write_json([claim_row(row) for row in rows])
        return
    width = max((len(row.id) for row in rows), default=0)
    for row in rows:
        texts = row.texts
        where = ", ".join(texts[name] for name in ("device", "model", "quantisation", "backend") if texts[name])
        click.echo(f"{row.id.ljust(width)}  {texts['value']} {texts['unit']}  {row.metric}  {where}{conditions(row)}")
    if not rows:
        click.echo("no such claims")


@command.command("audit")
@files_argument
@click.option("--row", "only", metavar="ID", help="Everything that is said of one row.")
@as_json_option
def audit_claims(files: tuple[Path, ...], only: str | None, as_json: bool) -> None:
    """Hold the claims against the limits of their devices and against each other.

    Root causes come first, with their arithmetic. A row whose conditions are not known is not assessable, and what is
    missing is named. Ends with 3 when a row is impossible as stated.
    """
    from labkit.audit.targets import audit_claims as audit_file
    from labkit.commands.audit import show, write_json
    from labkit.lab.record import WITHHELD

    found = [audit_file(path) for path in claim_files(files)]
    if only is not None:
        show_row(found, only, as_json)
    elif as_json:
        write_json([one.document() for one in found])
    else:
        show([(one.name, one.audit, one.trouble, one.waived) for one in found])
    if any(one.fails for one in found):
        sys.exit(WITHHELD)


def claim_files(files: tuple[Path, ...]) -> list[Path]:
    """The files named, or all of the lab. ParameterError for one that is not there."""
    from labkit.commands.audit import require_file
    from labkit.errors import ParameterError
    from labkit.lab.lab import Lab

    if files:
        return [require_file(path) for path in files]
    folder = Lab().root / "data" / "claims"
    found = sorted(folder.glob("*.csv"))
    if not found:
        raise ParameterError(f"{folder} holds no .csv of claims; name a file, or put one there")
    return found


def conditions(row: "Claim") -> str:
    """What is known of a row's conditions, in brackets."""
    known = [f"{name} {value:g}" for name, value in row.numbers.items() if value is not None]
    if row.cache:
        known.append(f"cache {row.cache}")
    return f"  ({', '.join(known)})" if known else ""


def claim_row(row: "Claim") -> dict[str, Any]:
    """A claim as JSON shows it: as written, and in its metric's own unit."""
    return {
        **row.texts,
        **row.numbers,
        "id": row.id,
        "group": row.group,
        "metric": row.metric,
        "cache": row.cache,
        "value": row.value,
        "as_written": f"{row.texts['value']} {row.texts['unit']}",
    }


def show_row(found: Any, only: str, as_json: bool) -> None:
    """Prints every notice on one row. ParameterError when no file has it."""
    from labkit.commands.audit import write_json
    from labkit.errors import ParameterError

    held = next((one.audit for one in found if one.audit and only in one.audit.subjects), None)
    if held is None:
        raise ParameterError(f"no row is called {only!r}; `lab claims list` shows the rows")
    notices = held.by_subject.get(only, [])
    if as_json:
        write_json({"outcome": held.standing(only), "notices": [notice.model_dump(mode="json") for notice in notices]})
        return
    click.echo(f"{only}: {held.standing(only)}")
    for notice in notices:
        click.echo(f"{notice.outcome}: {notice.detector}: {notice.text}")
        for line in notice.arithmetic:
            click.echo(f"    {line}")
