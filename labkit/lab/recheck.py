"""Verifying the ledger: every entry recomputed from its run's files, every file compared with what the events give."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.errors import LabError, LedgerError
from labkit.lab.capture import sha256_file
from labkit.lab.coverage import Coverage
from labkit.lab.entries import entry_of, read_book
from labkit.lab.events import CoverageEvent, EntryEvent, Events, SweepEvent, read_events
from labkit.lab.ledger import entry_event, shows
from labkit.lab.ledger_files import read_ledger
from labkit.lab.lever_ratio import recompute
from labkit.lab.plan import cell_words
from labkit.lab.record import RunRecord, read_record
from labkit.lab.render import LEDGERS, Block, render_book

TOLERANCE = 1e-9  # relative; what another version of NumPy may differ by


class Fault(NamedTuple):
    """Something that does not agree; `where` is a run, an event or a ledger. `missing` is what could not be judged, since
    the run is not on this machine."""

    kind: Literal["damaged", "changed", "edited", "stale", "missing"]
    where: str
    text: str
    entry: str = ""  # the anchor of the entry that is wrong in a file

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Verified(NamedTuple):
    """How many runs' entries there are, how many notes and imported pieces, which have no samples to recompute them
    from, and what does not agree."""

    entries: int
    faults: tuple[Fault, ...]
    by_hand: int = 0
    imported: int = 0

    @property
    def missing(self) -> int:
        """How many entries could not be recomputed."""
        return sum(fault.kind == "missing" for fault in self.faults)

    @property
    def sound(self) -> bool:
        """Whether everything that could be judged agrees."""
        return all(fault.kind == "missing" for fault in self.faults)


def verify(root: Path, fresh: bool = True, known: Mapping[str, Sequence[Fault]] | None = None) -> Verified:
    """Recomputes every entry of the lab at `root` and looks for edits and events the files do not show.

    Reads every event from the disk and checks its hash; not `fresh`, only those this process has not read yet. `known`
    are the faults of runs and sweeps that were recomputed a moment ago, which is not done again. Changes nothing."""
    known = known or {}
    events = read_events(root, fresh=fresh)
    faults = [Fault("damaged", line.partition(" ")[0], line.partition(" ")[2]) for line in events.damaged]
    entries = [entry_of(item) for item in events.stored if isinstance(item.event, EntryEvent)]
    covered = {event.run: event.coverage for event in events.of(CoverageEvent)}
    for entry in entries:
        done = known.get(entry.run)
        faults += recheck(root, entry, entry.coverage or covered.get(entry.run)) if done is None else done
    for item in events.stored:
        if isinstance(item.event, SweepEvent):
            done = known.get(item.name)
            faults += recheck_sweep(root, item.event) if done is None else done
    book = read_book(events)
    faults += [Fault("changed", "data/ledger", problem) for problem in book.problems]
    now = render_book(book)
    for name in LEDGERS:
        faults += file_faults(root / name, events, now[name])
    return Verified(len(entries), tuple(faults), len(book.notes), len(book.imported))


def recheck_sweep(root: Path, event: SweepEvent) -> list[Fault]:
    """What the effects of a sweep are by the samples of its runs, where they are here and say otherwise."""
    found = []
    for effect in event.effects:
        folders = [root / "data" / "runs" / run for run in effect.runs]
        if not all((folder / "measurements.csv").is_file() for folder in folders):
            continue  # its entry, or `lab sweep`, says that the run is not here
        try:
            ratio, low, high, _ = recompute(effect, folders[0], folders[1])
        except LabError as error:
            found.append(Fault("damaged", effect.runs[0], str(error)))
            continue
        kept = (effect.ratio, effect.low, effect.high)
        if not all(close(a, b) for a, b in zip(kept, (ratio, low, high), strict=True)):
            words = f"{effect.old} to {effect.new} is {ratio:.6g}× by its samples and {effect.ratio:.6g}× in the ledger"
            found.append(Fault("changed", event.sweep, words))
    return found


def close(a: float | None, b: float | None) -> bool:
    """Whether two ends of an interval agree, or both are missing."""
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=TOLERANCE))


def file_faults(path: Path, events: Events, blocks: Sequence[Block]) -> list[Fault]:
    """What a ledger's file says that its events do not give, or leaves out: `blocks` are the fresh rendering."""
    name = path.name
    try:
        file, current = read_ledger(path), shows(path, events)
    except LedgerError as error:
        return [Fault("damaged", name, str(error).partition(f"{name} ")[2])]
    if file.merged:
        return [Fault("stale", name, "was merged by git line by line; `lab ledger render` renders it")]
    found = []
    for block in file.edited:
        place = f"the entry {block.anchor}" if block.anchor else "text above the first entry, below the line,"
        text = f"{place} was edited by hand; `lab ledger render` keeps the edit"
        found.append(Fault("edited", name, text, block.anchor))
    if not current and events.damaged and file.state == events.whole_state:
        return found  # it shows all events and the damaged one, which has a fault of its own
    if not current and (events.stored or file.state):  # a ledger without events needs no rendering
        return [*found, Fault("stale", name, "does not show every event; `lab ledger render` renders it")]
    fresh = {block.anchor: block.text.strip() for block in blocks}
    there = {block.anchor for block in file.blocks}
    if gone := ", ".join(sorted(set(fresh) - there)):
        found.append(Fault("edited", name, f"{gone} was removed by hand; `lab ledger render` brings it back"))
    for block in file.blocks:
        if not block.edited and fresh.get(block.anchor) != block.text:
            other = "is not what its events give" if block.anchor in fresh else "comes from no event"
            text = f"the entry {block.anchor} {other}: written by hand, or by another version; `lab ledger render`"
            found.append(Fault("edited", name, text, block.anchor))
    return found


