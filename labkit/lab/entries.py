"""What the events add up to: entries by scope, what overturned what, looks, open problems. A function of the events."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_

from labkit.lab.coverage import Coverage, parse_shape, planned_coverage
from labkit.lab.events import (
    Correction,
    CoverageEvent,
    EntryEvent,
    Events,
    HandEdit,
    ImportedEvent,
    NoteEvent,
    Scope,
    Stored,
    SweepEvent,
    Waiver,
    digest,
)
from labkit.lab.plan import Plan
from labkit.lab.verdict import Verdict, count, pool

UNCHECKED = "unchecked"  # the fault of a timed metric without any correctness check


@dataclass(repr=False)
class Entry:
    """A verdict on one scope, over the sessions it holds so far. `struck_by` is the entry that took its place."""

    scope: Scope
    stored: list[Stored]
    verdict: Verdict
    plan: Plan
    changed: str  # name of the event that last changed it, which dates it
    overturns: "Entry | None" = None
    struck_by: "Entry | None" = None
    retracted: Correction | None = None
    older: list[Stored] = field(default_factory=list)  # sessions an entry it took the place of had already
    invalid: list[Stored] = field(default_factory=list)  # runs of the scope that do not count
    corrections: list[Correction] = field(default_factory=list)
    waivers: list[Waiver] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Its permanent name: that of its first run."""
        return anchor_of(self.stored[0])

    @property
    def events(self) -> list[EntryEvent]:
        """The runs it was made by, oldest first; those of an entry it took the place of stand in `older`."""
        return [entry_of(item) for item in self.stored]

    @property
    def newest(self) -> EntryEvent:
        """Its latest run."""
        return entry_of(self.stored[-1])

    @property
    def coverage(self) -> Coverage:
        """What its runs measured together."""
        known = (entry_of(item).coverage for item in [*self.older, *self.stored])
        return reduce(or_, filter(None, known), Coverage())

    @property
    def look(self) -> bool:
        """Whether it rests on fewer than ten pairs."""
        return self.verdict.strength == "look"

    @property
    def struck(self) -> bool:
        """Whether it no longer holds."""
        return self.struck_by is not None or self.retracted is not None

    @property
    def ledger(self) -> str:
        """The file it stands in."""
        return "FINDINGS.md" if self.verdict.decided or self.look else "OPEN-PROBLEMS.md"

    @property
    def refutes_held_belief(self) -> bool:
        """Whether it refutes a belief that was declared as held, before the data."""
        return self.verdict.outcome == "refuted" and not self.look and self.plan.belief_held

    @property
    def mistake(self) -> bool:
        """Whether it belongs in MISTAKES.md: it overturns a finding, refutes a held belief, or was itself retracted."""
        overturned = self.overturns is not None and self.overturns.verdict.decided
        return overturned or self.refutes_held_belief or self.retracted is not None

    @cached_property
    def day(self) -> str:
        """The date of its last change."""
        return f"{self.changed[:4]}-{self.changed[4:6]}-{self.changed[6:8]}"

    def __repr__(self) -> str:
        held = "struck through" if self.struck else self.verdict.outcome
        return f"<Entry {self.anchor}: {held}, {self.verdict.strength}: {self.plan.belief}>"

    def _repr_html_(self) -> str:
        from labkit.lab.ledger_html import entry_html

        return entry_html(self)


