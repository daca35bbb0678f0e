"""`lab import`: a run from another machine, or what another tool measured, judged by this lab."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from labkit.lab.record import RunRecord

ZIPPED = (b"PK\x03\x04", b"PK\x05\x06")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--device", metavar="NAME", help="The device it was measured on, where FILE does not say.")
@click.option("--model", metavar="NAME", help="The model that was measured, where FILE does not say.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="A condition that FILE does not tell, as streams=8, quant=q4_k_m or started=2026-12-01T10:00:00Z. Repeatable.",
)  # fmt: skip
@click.option("--no-ledger", is_flag=True, help="Keep the record, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no picture and render no page.")
@click.option("--json", "as_json", is_flag=True, help="Write the run's record as JSON on stdout.")
def command(
    file: Path, device: str | None, model: str | None, settings: tuple[str, ...], no_ledger: bool, no_page: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Take in a run that `lab export` packed, or a file that another tool measured.

    What FILE is, is found out from what it holds: a run's zip, or the results of a benchmark such as llama-bench's; one
    of no known format is refused with a list of them. Everything in it is checked before the run appears; this lab then
    judges it. What it does not say stays unknown; what is told against it is refused. Importing it again changes nothing.
    """
    from labkit.audit.stored import run_audit, waived
    from labkit.lab.lab import Lab
    from labkit.lab.record import WITHHELD
    from labkit.lab.settle import report, settle

    lab = Lab()
    if is_zip(file):
        record, folder, new = take_zip(lab.root, file, bool(device or model or settings))
    else:
        record, folder, new = take_other(lab.root, file, device, model, settings)
    audit = run_audit(folder)
    settled = settle(
        lab.root, folder, ledger=not no_ledger, page=new and not no_page, say=lambda text: click.echo(text, err=True)
    )
    report(lab.root, folder, settled)
    if as_json:
        click.echo(record.to_json(), nl=False)
    if set(audit.failed) - set(waived(lab.root, record.id, audit.failed)):
        sys.exit(WITHHELD)


def is_zip(file: Path) -> bool:
    """Whether a file is a zip, by its first bytes or else its name. RunError for one that cannot be read."""
    from labkit.errors import RunError

    try:
        if not file.is_file():
            raise RunError(f"{file} is not a file" if file.exists() else f"there is no file {file}")
        with file.open("rb") as opened:
            return opened.read(4) in ZIPPED or file.suffix.lower() == ".zip"
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from None


def take_zip(root: Path, file: Path, told: bool) -> "tuple[RunRecord, Path, bool]":
    """A run's archive."""
    from labkit.errors import ParameterError
    from labkit.lab.importing import import_run

    if told:
        raise ParameterError(
            f"{file} is a run's zip, which tells its device, model and settings; leave these options out"
        )
    done = import_run(root, file)
    said = f"imported {done.record.id}" if done.new else f"{done.record.id} is here already; its record is unchanged"
    click.echo(said, err=True)
    if done.disagreement:
        click.echo(f"careful: {done.disagreement}", err=True)
    return done.record, done.folder, done.new


def take_other(
    root: Path, file: Path, device: str | None, model: str | None, settings: tuple[str, ...]
) -> "tuple[RunRecord, Path, bool]":
    """A file of another tool."""
    from labkit.lab.imported import Told, parse_settings, take_file

    done = take_file(root, file, Told(device, model, parse_settings(settings)))
    made = f"{done.record.id}, from a file of {done.record.parameters['format']}"
    click.echo(f"imported {made}" if done.new else f"{made}, is here already; nothing was changed", err=True)
    for other in done.same_file:
        click.echo(f"careful: {other} is of the same file, with other settings", err=True)
    return done.record, done.folder, done.new
