"""`lab export`: a run as one zip, redacted, with what it reveals; or in the rows of another tool."""

from pathlib import Path

import click


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--as",
    "form",
    metavar="FORMAT",
    default="zip",
    show_default=True,
    help="zip, or another tool's rows, as llama-bench.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE",
    help="The file to write (default: RUN's id.zip; of rows RUN's id.FORMAT.jsonl, a list where FILE ends in .json).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write what was exported as JSON.")
def command(run_id: str, form: str, out: Path | None, as_json: bool) -> None:
    """Pack a run into one zip for another lab, and say what it reveals. The start or the end of its id is enough.

    Secrets, home paths, host and user names are masked. `lab import` takes it in. With --as, its cells are written in
    the rows of another tool; what the run does not tell is null.
    """
    import json
    from dataclasses import asdict

    from labkit.lab.export import export_run
    from labkit.lab.lab import Lab
    from labkit.lab.settle import shown

    run = Lab().find_run(run_id)
    if form != "zip":
        from labkit.lab.exporters.registry import write_as

        written = write_as(run.folder, form, out)
        if as_json:
            click.echo(json.dumps(asdict(written) | {"path": str(written.path)}, indent=2, ensure_ascii=False))
            return
        for line in written.left_out:
            click.echo(f"left out {line}", err=True)
        click.echo(f"exported {written.rows} rows of {form}: {shown(written.path)}")
        return
    done = export_run(run.folder, out)
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
