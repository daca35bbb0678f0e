"""`lab run`: runs an experiment's notebook with typed parameters and leaves a record, a figure, a page and an entry."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.errors import ParameterError

if TYPE_CHECKING:
    from labkit.lab.experiments import Experiment
    from labkit.lab.lab import Lab


@click.command()
@click.argument("experiment", required=False)
@click.option("-p", "assigned", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a parameter (repeatable).")
@click.option("--params", "file", type=click.Path(path_type=Path), help="Parameters from a .json or .yaml file.")
@click.option(
    "--quick/--full",
    default=None,
    help="Set the notebook's `quick` parameter; a quick run takes small sizes of its own, whatever -p says of them.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for the whole run.")
@click.option("--cell-timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each cell.")
@click.option("--no-ledger", is_flag=True, help="Keep the record, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no picture and render no page.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--name", help="A label kept in the record, such as 'after the driver update'.")
@click.option("--resume", metavar="RUN_ID", help="Take up a run that ended early and measure what it lacks.")
@click.option("--list", "listed", is_flag=True, help="List the experiments.")
@click.option("--help-parameters", is_flag=True, help="Show the experiment's parameters and their defaults.")
@click.option("--json", "as_json", is_flag=True, help="Write the record (or the list) as JSON on stdout.")
def command(
    experiment: str | None,
    assigned: tuple[tuple[str, str], ...],
    file: Path | None,
    quick: bool | None,
    timeout: float | None,
    cell_timeout: float | None,
    no_ledger: bool,
    no_page: bool,
    no_wait: bool,
    name: str | None,
    resume: str | None,
    listed: bool,
    help_parameters: bool,
    as_json: bool,
) -> None:
    """Run an EXPERIMENT: the notebook notebooks/<experiment>.ipynb, or a path to one.

    Values are typed by the notebook's own defaults: text stays text (`-p sha 12e4567`), a list is JSON or items with
    commas (`-p widths 1,8,32`). Ends with 0 when the run is done whatever its verdict, 1 when a cell failed or the
    run was stopped, 2 for bad input, 3 when the audit withholds the finding, 4 when the kernel died, 5 when it took too long.
    """
    from labkit.lab.experiments import find_experiment
    from labkit.lab.lab import Lab
    from labkit.lab.record import exit_code
    from labkit.lab.settle import report, settle

    lab = Lab()
    if resume is None and (listed or experiment is None):
        show_experiments(lab, as_json)
        return
    limits: dict[str, Any] = {"timeout_s": timeout, "cell_timeout_s": cell_timeout, "wait": not no_wait}
    if resume is not None:
        if experiment or assigned or file or quick is not None or name:
            raise ParameterError("--resume takes a run's id alone: the run keeps its experiment and its parameters")
        from labkit.lab.driver import resume_run

        run = resume_run(lab, resume, **limits)
    else:
        assert experiment is not None
        found = find_experiment(lab.root, experiment)
        if help_parameters:
            show_parameters(found, as_json)
            return
        overrides = read_overrides(found, assigned, file, quick)
        from labkit.lab.driver import run_experiment

        run = run_experiment(lab, found, overrides, name=name, **limits)
    settled = settle(
        lab.root, run.folder, ledger=not no_ledger, page=not no_page, say=lambda text: click.echo(text, err=True)
    )
    report(lab.root, run.folder, settled)
    if as_json:
        click.echo(run.record.to_json(), nl=False)
    if (code := exit_code(run.record, run.folder)) != 0:
        sys.exit(code)
    if any(line.startswith("no ledger entry") for line in settled.trouble):
        sys.exit(2)


def read_overrides(
    experiment: "Experiment", assigned: tuple[tuple[str, str], ...], file: Path | None, quick: bool | None
) -> dict[str, Any]:
    """The overrides from the parameter file, then the command line; each name once on the command line."""
    from labkit.lab.parameters import read_parameter_file, require, set_parameters

    overrides = read_parameter_file(file, experiment.parameters) if file else {}
    names = [name for name, _ in assigned]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"parameter {name} is given {names.count(name)} times; give it once")
    overrides |= set_parameters(experiment.parameters, dict(assigned))
    if quick is not None:
        if "quick" in names:
            raise ParameterError("give either -p quick or --quick/--full, not both")
        if "quick" not in experiment.parameters:
            raise ParameterError(
                f"{experiment.name} has no parameter `quick`, so --quick and --full mean nothing to it"
            )
        overrides["quick"] = require(experiment.parameters, "quick").from_value(quick)
    return overrides


def show_experiments(lab: "Lab", as_json: bool) -> None:
    """Prints each experiment with its question; a notebook that is not in order with what is wrong."""
    import json

    from labkit.lab.experiments import Experiment, list_experiments

    found = list_experiments(lab.root)
    if as_json:
        rows = [
            {"name": item.name, "question": item.question, "parameters": item.defaults()}
            if isinstance(item, Experiment)
            else {"error": str(item)}
            for item in found
        ]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not found:
        click.echo(f"no notebooks in {lab.root / 'notebooks'}")
    width = max((len(item.name) for item in found if isinstance(item, Experiment)), default=0)
    for item in found:
        if isinstance(item, Experiment):
            click.echo(f"{item.name.ljust(width)}  {item.question}")
        else:
            click.echo(f"lab: {item}", err=True)
    if found:
        click.echo("\nlab run EXPERIMENT starts one; lab run EXPERIMENT --help-parameters shows what it takes")


def show_parameters(experiment: "Experiment", as_json: bool) -> None:
    """Prints the parameters with their defaults, types and help."""
    import json

    if as_json:
        click.echo(json.dumps(experiment.defaults(), indent=2, ensure_ascii=False))
        return
    click.echo(f"{experiment.name}: {experiment.question}")
    for parameter in experiment.parameters.values():
        click.echo(f"  {parameter}")