def recheck(root: Path, event: EntryEvent, coverage: Coverage | None) -> list[Fault]:
    """What in an entry, and in what is kept of its run's coverage, is not what the run's files give now."""
    folder = root / "data" / "runs" / event.run
    if not (folder / "run.json").exists():
        return [Fault("missing", event.run, "the run is not on this machine, so its entry cannot be recomputed")]
    try:
        record = read_record(folder)
        now = entry_event(record, folder, event.utc)
    except LabError as error:
        return [Fault("changed", event.run, f"cannot be recomputed: {error}")]
    found = list(number_faults(event, now))
    for name in ("outcome", "strength", "effect", "low", "high", "pairs", "retrospective"):
        before, after = getattr(event.verdict, name), getattr(now.verdict, name)
        if not same(before, after):
            found.append(f"{name} is {shown(before)} in the ledger; the data give {shown(after)}")
    if not same(event.verdict.values, now.verdict.values):
        found.append("the effects by block are not those of measurements.csv")
    claimed = (record.verdict or {}).get("outcome")
    if claimed and claimed != now.verdict.outcome:
        found.append(f"run.json says {claimed}; its samples give {now.verdict.outcome}")
    if event.measurements_sha256 != now.measurements_sha256:
        found.append("measurements.csv is not the file that was entered: its SHA-256 differs")
    found += [
        f"its {name.replace('_', ' ')} was changed since"
        for name in ("plan_hash", "checks", "faults", "should_not_claim", "commit")
        if getattr(event, name) != getattr(now, name)
    ]
    found += [
        f"its {name} was {before}; run.json now gives {after}"
        for name, before in event.scope
        if before != (after := getattr(now.scope, name))
    ]
    found += [
        f"the claim {claim.text!r}: {claim.withheld}"
        for claim in now.claims
        if claim.withheld and claim not in event.claims
    ]
    if [claim.text for claim in event.claims] != [claim.text for claim in now.claims]:
        found.append("its claims were changed since")
    if coverage is not None and coverage != now.coverage:
        found.append("what it covered (streams, depths, lengths, contents) is not what its files say")
    found += [*artefact_faults(record, folder), *audit_faults(root, folder)]
    return [Fault("changed", event.run, text) for text in found]


def audit_faults(root: Path, folder: Path) -> Iterator[str]:
    """A line when the audit kept in a run's folder, which stands for one made now, is not what the detectors give."""
    from labkit.audit.registry import stamps
    from labkit.audit.report import audit
    from labkit.audit.run_evidence import read_run
    from labkit.audit.stored import inputs_of, read_kept

    kept = read_kept(folder)
    if kept is None or kept.audit.stamps != stamps() or kept.inputs != inputs_of(folder, root):
        return  # it is made anew whenever it is asked for
    if audit(read_run(folder, root)) != kept.audit:
        yield "audit.json is not what the detectors give; remove it and `lab audit` makes it anew"


def artefact_faults(record: RunRecord, folder: Path) -> Iterator[str]:
    """A line for each file of a run that is gone or is not the one whose hash its record holds."""
    for name, known in record.artefacts.items():
        path = folder / name
        if not path.is_file():
            yield f"its {name} is gone"
        elif name != "measurements.csv" and sha256_file(path) != known:  # that one is compared with the entry
            yield f"its {name} is not the file that the run left: its SHA-256 differs"


def number_faults(event: EntryEvent, now: EntryEvent) -> Iterator[str]:
    """A line for each number the entry refers to that is another in the record now."""
    after = {(number.metric, number.cell): number for number in now.numbers}
    for number in event.numbers:
        other = after.get((number.metric, number.cell))
        where = f"{number.metric} at {cell_words(json.loads(number.cell))}"
        if other is None:
            yield f"{where} is {number.value:.6g} in the ledger; measurements.csv has none"
        elif not same(number.value, other.value) or number.n != other.n:
            yield (
                f"{where} is {number.value:.6g} over {number.n} blocks in the ledger; measurements.csv gives "
                f"{other.value:.6g} over {other.n}"
            )


def same(a: Any, b: Any) -> bool:
    """Equal, numbers to the tolerance."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-300)
    return bool(a == b)


def shown(value: Any) -> str:
    """A value as a line of text has it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
