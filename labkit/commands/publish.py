"""`lab publish`: the lab as a static site that needs no network."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from labkit.lab.publish import Report


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make (default: site/ in the lab).")
@click.option(
    "--strict", is_flag=True, help="Publish nothing (exit 2) if anything holds a secret, disagrees or lost its run."
)
@click.option("--jobs", type=click.IntRange(1, 8), help="Processes that make pages at once (default: one a core).")
@click.option(
    "--pictures",
    is_flag=True,
    help="First draw the PNGs that figures/ lacks or has of an older run (needs Chrome or Chromium).",
)
@click.option("--dry-run", is_flag=True, help="Say what it would reveal, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was published as JSON.")
def command(out: Path | None, strict: bool, jobs: int | None, pictures: bool, dry_run: bool, as_json: bool) -> None:
    """Make the static site: an index by question, a page a run, the ledgers. Opens from disk, loads nothing else.

    Every entry of the ledger is recomputed from its data on the way; one that does not agree is marked on its pages. A page
    whose run, entry and links have not changed since the last publish stays.
    """
    from labkit.lab.lab import find_root
    from labkit.lab.publish import publish

    report = publish(find_root(), out, strict=strict, jobs=jobs, pictures=pictures, dry_run=dry_run)
    click.echo(report.to_json() if as_json else describe(report, dry_run))


def describe(report: "Report", dry_run: bool = False) -> str:
    """The report in a few lines: what is revealed, what was masked, what was not right, where to look."""
    lines = [
        f"{'would publish' if dry_run else 'published'} {report.pages} pages ({report.runs} runs, {report.figures} figures), "
        f"{report.files} files, {report.bytes / 1e6:.1f} MB; made {report.made} of the runs' pages anew",
        *(["a reader finds in them:"] if report.reveals else []),
        *(f"  {line}" for line in report.reveals),
    ]
    if report.redactions:
        lines.append("masked before publishing:")
        lines += [f"  {hit.file}: {hit.times} {hit.kind}{'s' if hit.times != 1 else ''}" for hit in report.redactions]
    else:
        lines.append("nothing had to be masked (secrets, home paths, host and user names)")
    lines += [f"problem: {text}" for text in report.problems]
    if report.without_picture:
        names = ", ".join(report.without_picture)
        lines.append(f"figures/ has no picture of {names}, or that of an older run: lab publish --pictures draws it")
    lines.append("nothing was written" if dry_run else f"open {Path(report.out) / 'index.html'}")
    return "\n".join(lines)
