"""`lab new`: a notebook for an experiment of one's own, from the template."""

import click


@click.command()
@click.argument("experiment")
@click.option("--question", default="", metavar="TEXT", help="What it asks, with a question mark.")
def command(experiment: str, question: str) -> None:
    """Make the notebook of a new EXPERIMENT in notebooks/, with its parameters, plan, check, measurement and conclusion.

    It runs as it is: it measures what the template does until you change it. A name that is taken is refused.
    """
    from labkit.lab.lab import experiment_name, find_root
    from labkit.lab.new import make_experiment

    root = find_root(None)
    path, name = make_experiment(root, experiment, question), experiment_name(experiment)
    click.echo(f"made {path.relative_to(root)}; what it asks and measures is yours to change")
    click.echo(f"next: ./lab notebook {name}, then ./lab run {name} --quick --no-ledger")
