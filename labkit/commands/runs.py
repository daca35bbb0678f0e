"""`lab runs`: the runs of the lab, newest first, and what one of them holds."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from labkit.lab.lab import StoredRun


@click.group(invoke_without_command=True)
@click.option("--experiment", help="Only the runs of this experiment.")
@click.option("--state", help="Only the runs in this state, such as completed or killed.")
@click.option("--json", "as_json", is_flag=True, help="Write the list as JSON.")
@click.pass_context
def command(context: click.Context, experiment: str | None, state: str | None, as_json: bool) -> None:
    """List the runs, newest first: id, experiment, state, verdict, device.

    A run whose process was killed is closed as `killed` when it is met here.
    """
    if context.invoked_subcommand is not None:
        return
    import json

    from labkit.errors import ParameterError
    from labkit.lab.lab import Lab
    from labkit.lab.record import STATES

    if state is not None and state not in STATES:
        raise ParameterError(f"{state!r} is not a run's state; there are: {', '.join(STATES)}")
    runs = Lab().runs(experiment=experiment, state=state)
    for line in runs.damaged:
        click.echo(f"lab: {line}", err=True)
    if as_json:
        rows = [
            dict(zip(runs.COLUMNS, row, strict=True)) | {"started": run.record.started, "folder": str(run.folder)}
            for run, row in zip(runs, runs.rows(), strict=True)
        ]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        click.echo(repr(runs))


@command.command()
@click.argument("run_id")
@click.option("--json", "as_json", is_flag=True, help="Write the whole record as JSON.")
def show(run_id: str, as_json: bool) -> None:
    """Show one run. The start or the end of its id is enough."""
    from labkit.lab.lab import Lab

    run = Lab().find_run(run_id)
    if as_json:
        click.echo(run.record.to_json(), nl=False)
        return
    for name, value in facts(run):
        click.echo(f"{name.ljust(11)} {value}")


def facts(run: "StoredRun") -> list[tuple[str, str]]:
    """What a person wants to see of a run, a line a fact."""
    from labkit.lab.measurements import read_rows
    from labkit.lab.settle import audit_lines, shown, verdict_line

    record, folder = run
    rows = read_rows(folder / "measurements.csv")
    lines = [
        ("run", record.id),
        ("state", f"{record.state}{': ' + record.reason if record.reason else ''}"),
        ("time", f"{record.started} to {record.ended or 'now'}"),
        ("device", str((record.device or {}).get("name", "not described"))),
        ("model", str((record.model or {}).get("name", "not described"))),
        ("plan", record.plan_hash[:12] if record.plan_hash else "none (exploratory)"),
        ("verdict", verdict_line(record) if record.verdict else "none"),
        ("samples", f"{len(rows)} of {len({row.cell for row in rows})} cells"),
    ]
    lines += [("audit", line.removeprefix("audit: ")) for line in audit_lines(folder)]
    if record.cells:
        cells = record.cells
        lines.append(("code cells", f"{cells.executed} executed, {cells.failed} failed, {cells.not_run} not run"))
    lines += [
        ("check", f"{check.name}: {'passed' if check.passed else 'FAILED'} {check.detail}") for check in record.checks
    ]
    lines += [("parameter", f"{name} = {value!r}") for name, value in record.parameters.items()]
    lines += [("file", shown(folder / name)) for name in record.artefacts]
    return [(name, value.rstrip()) for name, value in lines]
