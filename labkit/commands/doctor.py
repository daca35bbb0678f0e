"""`lab doctor`: what this machine has of what labkit needs, and what to do about each thing missing."""

import dataclasses
import json as json_module
import sys

import click

MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "missing": ("✗", "red")}


@click.command(name="doctor")
@click.option("--install-driver", is_flag=True, help="Install Mesa's software driver with apt where there is none.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(install_driver: bool, as_json: bool) -> None:
    """Print what was found and what to do about what is missing. Exit code 0 if a run can work here, else 2."""
    if install_driver:
        from labkit.vulkan.debian import install_driver as install

        install(say=lambda line: click.echo(f"lab: {line}", err=True))
        return
    from labkit.diagnosis import examine

    report = examine()
    missing = [finding for findings in report.values() for finding in findings if finding.state == "missing"]
    if as_json:
        checks = {title: [dataclasses.asdict(f) for f in findings] for title, findings in report.items()}
        click.echo(json_module.dumps({"can_run": not missing, "checks": checks}, indent=1))
    else:
        for title, findings in report.items():
            click.secho(title, bold=True)
            for finding in findings:
                mark, colour = MARKS[finding.state]
                click.echo(f"  {click.style(mark, fg=colour)} {finding.name}: {finding.found}")
                if finding.remedy:
                    click.echo(f"      → {finding.remedy}")
        if missing:
            click.echo(f"\na run cannot work here yet: {len(missing)} thing{'s' * (len(missing) > 1)} missing (✗)")
        else:
            click.echo("\na run can work here")
    sys.exit(2 if missing else 0)
