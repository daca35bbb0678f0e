"""`lab promote`: repeats an exploration as a planned run, its cells, knobs and rule taken from what it found."""

import sys

import click


@click.command()
@click.argument("run_id")
@click.argument("belief")
@click.option("--metric", metavar="M", help="What decides; else the metric that was measured first.")
@click.option(
    "--control", metavar="CELL", help='The cell the others are read against, as JSON; else the first: {"width": 1}'
)
@click.option("--repetitions", type=click.IntRange(1, 1000), default=10, show_default=True, help="Blocks to measure.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for the whole run.")
@click.option("--no-ledger", is_flag=True, help="Keep the record, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no picture and render no page.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--json", "as_json", is_flag=True, help="Write the new record as JSON on stdout.")
def command(
    run_id: str,
    belief: str,
    metric: str | None,
    control: str | None,
    repetitions: int,
    timeout: float | None,
    no_ledger: bool,
    no_page: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Run the notebook of RUN_ID again with a plan that says BELIEF, in one sentence.

    RUN_ID is a run without a plan. The rule is that the cell furthest from the control stays on its side of it; it is
    stored before the notebook begins, and what the exploration measured is no part of the new run.

    \b
      lab promote 3fa9c2d1 "Eight streams decode faster than one" --metric decode_tok_s --control '{"width": 1}'
    """
    import json

    from labkit.errors import ParameterError
    from labkit.lab.lab import Lab
    from labkit.lab.promote import promote_stored
    from labkit.lab.record import exit_code
    from labkit.lab.settle import report, settle

    lab = Lab()
    try:
        cell = json.loads(control) if control is not None else None
    except ValueError:
        raise ParameterError(f'--control {control!r} is not a cell as JSON, such as {{"width": 1}}') from None
    run = promote_stored(
        lab,
        run_id,
        belief,
        metric=metric,
        control=cell,
        repetitions=repetitions,
        timeout_s=timeout,
        wait=not no_wait,
    )
    settled = settle(
        lab.root, run.folder, ledger=not no_ledger, page=not no_page, say=lambda text: click.echo(text, err=True)
    )
    report(lab.root, run.folder, settled)
    if as_json:
        click.echo(run.record.to_json(), nl=False)
    code = exit_code(run.record, run.folder)
    sys.exit(2 if code == 0 and any(line.startswith("no ledger entry") for line in settled.trouble) else code)
