"""`lab rerun`: repeats stored runs, the ledger's findings or a suite, and ends in one page of what changed."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.lab.lab import Lab
    from labkit.lab.suite import Question, SuiteFile
    from labkit.lab.what_changed import Changed


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN... | SUITE.toml]")
@click.option("--findings", is_flag=True, help="Every finding of the ledger that holds, by its newest run.")
@click.option("-p", "assigned", nargs=2, multiple=True, metavar="NAME VALUE", help="Change a parameter (repeatable).")
@click.option("--budget", metavar="TIME", help="How long it may take: 6h, 90m. What does not fit is not run.")
@click.option("--here", is_flag=True, help="One RUN of another card on this one; say whether the two verdicts agree.")
@click.option("--resume", is_flag=True, help="Take up the same request where it was left.")
@click.option("--dry-run", is_flag=True, help="Check everything and say what would run.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each run.")
@click.option("--cell-timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Limit for each cell.")
@click.option("--no-ledger", is_flag=True, help="Keep the records, but enter nothing in the ledger.")
@click.option("--no-page", is_flag=True, help="Draw no pictures and render no pages of runs.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--name", help="A label kept in the record of a single run.")
@click.option("--json", "as_json", is_flag=True, help="Write the new record (of one RUN), or what changed, as JSON.")
def command(targets: tuple[str, ...], **o: Any) -> None:
    """Run experiments again, as new runs, and say what changed: verdicts, speeds with intervals, conditions.

    One RUN repeats that run; the start or the end of an id is enough. Several, --findings or a SUITE.toml are run in
    turn, survive a kill (--resume), and keep to a --budget. The notebooks are those of today: what changed in them since
    is part of what a rerun tests. The page of what changed is kept in data/reruns.
    """
    from labkit.errors import ParameterError
    from labkit.lab.lab import Lab

    lab = Lab()
    if bool(targets) == o["findings"]:
        raise ParameterError("name runs or a SUITE.toml, or give --findings: one of these is run again")
    single = len(targets) == 1 and not targets[0].endswith(".toml")
    alone = single and not (o["budget"] or o["resume"] or o["dry_run"])
    if o["here"] and not alone:
        raise ParameterError("--here repeats one RUN, without --budget, --resume or --dry-run")
    if alone:
        repeat(lab, targets[0], o)
        return
    name, questions, definition = asked_for(lab, targets, o)
    repeat_all(lab, name, questions, definition, o)


def repeat(lab: "Lab", run_id: str, o: dict[str, Any]) -> None:
    """One run again, with its report, and what changed since."""
    from labkit.lab.driver import run_experiment, stored_experiment, stored_overrides
    from labkit.lab.here import compare_here, for_this_card
    from labkit.lab.parameters import set_parameters
    from labkit.lab.record import exit_code
    from labkit.lab.settle import report, settle
    from labkit.lab.suite import reruns_folder
    from labkit.lab.what_changed import changed, write_page

    before = lab.find_run(run_id)
    experiment = stored_experiment(lab, before.record)
    new = set_parameters(experiment.parameters, dict(o["assigned"]))
    overrides = stored_overrides(experiment, before.record, replaced=new) | new
    if o["here"]:
        overrides = for_this_card(overrides, new)
    run = run_experiment(
        lab,
        experiment,
        overrides,
        name=o["name"] or before.record.name,
        timeout_s=o["timeout"],
        cell_timeout_s=o["cell_timeout"],
        wait=not o["no_wait"],
    )
    settled = settle(
        lab.root,
        run.folder,
        ledger=not o["no_ledger"],
        page=not o["no_page"],
        say=lambda text: click.echo(text, err=True),
    )
    report(lab.root, run.folder, settled)
    if o["here"] and run.record.state == "completed":
        click.echo("\n".join(compare_here(before, run)), err=o["as_json"])
    if run.record.state == "completed":
        found = [changed(lab.root, before, run)]
        tell(
            found, write_page(reruns_folder(lab.root), run.record.id, f"What changed in {experiment.name}", found), True
        )
    if o["as_json"]:
        click.echo(run.record.to_json(), nl=False)
    sys.exit(exit_code(run.record, run.folder))


def asked_for(lab: "Lab", targets: tuple[str, ...], o: dict[str, Any]) -> "tuple[str, list[Question], str]":
    """The name of the request, its questions, and what stands for it. ParameterError before anything runs."""
    from labkit.errors import ParameterError
    from labkit.lab.suite import digest_of, question_of_run, questions_of_file, questions_of_findings

    files = [target for target in targets if target.endswith(".toml")]
    if files and len(targets) > 1:
        raise ParameterError("give one SUITE.toml, or runs, not both")
    if o["name"]:
        raise ParameterError("--name labels a single run")
    if o["assigned"] and (files or o["findings"]):
        raise ParameterError("-p changes runs that are named; a suite holds its own parameters")
    if o["findings"]:
        return "findings", questions_of_findings(lab), digest_of("findings")
    if files:
        name, questions = questions_of_file(lab, Path(files[0]))
        return name, questions, digest_of([name, [question.model_dump(exclude={"before"}) for question in questions]])
    questions = [question_of_run(lab, lab.find_run(target).record, dict(o["assigned"])) for target in targets]
    return "runs", questions, digest_of([question.model_dump() for question in questions])


def repeat_all(lab: "Lab", name: str, questions: "list[Question]", definition: str, o: dict[str, Any]) -> None:
    """Runs what is missing of a suite and writes the page, whatever came of it."""
    from labkit.commands.sweep import how
    from labkit.errors import RunError
    from labkit.lab.night import disk_trouble
    from labkit.lab.series import Night, read_duration
    from labkit.lab.suite import Suite, new_suite, reruns_folder, unfinished_suite, what_changed
    from labkit.lab.what_changed import write_page

    budget = read_duration(o["budget"]) if o["budget"] else None
    known = unfinished_suite(lab.root, definition) if o["resume"] else None
    file: SuiteFile = known or new_suite(name, questions, definition)
    todo = [question for question in file.points if not question.trouble]
    if trouble := disk_trouble(lab.root, todo[0].experiment if todo else "", len(todo)):
        raise RunError(trouble)
    if o["dry_run"]:
        show_questions(file, o["as_json"])
        return
    suite, night = Suite(lab, file), Night(budget)
    with suite:
        click.echo(f"suite {file.id}: {len(suite.missing())} of {len(file.points)} questions to ask", err=True)
        with night.listening():
            suite.run(night, how(lab, o))
        suite.finish()
        found = what_changed(lab, suite.file)
        written = write_page(reruns_folder(lab.root), file.id, f"What changed: {name}", found)
        left = len(suite.missing())
    tell(found, written, err=o["as_json"])
    if o["as_json"]:
        click.echo(json.dumps([one.plain() for one in found], indent=2, ensure_ascii=False, default=str))
    if left:
        why = "stopped" if night.stopped else "they did not fit or failed"
        click.echo(f"{left} questions are left ({why}); --resume asks them", err=True)
    sys.exit(1 if left else 0)


def show_questions(file: "SuiteFile", as_json: bool) -> None:
    """What would run."""
    if as_json:
        click.echo(json.dumps([question.model_dump() for question in file.points], indent=2, ensure_ascii=False))
        return
    for question in file.points:
        against = f"  against {question.before}" if question.before else "  for the first time"
        click.echo(f"{question.label}{f'  cannot: {question.trouble}' if question.trouble else against}")


def tell(found: "list[Changed]", written: tuple[Path, Path], err: bool) -> None:
    """What changed, as text, and where the page is; on stderr where stdout holds JSON or a run's report is there too."""
    from labkit.lab.settle import shown
    from labkit.lab.what_changed import lines_of, summary

    lines = [summary(found)]
    for one in found:
        head, _, *rest = lines_of(one)
        lines += ["", f"{head.removeprefix('### ')} ({one.kind})", *rest]
    lines.append(f"\nwhat changed: {shown(written[0])} and {written[1].name}")
    click.echo("\n".join(lines), err=err)
