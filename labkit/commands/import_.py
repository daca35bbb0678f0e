"""`lab import`: a run from another machine, judged by this lab."""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("archive", type=click.Path(path_type=Path), metavar="ZIP")
@click.option("--no-ledger", is_flag=True, help="Keep the record, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no picture and render no page.")
@click.option("--json", "as_json", is_flag=True, help="Write the run's record as JSON on stdout.")
def command(archive: Path, no_ledger: bool, no_page: bool, as_json: bool) -> None:
    """Take in a run that `lab export` packed on another machine.

    Everything in ZIP is checked before the run appears; this lab then judges it by its own samples and enters it in the
    ledger. Importing it again changes nothing.
    """
    from labkit.audit.stored import run_audit
    from labkit.lab.importing import import_run
    from labkit.lab.lab import Lab
    from labkit.lab.record import WITHHELD
    from labkit.lab.settle import report, settle

    lab = Lab()
    done = import_run(lab.root, archive)
    name = done.record.id
    click.echo(f"imported {name}" if done.new else f"{name} is here already; its record is unchanged", err=True)
    if done.disagreement:
        click.echo(f"careful: {done.disagreement}", err=True)
    audit = run_audit(done.folder)
    settled = settle(
        lab.root,
        done.folder,
        ledger=not no_ledger,
        page=done.new and not no_page,
        say=lambda text: click.echo(text, err=True),
    )
    report(lab.root, done.folder, settled)
    if as_json:
        click.echo(done.record.to_json(), nl=False)
    if audit.failed:
        sys.exit(WITHHELD)