@dataclass(repr=False)
class Book:
    """Everything the ledgers show. `entries` hold looks too; `invalid` are the runs of scopes without any verdict;
    `imported` are the pieces of a person's notes from elsewhere, each once."""

    entries: list[Entry]
    invalid: list[Stored]
    notes: list[Stored]
    imported: list[Stored]
    edits: list[tuple[Stored, HandEdit]]
    problems: list[str]
    corrected: dict[str, list[Correction]] = field(default_factory=dict)  # of notes and imported pieces, by anchor
    sweeps: list[Stored] = field(default_factory=list)  # each once; those of runs that do not hold are left out

    @property
    def live(self) -> list[Entry]:
        """The entries that hold, newest first."""
        return [entry for entry in self.newest_first() if not entry.struck]

    def newest_first(self) -> list[Entry]:
        """All entries, the last changed first."""
        return sorted(self.entries, key=lambda entry: (entry.changed, entry.stored[0].name), reverse=True)

    def looks(self) -> list[Entry]:
        """The newest look of each experiment, unless its rule has had a result since."""
        newest: dict[str, Entry] = {}
        answered: set[str] = set()
        for entry in self.live:
            if not entry.look:
                answered.add(entry.scope.question)
            elif entry.scope.question not in answered:
                newest.setdefault(entry.scope.experiment, entry)
        return list(newest.values())

    def elsewhere(self, entry: Entry) -> list[Entry]:
        """Live results of the same rule under other conditions."""
        return [
            other
            for other in self.live
            if other.scope.question == entry.scope.question and other.scope.id != entry.scope.id and not other.look
        ]

    def find(self, name: str) -> Entry | None:
        """The entry with this anchor, or that holds this run (the live one when two do)."""
        fitting = [
            entry
            for entry in self.newest_first()
            if name == entry.anchor or any(name in (anchor_of(item), entry_of(item).run) for item in entry.stored)
        ]
        return next((entry for entry in fitting if not entry.struck), fitting[0] if fitting else None)

    def __repr__(self) -> str:
        return f"<Ledger: {len(self.live)} {'entry that holds' if len(self.live) == 1 else 'entries that hold'}, {self.beside()}>"

    def beside(self) -> str:
        """What stands in the ledgers beside the entries that hold."""
        struck = sum(entry.struck for entry in self.entries)
        return (
            f"{struck} struck through, {count(len(self.invalid), 'run')} that {'does' if len(self.invalid) == 1 else 'do'} "
            f"not count, {count(len(self.notes), 'note')} by hand, {count(len(self.imported), 'imported piece')}"
        )

    def _repr_html_(self) -> str:
        from labkit.lab.ledger_html import book_html

        return book_html(self)


def anchor_of(stored: Stored) -> str:
    """An event's permanent anchor: `batch-decode-20261201-3fa9c2d1`."""
    event = stored.event
    kind = event.scope.experiment if isinstance(event, EntryEvent) else event.kind
    return f"{kind}-{stored.name[:8]}-{stored.mark}"


def entry_of(stored: Stored) -> EntryEvent:
    """The event as the entry event it is."""
    assert isinstance(stored.event, EntryEvent), stored.name
    return stored.event


def read_book(events: Events) -> Book:
    """Folds the events into the book. The same set of events gives the same book, in whatever order they arrived.

    A run that was added twice (on two branches, say) counts once."""
    runs: set[str] = set()
    scopes: dict[str, list[Stored]] = defaultdict(list)
    covered = {event.run: event.coverage for event in events.of(CoverageEvent)}
    for item in events.stored:
        if isinstance(item.event, EntryEvent) and item.event.run not in runs:
            runs.add(item.event.run)
            scopes[item.event.scope.id].append(with_coverage(item, covered))
    waivers, corrections = events.of(Waiver), [item for item in events.stored if isinstance(item.event, Correction)]
    entries: list[Entry] = []
    without: list[Stored] = []
    for items in scopes.values():
        made, invalid = fold_scope(items, waivers, corrections)
        entries += made
        if not made:
            without += invalid
    notes = [item for item in events.stored if isinstance(item.event, NoteEvent)]
    imported = imported_once(events)
    corrected: dict[str, list[Correction]] = {anchor_of(item): [] for item in (*notes, *imported)}
    problems = []
    for item in events.stored:
        if isinstance(item.event, Correction) and item.event.run in corrected:
            corrected[item.event.run].append(item.event)
        elif isinstance(item.event, Waiver) and not item.event.entered:
            continue  # of a run that is in no entry: it stands on the run's page
        elif isinstance(item.event, Waiver | Correction) and item.event.run not in runs:
            problems.append(f"data/ledger/{item.name} speaks of {item.event.run}, which is not in the ledger")
    edits = [(item, item.event) for item in events.stored if isinstance(item.event, HandEdit)]
    invalid_runs = sorted(without, key=lambda item: item.name, reverse=True)
    book = Book(entries, invalid_runs, notes, imported, edits, problems, corrected)
    holding = {entry_of(item).run for entry in book.live for item in entry.stored}
    book.sweeps = sweeps_once(events, runs - holding)
    return book


