"""`lab sweep`: runs an experiment at every point of a grid, takes up what a kill left, and says what each lever did."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.lab.fleet.wire import tls_options

if TYPE_CHECKING:
    from labkit.lab.fleet.connection import Fleet
    from labkit.lab.lab import Lab, StoredRun
    from labkit.lab.sweep import Asked
    from labkit.lab.sweep_effects import LeverEffect
    from labkit.lab.sweep_file import SweepFile


@click.command()
@click.argument("experiment")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    required=True,
    metavar="NAME=V,V,...",
    help="A lever and its values (repeatable); numbers may be ranges: 1-4, 0-4096+512, 1-32*2.",
)
@click.option("-p", "assigned", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a parameter of every point.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="The same, as NAME=VALUE.")
@click.option("--params", "file", type=click.Path(path_type=Path), help="Parameters from a .json or .yaml file.")
@click.option("--quick/--full", default=None, help="Set the notebook's `quick` parameter to true or false.")
@click.option("--negative-control", "controls", multiple=True, metavar="NAME", help="A lever that must change nothing.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.02,
    show_default=True,
    help="How far from 1 a ratio still counts as the same.",
)
@click.option("--resume", is_flag=True, help="Take up the sweep of the same request: only what is missing runs.")
@click.option("--anew", is_flag=True, help="Begin another sweep though one of the same request is unfinished.")
@click.option("--dry-run", is_flag=True, help="Check everything and show the table, but run nothing.")
@click.option("--budget", metavar="TIME", help="How long it may take: 6h, 90m. What does not fit stays missing.")
@click.option("--require-idle", is_flag=True, help="Refuse to start beside other users of the device or on a battery.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each run.")
@click.option("--cell-timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each cell.")
@click.option("--no-ledger", is_flag=True, help="Keep the records, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no pictures and render no pages.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--scheduler", metavar="ADDRESS", help="Run the points on the workers of `lab scheduler` at ADDRESS.")
@click.option("--allow-difference", is_flag=True, help="Also use workers whose code differs; records tell what does.")
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Write the sweep as JSON on stdout.")
def command(experiment: str, **o: Any) -> None:
    """Run EXPERIMENT at every point of a grid, one process a run, and say what each lever did.

    The state is the run folders and one file in data/sweeps: whatever is killed, `--resume` runs what is missing and
    nothing twice. A lever that is not declared, or that cannot act at the workload, is refused before anything runs.
    Ends with 0 when every point is complete, 1 when some are not, 2 for bad input, 3 when a negative control moved.

    With --scheduler each point goes once to a worker (`lab worker`) that has the same code. Its run comes here whole, is
    checked, and is judged and entered here; a point whose worker is lost has failed until --resume, which first fetches
    what workers have finished.

    \b
      lab sweep batch-decode --grid batch=1,8,32 --grid kv=f16,f32
      lab sweep micro-batch --grid ubs=[256,2048],[512,2048] -p prompts 512,4096 --budget 6h --resume
      lab sweep batch-decode --grid batch=1,8,32 --scheduler 127.0.0.1:8786
    """
    from labkit.lab.fleet.course import FleetSweep
    from labkit.lab.lab import Lab
    from labkit.lab.series import Night, read_duration
    from labkit.lab.sweep import Sweep

    lab = Lab()
    budget = read_duration(o["budget"]) if o["budget"] else None
    asked = asked_for(lab, experiment, o)
    known = begun(lab, asked, o["resume"] or o["dry_run"], o["anew"])
    for line in checked(lab, asked):
        click.echo(f"lab: {line}", err=True)
    todo = len(missing_of(lab, known))
    with fleet_for(asked, known, todo, o) as fleet:
        warnings = looked(lab, asked, todo, o)
        if o["dry_run"]:
            show(lab, known, [], o["as_json"])
            return
        file = known if known.warnings else known.model_copy(update={"warnings": warnings})
        sweep = FleetSweep(lab, asked, file, fleet) if fleet is not None else Sweep(lab, asked, file)
        night = Night(budget)
        with sweep:
            if todo:
                click.echo(f"sweep {sweep.file.id}: {todo} of {len(sweep.file.points)} points to run", err=True)
            with night.listening():
                sweep.run(night, how(lab, o))
            effects = concluded(lab, sweep, ledger=not o["no_ledger"])
    show(lab, sweep.file, effects, o["as_json"])
    sys.exit(ending(lab, sweep, effects, night.stopped))


@contextmanager
def fleet_for(asked: "Asked", known: "SweepFile", todo: int, o: dict[str, Any]) -> "Iterator[Fleet | None]":
    """The workers at --scheduler while inside, each with this code; None without it, or with nothing to run. RunError
    when there is none, or one has other code and that is not allowed."""
    from labkit.errors import ParameterError, RunError
    from labkit.lab.fleet.code import code_of
    from labkit.lab.fleet.connection import connected
    from labkit.lab.fleet.wire import Tls

    tls = Tls(o["tls_ca_file"], o["tls_cert"], o["tls_key"])
    address = o["scheduler"]
    if address is None:
        if tls.used or o["allow_difference"]:
            raise ParameterError("--allow-difference and the files of TLS go with --scheduler ADDRESS")
        yield None
        return
    if "device" in asked.fixed or "device" in asked.grid:
        raise ParameterError(
            "a fleet's workers choose the device (`lab worker --device`): leave the parameter device out"
        )
    if o["require_idle"]:
        raise ParameterError("--require-idle looks at this machine; with --scheduler each run keeps who shared its own")
    if not todo:
        yield None
        return
    code = code_of(asked.experiment)
    with connected(address, tls, known.experiment, known.notebook, code, o["allow_difference"]) as fleet:
        workers, refused = fleet.workers(), fleet.refused()
        if refused:
            raise RunError(refused[0])
        if not workers:
            raise RunError(f"no worker is at {address}; start one on each machine: lab worker {address}")
        yield fleet


def looked(lab: "Lab", asked: "Asked", todo: int, o: dict[str, Any]) -> tuple[str, ...]:
    """What is found before a long series, told and returned; of a fleet, this machine's disk alone. RunError for what
    speaks against a start."""
    from labkit.lab.night import Checked, check_night, disk_trouble

    if o["scheduler"] is not None:
        trouble = disk_trouble(lab.root, asked.experiment.name, todo)
        found = Checked((trouble,) if trouble else ())
    else:
        selector = (asked.experiment.defaults() | asked.fixed).get("device")
        found = check_night(lab.root, asked.experiment.name, todo, str(selector) if isinstance(selector, str) else None)
    for line in found.warnings:
        click.echo(f"lab: {line}", err=True)
    refuse(found.refusals + (found.warnings if o["require_idle"] else ()), o["dry_run"])
    return found.warnings


def asked_for(lab: "Lab", experiment: str, o: dict[str, Any]) -> "Asked":
    """What the options ask for, every value typed by the notebook's defaults. ParameterError for what does not fit."""
    from labkit.commands.run import read_overrides
    from labkit.errors import ParameterError
    from labkit.lab.experiments import find_experiment
    from labkit.lab.grid import parameter_for, read_grid
    from labkit.lab.levers import known_levers
    from labkit.lab.sweep import Asked

    found = find_experiment(lab.root, experiment)
    pairs = []
    for text in o["settings"]:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ParameterError(f"--set {text!r} is not NAME=VALUE")
        pairs.append((name.strip(), value))
    fixed = read_overrides(found, (*o["assigned"], *pairs), o["file"], o["quick"])
    levers = known_levers(lab.root)
    grid = read_grid(o["grids"], found.parameters, levers)
    for text in o["grids"]:
        if (said := text.partition("=")[0].strip()) not in grid:
            click.echo(f"{said} is the parameter {parameter_for(said, found.parameters, levers)} here", err=True)
    if both := [name for name in grid if name in fixed]:
        raise ParameterError(f"{both[0]} is both varied by --grid and set; give it once")
    controls = tuple(parameter_for(name, found.parameters, levers) for name in o["controls"])
    return Asked(found, fixed, grid, controls, o["margin"])


