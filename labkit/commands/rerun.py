"""`lab rerun`: repeats a stored run with the parameters it had, or with some of them changed."""

import sys

import click


@click.command()
@click.argument("run_id")
@click.option("-p", "assigned", nargs=2, multiple=True, metavar="NAME VALUE", help="Change a parameter (repeatable).")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for the whole run.")
@click.option("--cell-timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each cell.")
@click.option("--no-ledger", is_flag=True, help="Keep the record, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no picture and render no page.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--name", help="A label kept in the record.")
@click.option("--json", "as_json", is_flag=True, help="Write the new record as JSON on stdout.")
def command(
    run_id: str,
    assigned: tuple[tuple[str, str], ...],
    timeout: float | None,
    cell_timeout: float | None,
    no_ledger: bool,
    no_page: bool,
    no_wait: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """Run the experiment of RUN_ID again, as a new run. The start or the end of an id is enough.

    The notebook is the one of today: what changed in it since is part of what a rerun tests.
    """
    from labkit.lab.driver import run_experiment, stored_experiment, stored_overrides
    from labkit.lab.lab import Lab
    from labkit.lab.parameters import set_parameters
    from labkit.lab.record import exit_code
    from labkit.lab.settle import report, settle

    lab = Lab()
    record = lab.find_run(run_id).record
    experiment = stored_experiment(lab, record)
    changed = set_parameters(experiment.parameters, dict(assigned))
    overrides = stored_overrides(experiment, record, replaced=changed) | changed
    run = run_experiment(
        lab,
        experiment,
        overrides,
        name=name or record.name,
        timeout_s=timeout,
        cell_timeout_s=cell_timeout,
        wait=not no_wait,
    )
    settled = settle(
        lab.root, run.folder, ledger=not no_ledger, page=not no_page, say=lambda text: click.echo(text, err=True)
    )
    report(lab.root, run.folder, settled)
    if as_json:
        click.echo(run.record.to_json(), nl=False)
    sys.exit(exit_code(run.record, run.folder))