def sweeps_once(events: Events, gone: set[str]) -> list[Stored]:
    """The sweeps, each once, without those that are of a run that is `gone`: struck, retracted or not counted."""
    found: dict[str, Stored] = {}
    for item in events.stored:
        if isinstance(item.event, SweepEvent) and item.event.effects and item.event.sweep not in gone:
            found.setdefault(item.event.sweep, item)
    return list(found.values())


def with_coverage(item: Stored, covered: Mapping[str, Coverage]) -> Stored:
    """An entry's event with what its run covered; where nobody kept that, what its plan and its scope say of it."""
    event = entry_of(item)
    if event.coverage is not None:
        return item
    known = covered.get(event.run) or planned_coverage(event.plan, parse_shape(event.scope.shape))
    return Stored(item.name, event.model_copy(update={"coverage": known}))


def imported_once(events: Events) -> list[Stored]:
    """The imported pieces, oldest event first; one that came twice (on two branches, say) stands once."""
    pieces: dict[str, Stored] = {}
    for item in events.stored:
        if isinstance(item.event, ImportedEvent):
            pieces.setdefault(item.event.identity, item)
    return list(pieces.values())


def fold_scope(
    items: list[Stored], waivers: list[Waiver], corrections: list[Stored]
) -> tuple[list[Entry], list[Stored]]:
    """The entries of one scope, oldest first, and its runs that do not count.

    Each run is pooled with those before it. While the outcome stays the same the entry grows; when it differs a new
    entry strikes it. A retraction strikes the entry and begins again with no sessions."""
    runs = {entry_of(item).run for item in items}
    about = [item for item in corrections if isinstance(item.event, Correction) and item.event.run in runs]
    entries: list[Entry] = []
    invalid: list[Stored] = []
    current: Entry | None = None
    sessions: list[Stored] = []
    for item in sorted([*items, *about], key=lambda item: item.name):
        event = item.event
        if isinstance(event, Correction):
            target = next((e for e in reversed(entries) if any(one.run == event.run for one in e.events)), None)
            if target is None:
                continue
            target.corrections.append(event)
            target.changed = max(target.changed, item.name)
            if event.retracts and target is current:
                target.retracted, current, sessions = event, None, []
            continue
        entry = entry_of(item)
        waived = [waiver for waiver in waivers if waiver.run == entry.run]
        if not counts(entry, waived):
            invalid.append(item)
            continue
        sessions.append(item)
        verdict = pooled(sessions)
        if current is not None and (current.look or current.verdict.outcome == verdict.outcome):
            current.verdict, current.plan, current.changed = verdict, entry.plan, item.name
            current.stored.append(item)
            current.waivers += waived
            continue
        new = Entry(entry.scope, [item], verdict, entry.plan, item.name, overturns=current, waivers=waived)
        if current is not None:
            current.struck_by = new
            new.older = sessions[:-1]
        entries.append(new)
        current = new
    if entries:
        entries[-1].invalid = invalid
    return entries, invalid


def counts(event: EntryEvent, waived: Iterable[Waiver]) -> bool:
    """Whether a run may be pooled: it is valid, or everything that spoke against it was waived."""
    if event.verdict.outcome != "invalid":
        return True
    return bool(event.faults) and set(event.faults) <= {waiver.fault for waiver in waived}


_pooled: dict[str, Verdict] = {}  # the verdict of a history, which only ever grows at its end


def pooled(sessions: list[Stored]) -> Verdict:
    """The verdict over sessions of one scope, by the plan of the newest."""
    key = digest("\n".join(item.name for item in sessions))
    if key not in _pooled:
        newest = entry_of(sessions[-1])
        values = [entry_of(item).verdict.values for item in sessions]
        _pooled[key] = pool(newest.plan, values, retrospective=newest.scope.retrospective)
    return _pooled[key]