def checked(lab: "Lab", asked: "Asked") -> list[str]:
    """Refuses levers that cannot act; what else is worth saying."""
    from labkit.lab.levers import known_levers
    from labkit.lab.sweep import check_levers

    return check_levers(asked, known_levers(lab.root))


def begun(lab: "Lab", asked: "Asked", resume: bool, anew: bool) -> "SweepFile":
    """The sweep to go on with, or a new one. RunError for one that is unfinished and was not asked to be resumed."""
    from labkit.errors import ParameterError, RunError
    from labkit.lab.sweep import new_sweep
    from labkit.lab.sweep_file import find_sweep

    if resume and anew:
        raise ParameterError("give either --resume or --anew, not both")
    known = None if anew else find_sweep(lab.root, asked.definition)
    if known is None:
        return new_sweep(lab, asked)
    left = len(missing_of(lab, known))
    if resume:
        return known
    if left:
        raise RunError(
            f"this sweep was begun on {known.begun} and lacks {left} of {len(known.points)} points; --resume runs those, "
            f"--anew begins another"
        )
    return new_sweep(lab, asked)


def missing_of(lab: "Lab", file: "SweepFile") -> list[int]:
    """The points without a completed run."""
    from labkit.lab.series import state_of

    return [number for number, point in enumerate(file.points) if state_of(lab.root, point.run) != "completed"]


