"""`lab export`: a run as one zip, redacted, with what it reveals."""

from pathlib import Path

import click


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="The zip to write (default: RUN's id.zip)."
)
@click.option("--json", "as_json", is_flag=True, help="Write what was exported as JSON.")
def command(run_id: str, out: Path | None, as_json: bool) -> None:
    """Pack a run into one zip for another lab, and say what it reveals. The start or the end of its id is enough.

    Secrets, home paths, host and user names are masked. `lab import` takes it in.
    """
    import json
    from dataclasses import asdict

    from labkit.lab.export import export_run
    from labkit.lab.lab import Lab
    from labkit.lab.settle import shown

    done = export_run(Lab().find_run(run_id).folder, out)
    if as_json:
        hits = [hit._asdict() for hit in done.redactions]
        click.echo(
            json.dumps(asdict(done) | {"path": str(done.path), "redactions": hits}, indent=2, ensure_ascii=False)
        )
        return
    click.echo(f"exported {len(done.files)} files, {done.bytes / 1e6:.2f} MB (SHA-256 {done.sha256[:12]})")
    click.echo("it reveals:")
    for name, text in done.reveals.items():
        click.echo(f"  {name.ljust(14)} {text}")
    if done.redactions:
        click.echo("masked in it:")
    for hit in done.redactions:
        click.echo(f"  {hit.file}: {hit.times} {hit.kind}{'s' if hit.times != 1 else ''}")
    click.echo(f"send {shown(done.path)}; `lab import` takes it in")
