"""What the ledger holds of each question, for the index, and what it lets each run claim, for the run's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.lab.entries import Entry, entry_of, read_book
from labkit.lab.events import EntryEvent, Events, Waiver, read_events
from labkit.lab.publish.summary import SIGNS, Badge
from labkit.lab.recheck import Fault, verify
from labkit.lab.redact import Scrubber
from labkit.lab.verdict import count

FILE = "data/ledger"
MISSING = "cannot be recomputed here: the run is not in this lab"


@dataclass(frozen=True)
class Standing:
    """A live entry: the verdict pooled over the sessions of one scope. `ledger` and `anchor` are where it stands."""

    question: str
    belief: str
    verdict: Badge
    result: str
    device: str
    model: str
    day: str
    ledger: str
    anchor: str
    disagrees: tuple[str, ...] = ()  # what verifying its runs found
    missing: tuple[str, ...] = ()  # its runs that are not in this lab


@dataclass(frozen=True)
class Claims:
    """What a run's notebook claims and its data bear out, what was withheld and why, and what should not be claimed."""

    can: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()


@dataclass(frozen=True)
class LedgerView:
    """The ledger, read and verified: its live entries, newest first, and the claims of each run in it. `disagrees` says
    of a run, of an entry's anchor, and of a ledger's file name what does not agree with the data; `missing` names, of an
    entry's anchor and of a run, the runs that are not in this lab, without which it cannot be recomputed; `waived` says
    of a run which faults a person set aside, and why."""

    standings: tuple[Standing, ...] = ()
    claims: Mapping[str, Claims] = field(default_factory=dict)
    disagrees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waived: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_ledger_view(
    root: Path, scrubber: Scrubber, fresh: bool = True, known: Mapping[str, Sequence[Fault]] | None = None
) -> LedgerView:
    """Reads the ledger's events and verifies every entry; not `fresh`, only events that this process has not read yet
    are read. `known` are the faults of runs and sweeps that were recomputed a moment ago. What is damaged or does not
    agree is listed in `problems`."""
    events = read_events(root, fresh=fresh)
    book = read_book(events)
    scrubber.file = FILE
    faults = verify(root, fresh=False, known=known).faults
    wrong = [fault for fault in faults if fault.kind != "missing"]
    missing: dict[str, tuple[str, ...]] = {fault.where: (fault.where,) for fault in faults if fault.kind == "missing"}
    disagrees: dict[str, tuple[str, ...]] = {}
    for fault in wrong:
        text = scrubber.text(fault.text)
        for name in filter(None, (fault.where, fault.entry)):
            disagrees[name] = (*disagrees.get(name, ()), text)
    for entry in book.entries:
        runs = [entry_of(item).run for item in (*entry.older, *entry.stored)]
        found = tuple(f"{run}: {text}" for run in runs for text in disagrees.get(run, ()))
        if found:
            disagrees[entry.anchor] = (*disagrees.get(entry.anchor, ()), *found)
        if gone := tuple(run for run in runs if run in missing):
            missing[entry.anchor] = gone
    standings = tuple(
        standing(entry, scrubber, disagrees.get(entry.anchor, ()), missing.get(entry.anchor, ())) for entry in book.live
    )
    claims, waived = let_claim(events, scrubber)
    problems = tuple(scrubber.text(str(fault)) for fault in wrong)
    return LedgerView(standings, claims, disagrees, missing, waived, problems)


def let_claim(events: Events, scrubber: Scrubber) -> tuple[dict[str, Claims], dict[str, tuple[str, ...]]]:
    """What the ledger lets each of its runs claim, and which faults of a run a person set aside."""
    claims = {event.run: claims_of(event, scrubber) for event in events.of(EntryEvent)}
    waived: dict[str, tuple[str, ...]] = {}
    for one in events.of(Waiver):
        waived[one.run] = (*waived.get(one.run, ()), scrubber.text(f"{one.fault}, {one.day}: {one.reason}"))
    return claims, waived


def standing(entry: Entry, scrubber: Scrubber, disagrees: tuple[str, ...], missing: tuple[str, ...] = ()) -> Standing:
    """An entry as the index shows it."""
    verdict = entry.verdict
    evidence = f"{count(verdict.pairs, 'pair' if verdict.ratio else 'repetition')} in {count(verdict.runs, 'session')}"
    words = [verdict.strength, evidence, "planned after its data" if verdict.retrospective else ""]
    detail = " · ".join(word for word in words if word)
    text = scrubber.text
    return Standing(
        question=text(entry.plan.question or entry.plan.belief),
        belief=text(entry.plan.belief),
        verdict=Badge(verdict.outcome, SIGNS[verdict.outcome], verdict.outcome, detail),
        result=verdict.number(),
        device=text(entry.scope.device),
        model=text(entry.scope.model),
        day=entry.day,
        ledger=entry.ledger,
        anchor="looks" if entry.look else entry.anchor,
        disagrees=disagrees,
        missing=missing,
    )


def claims_of(event: EntryEvent, scrubber: Scrubber) -> Claims:
    """What the ledger lets a run claim."""
    text = scrubber.text
    return Claims(
        can=tuple(text(claim.text) for claim in event.claims if not claim.withheld),
        withheld=tuple(text(f"{claim.text} ({claim.withheld})") for claim in event.claims if claim.withheld),
        cannot=tuple(map(text, event.should_not_claim)),
    )
