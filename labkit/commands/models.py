"""`lab models`: what is in the catalogue, in this lab and elsewhere on the disk; fetching and checking model files."""

import json
from typing import Any

import click


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List model files: the catalogue's, this lab's, and those other programs keep on this machine."""
    if context.invoked_subcommand is None:
        _list(as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_command(as_json: bool) -> None:
    """List model files; the same as `lab models` alone."""
    _list(as_json)


@command.command("pull")
@click.argument("source")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a line.")
def pull_command(source: str, as_json: bool) -> None:
    """Fetch SOURCE into this lab and check it: a catalogue name, hf:owner/repository/file.gguf, or a .gguf path."""
    from labkit.models.catalogue import pull

    pulled = pull(source)
    if as_json:
        click.echo(json.dumps({"path": str(pulled.path), "fetched": pulled.fetched, "how": pulled.how}))
    else:
        click.echo(f"{pulled.path} ({f'fetched with {pulled.how}' if pulled.fetched else pulled.how})")


@command.command("verify")
@click.argument("source")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a line.")
def verify_command(source: str, as_json: bool) -> None:
    """Compare the SHA-256 of SOURCE with the known one: a catalogue name, hf:… or a .gguf path."""
    from labkit.models.catalogue import verify

    found = verify(source)
    if as_json:
        click.echo(json.dumps(found))
    else:
        against = "as expected" if found["expected"] else "no SHA-256 is known to compare it with"
        click.echo(f"{found['path']}: {found['bytes']} bytes, SHA-256 {found['sha256']}, {against}")


def _list(as_json: bool) -> None:
    listing = _listing()
    if as_json:
        click.echo(json.dumps(listing, indent=2))
        return
    click.echo(f"Catalogue (kept in {listing['models_folder']})")
    for each in listing["catalogue"]:
        click.echo(f"  {each['name']:<16} {each['bytes'] / 1e6:8.1f} MB  {each['state']:<12} {each['about']}")
    for title, key in (("Also in this lab", "stored"), ("Elsewhere on this machine", "elsewhere")):
        if listing[key]:
            click.echo(title)
        for each in listing[key]:
            kind = each["architecture"] or "?"
            click.echo(f"  {each['bytes'] / 1e6:8.1f} MB  {kind:<10} {each['program']:<13} {each['path']}")
    absent = [each["name"] for each in listing["catalogue"] if each["state"] != "here"]
    if absent:
        click.echo(f"Fetch one with `lab models pull {absent[0]}`.")


def _listing() -> dict[str, Any]:
    """The whole listing as plain data, the form `--json` prints."""
    from labkit.models.catalogue import CATALOGUE, models_folder, stored
    from labkit.models.elsewhere import find_elsewhere
    from labkit.models.gguf import peek_architecture

    catalogue = []
    for entry in CATALOGUE.values():
        size = entry.path.stat().st_size if entry.path.is_file() else None
        catalogue.append(
            {
                "name": entry.name,
                "about": entry.about,
                "state": "not fetched" if size is None else "here" if size == entry.nbytes else "damaged",
                "path": str(entry.path),
                "bytes": entry.nbytes,
                "sha256": entry.sha256,
                "source": entry.source.description,
                "licence": entry.licence,
            }
        )
    known = {entry.path for entry in CATALOGUE.values()}
    others = []
    for path in stored():
        if path not in known:
            with path.open("rb") as file:
                kind = peek_architecture(file.read(4096))
            others.append(_row("lab", path.stem, str(path), path.stat().st_size, kind))
    found = [_row(each.program, each.name, str(each.path), each.nbytes, each.architecture) for each in find_elsewhere()]
    return {"models_folder": str(models_folder()), "catalogue": catalogue, "stored": others, "elsewhere": found}


def _row(program: str, name: str, path: str, nbytes: int, architecture: str | None) -> dict[str, Any]:
    return {"program": program, "name": name, "path": path, "bytes": nbytes, "architecture": architecture}
