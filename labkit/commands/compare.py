"""`lab compare`: two runs side by side, with intervals that fit how they were measured, and what else differs."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from labkit.lab.compare import Comparison


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--metric", metavar="M", help="Compare in this metric; else each cell in what it was measured for first.")
@click.option("--json", "as_json", is_flag=True, help="Write the comparison as JSON.")
def command(old: str, new: str, metric: str | None, as_json: bool) -> None:
    """Compare two runs, NEW over OLD, at every cell they share. The start or the end of an id is enough.

    Runs whose blocks were measured in turns are paired by block. All others are one session each: their intervals are
    wider, by how far sessions of the same scope lie apart. Everything that differs is listed, and bounds what may be
    claimed.

    Another driver or build on the same card is judged only beside an anchor, a pinned kernel that both runs measured and
    that five earlier runs under the old driver did too: labkit.lab.anchor.stream_anchor() goes into the plan, and
    measure_anchor(run, device, block) into each block. Where it moved, or has too few sessions, the word is undecided.
    """
    import json

    from labkit.lab.compare import compare_runs
    from labkit.lab.lab import Lab

    lab = Lab()
    found = compare_runs(lab.root, lab.find_run(old), lab.find_run(new), metric)
    if as_json:
        click.echo(json.dumps(found.plain(), indent=2, ensure_ascii=False))
        return
    click.echo(text(found))


def text(found: "Comparison") -> str:
    """The comparison for a terminal."""
    head = ("cell", "metric", "old", "new", "new / old", "word", "blocks")
    rows = [
        (
            cell.cell,
            cell.metric,
            f"{cell.old:.4g}",
            f"{cell.new:.4g}",
            cell.words(),
            cell.word,
            str(cell.blocks[0]) if found.paired else f"{cell.blocks[0]} and {cell.blocks[1]}",
        )
        for cell in found.cells
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [f"old  {found.old}", f"new  {found.new}", ""]
    lines += [
        "  ".join(item.ljust(width) for item, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    lines += ["", f"intervals: {found.how()}"]
    lines += [
        f"  spread between sessions: {basis}" for basis in dict.fromkeys(c.spread for c in found.cells if c.spread)
    ]
    if found.upgrade and found.anchor is not None and not found.anchor.holds:
        lines.append("anchor: does not hold, so nothing is judged across the upgrade")
    if found.anchor is not None and found.anchor.holds:
        low, high = found.anchor.low, found.anchor.high
        lines.append(
            f"anchor: {found.anchor.metric} is {found.anchor.value:.4g}, within {low:.4g} to {high:.4g} as "
            f"{found.anchor.sessions} earlier sessions predict"
        )
    lines += [f"differs: {one.words()}" for one in found.differences] or ["differs: nothing that the records keep"]
    lines += [f"notice: {notice}" for notice in found.notices]
    return "\n".join([*lines, f"claim: {found.bound}"])
