"""`lab runtimes`: the engines that can be asked, which of them run here and why others do not, what an address can do."""

import dataclasses
import json
import sys
import threading
import time
from typing import Any

import click

from labkit.errors import LabError, ParameterError

DEFAULT_S = 60.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("specs", nargs=-1, metavar="[SPEC]...")
@click.option(
    "--timeout", "within_s", type=click.FloatRange(0.1, 3600), default=DEFAULT_S, show_default=True, metavar="SECONDS",
    help="How long addresses may take to answer.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(specs: tuple[str, ...], within_s: float, as_json: bool) -> None:
    """List the runtimes a model can be asked through, and whether each can run here. Nothing is started.

    SPEC: some of them by name, or the address of an OpenAI-compatible server, http://HOST:PORT[/v1][#model], which is asked
    a few requests of two tokens to find out what it can. A key is taken from LABKIT_ENDPOINT_KEY. Ends with 2 when an
    address does not answer.

    \b
      lab runtimes
      lab runtimes xllamacpp http://127.0.0.1:8000/v1
    """
    from labkit.runtimes.opening import is_address
    from labkit.runtimes.registry import kinds

    known = kinds()
    named = [spec for spec in dict.fromkeys(specs) if not is_address(spec)] if specs else list(known)
    if unknown := [spec for spec in named if spec.partition(":")[0] not in known]:
        raise ParameterError(
            f"the runtime {unknown[0][:80]!r} is not known: use {', '.join(known)}, or an address http://..."
        )
    rows = []
    for spec in named:
        name, _, argument = spec.partition(":")
        why = known[name].missing(argument)
        rows.append({"name": spec, "about": known[name].about, "here": why is None, "why_not": why})
    found = look([spec for spec in dict.fromkeys(specs) if is_address(spec)], within_s)
    if as_json:
        click.echo(json.dumps({"runtimes": rows, "addresses": found}, indent=2, ensure_ascii=False))
    else:
        for row in rows:
            click.echo(f"{row['name']:<16} {'here' if row['here'] else 'not here':<9} {row['about']}")
            if row["why_not"]:
                click.echo(f"{'':<26} {row['why_not']}")
        for each in found:
            click.echo("\n".join(lines_of(each)))
    if any(each["why_not"] for each in found):
        sys.exit(2)


def look(specs: list[str], within_s: float) -> list[dict[str, Any]]:
    """What each address says of itself, all asked at once; one that takes longer is left to itself."""
    found: dict[str, dict[str, Any]] = {}

    def ask(spec: str) -> None:
        try:
            found[spec] = look_at(spec, within_s)
        except LabError as error:
            found[spec] = silent(spec, str(error))

    threads = [threading.Thread(target=ask, args=(spec,), daemon=True) for spec in specs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [found.get(spec) or silent(spec, f"it gave no whole answer within {within_s:g} s") for spec in specs]


def silent(spec: str, why: str) -> dict[str, Any]:
    """The row of an address that did not answer; its own text may hold a secret, which the reason never does."""
    place = spec.partition("://")[2].partition("/")[0]
    shown = spec.rpartition("@")[2] if "@" in place else spec
    return {"address": shown.partition("?")[0], "here": False, "why_not": why}


def look_at(spec: str, within_s: float) -> dict[str, Any]:
    """What the server at one address can be asked, and what it reports. LabError when it does not answer."""
    from labkit.runtimes.opening import open_address

    with open_address(spec, silence_s=within_s) as runtime:
        return {
            "address": spec, "here": True, "why_not": None, "model": runtime.model, "can": dataclasses.asdict(runtime.can),
            "settings": runtime.settings(), "counters": runtime.counters(), "server": runtime.describe(),
        }  # fmt: skip


def lines_of(found: dict[str, Any]) -> list[str]:
    """An address as text."""
    if not found["here"]:
        return [f"{found['address']}: {found['why_not']}"]
    can = found["can"]
    words = {True: [], False: []}  # type: dict[bool, list[str]]
    for name, value in can.items():
        words[value].append(name.replace("_", " "))
    server = " ".join(str(found["server"][key]) for key in ("server", "version") if found["server"].get(key))
    return [
        f"{found['address']}: {found['model']}{f' ({server})' if server else ''}",
        f"  can      {', '.join(words[True]) or 'nothing of what is looked for'}",
        f"  cannot   {', '.join(words[False]) or 'nothing of what is looked for'}",
        f"  reports  {', '.join(f'{name} {value}' for name, value in found['settings'].items()) or 'no settings'}",
        f"  counts   {', '.join(found['counters']) or 'nothing'}",
    ]