def refuse(reasons: tuple[str, ...], dry_run: bool) -> None:
    """RunError with the first reason against a start; a dry run only tells them."""
    from labkit.errors import RunError

    if reasons and not dry_run:
        raise RunError(reasons[0])
    for reason in reasons:
        click.echo(f"lab: {reason}", err=True)


def how(lab: "Lab", o: dict[str, Any]) -> Any:
    """How the points are run, with what follows each."""
    from labkit.lab.series import How
    from labkit.lab.settle import settle

    def finish(run: "StoredRun") -> None:
        settled = settle(lab.root, run.folder, ledger=not o["no_ledger"], page=not o["no_page"])
        for line in settled.trouble:
            click.echo(f"lab: {run.record.id}: {line}", err=True)

    return How(
        timeout_s=o["timeout"], cell_timeout_s=o["cell_timeout"], wait=not o["no_wait"], quiet=not sys.stderr.isatty(),
        settle=finish, say=lambda text: click.echo(text, err=True),
    )  # fmt: skip


def concluded(lab: "Lab", sweep: Any, ledger: bool) -> "list[LeverEffect]":
    """The effects of a sweep that is complete, kept with it and entered in LEVERS.md; nothing of one that is not."""
    from labkit.lab.levers import known_levers
    from labkit.lab.sweep_effects import effects_of

    effects = effects_of(lab.root, sweep.file, known_levers(lab.root))
    if not sweep.missing() and sweep.file.ended is None:
        sweep.finish([effect.model_dump(mode="json") for effect in effects])
    if not sweep.missing() and ledger:
        from labkit.lab.ledger import enter_sweep

        enter_sweep(lab.root, sweep.file.id, sweep.file.experiment, effects)
    return effects


def show(lab: "Lab", file: "SweepFile", effects: "list[LeverEffect]", as_json: bool) -> None:
    """The table of states and the effects, as text or JSON."""
    from labkit.lab.lever_effect import effect_line
    from labkit.lab.sweep_file import remarks, table, text_table

    rows = table(lab.root, file)
    if as_json:
        document = {
            "sweep": file.id, "experiment": file.experiment, "fixed": file.fixed, "grid": file.grid, "begun": file.begun,
            "ended": file.ended, "warnings": list(file.warnings), "points": rows,
            "effects": [effect.model_dump(mode="json") for effect in effects],
        }  # fmt: skip
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    click.echo("\n".join([text_table(rows), *remarks(rows)]))
    for effect in effects:
        click.echo(effect_line(effect))


def ending(lab: "Lab", sweep: Any, effects: "list[LeverEffect]", stopped: bool) -> int:
    """The exit code, and the line that says what follows."""
    left = len(sweep.missing())
    if left:
        why = "stopped" if stopped else "they did not fit or failed"
        click.echo(f"{left} of {len(sweep.file.points)} points are missing ({why}); --resume runs them", err=True)
        return 1
    if any(effect.control_moved for effect in effects):
        click.echo(
            "a negative control moved: the measurement is at fault, and no effect of this sweep counts", err=True
        )
        return 3
    return 0
