"""What follows a final run folder: its ledger entry, its picture, its page, and the words about them."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.lab.record import RunRecord, audit_fails, read_record, was_refused


@dataclass(frozen=True)
class Settled:
    """What was written after the run; `trouble` holds a line for each thing that could not be."""

    events: tuple[Path, ...]
    picture: Path | None
    page: Path | None
    trouble: tuple[str, ...]


def settle(
    root: Path, folder: Path, ledger: bool = True, page: bool = True, say: Callable[[str], None] = lambda text: None
) -> Settled:
    """Enters a completed run in the ledger, draws its picture and renders its page.

    The record is safe by then, so one of these failing does not keep the others from being done. `say` is told what
    takes a moment."""
    record = read_record(folder)
    page = page and record.state != "killed"  # whoever stopped it does not want to wait; `lab publish` renders it
    trouble: list[str] = []
    events: list[Path] = []
    picture = rendered = None
    if record.state == "completed":
        if ledger:
            try:
                events = enter_ledger(root, folder)
            except LabError as error:
                trouble.append(f"no ledger entry: {error}")
        if page and (folder / "figure.json").exists():
            say("drawing the figure")
        try:
            picture = draw_picture(root, folder, record) if page else None
        except LabError as error:
            trouble.append(f"no picture: {error}")
    if page:
        say("rendering the page")
    try:
        rendered = render_page(root, folder) if page else None
    except LabError as error:
        trouble.append(f"no page: {error}")
    return Settled(tuple(events), picture, rendered, tuple(trouble))


def enter_ledger(root: Path, folder: Path) -> list[Path]:
    """Adds the run to the ledger; the event files written."""
    from labkit.lab import ledger

    return list(ledger.append(root, folder))


def draw_picture(root: Path, folder: Path, record: RunRecord) -> Path | None:
    """Draws the run's main figure as `figures/<experiment>.png`, the newest of its experiment; None without one."""
    figure = folder / "figure.json"
    if not figure.exists():
        return None
    from labkit.lab import figures

    target = root / "figures" / f"{record.experiment}.png"
    if target.exists() and (record.verdict or {}).get("strength") == "look":
        return None  # a look does not take the place of a result's picture; its page shows its own
    target.parent.mkdir(exist_ok=True)
    if not figures.write_png(figure, target):
        raise LabError("drawing a PNG needs Chrome or Chromium, and none was found; the page draws the figure anyway")
    return target


def render_page(root: Path, folder: Path) -> Path:
    """Renders the run's HTML page."""
    from labkit.lab.publish import publish_run

    return Path(publish_run(root, folder))


def report(root: Path, folder: Path, settled: Settled) -> None:
    """Tells the person on stderr how the run ended, where to look and what to do next."""
    record = read_record(folder)
    lines = [f"{record.experiment}: {record.state}{': ' + record.reason if record.reason else ''}"]
    if record.verdict:
        lines.append(f"verdict: {verdict_line(record)}")
    lines += audit_lines(folder)
    failed = [check.name for check in record.checks if not check.passed]
    if failed:
        lines.append(f"failed checks: {', '.join(failed)}")
    lines += settled.trouble
    lines.append(f"  record  {shown(folder)}")
    log = folder / "log.txt"
    if record.state != "completed" and log.is_file() and log.stat().st_size:
        lines.append(f"  log     {shown(log)}")
    if settled.picture:
        lines.append(f"  figure  {shown(settled.picture)}")
    if settled.page:
        lines.append(f"  page    {shown(settled.page)}")
    if settled.events:
        lines.append(f"  ledger  {shown(root / 'FINDINGS.md')}")
    lines.append(f"next: {next_step(record, folder)}")
    print("\n".join(lines), file=sys.stderr)


def audit_lines(folder: Path) -> list[str]:
    """What the audit kept in a run's folder warns of and fails, root causes alone."""
    from labkit.audit.stored import read_kept

    kept = read_kept(folder)
    groups = kept.audit.groups() if kept is not None else []
    return [f"audit: {group.outcome}, {group.root.detector}: {group.root.text}" for group in groups]


def verdict_line(record: RunRecord) -> str:
    """The verdict's outcome and the words it gives for it."""
    verdict = record.verdict or {}
    outcome, words = str(verdict.get("outcome", "")), str(verdict.get("sentence") or verdict.get("reason") or "")
    return f"{outcome}: {words}" if words else outcome


def next_step(record: RunRecord, folder: Path) -> str:
    """The command that most likely follows."""
    if record.state == "completed" and audit_fails(folder):
        waive = f"./lab ledger waive {record.id} DETECTOR --reason ..."
        if not (folder / "plan.json").exists():
            return (
                f"./lab audit {record.id} shows the arithmetic; a run without a plan is in no ledger: its fails stand on "
                f"its page, until {waive} sets one aside"
            )
        return f"./lab audit {record.id} shows the arithmetic; {waive} lets the run count all the same"
    if record.state == "completed":
        return "./lab notebook to look into it, ./lab publish to share it"
    if record.state in ("killed", "timed-out", "crashed"):
        return f"./lab run --resume {record.id} measures what is missing"
    if was_refused(record, folder):
        if "ParameterError" in record.reason:
            return f"./lab rerun {record.id} -p NAME VALUE, with a value that is accepted"
        return f"./lab rerun {record.id} once what it says is put right"
    return f"./lab rerun {record.id} once the notebook is put right"


def shown(path: Path) -> str:
    """A path as short as it can be from where the person is."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("../..") else str(path)
