"""An entry in words: what was found, on what evidence, under which conditions, and what may be claimed of it."""

import json
from collections.abc import Sequence

from labkit.lab.conditions import beyond, driver_words, held, reached, shape_words, varied, weights_words
from labkit.lab.coverage import parse_shape
from labkit.lab.entries import Book, Entry, anchor_of, entry_of
from labkit.lab.events import EntryEvent, Stored
from labkit.lab.plan import cell_words
from labkit.lab.verdict import count
from labkit.measure.metrics import METRICS

RUNS_SHOWN = 10
SHAPE_SHOWN = 80  # characters; longer settings are not said twice
ABSENT = object()
ENDINGS = {
    "confirmed": "Confirmed",
    "refuted": "Refuted",
    "inconclusive": "Unsettled",
    "invalid": "No verdict",
}


def entry_text(entry: Entry, book: Book) -> str:
    """An entry: what was found, under which conditions, on what evidence, what may be claimed and what may not."""
    verdict, newest, plan = entry.verdict, entry.newest, entry.plan
    title = f"{entry.day} · {ENDINGS[verdict.outcome]}: {md(plan.belief)}"
    parts = [former_anchors(entry), f"## ~~{title}~~" if entry.struck else f"## {title}"]
    parts += fate(entry)
    parts.append(f"{subject(entry)} {what_was_found(entry)}")
    several = len(entry.older) + len(entry.stored) > 1
    parts.append("Means of the newest session:" if several and numbers_table(newest) else "")
    parts.append(numbers_table(newest))
    parts.append(
        lines(
            ("Question", md(plan.question)),
            ("Metric", md(f"{plan.rule.metric}: {METRICS[plan.rule.metric].definition}")),
            ("Rule", md(f"{plan.rule.words()} ({standing(entry)}, {plan.kind}, plan {newest.plan_hash[:12]})")),
            ("Refuted if", md(plan.refuted_if)),
            ("Believed because", md(plan.believed_because)),
            ("Published claim", md(plan.claim)),
            ("Device", md(f"{entry.scope.device}, UUID {entry.scope.uuid}")),
            ("Driver and build", md(f"{driver_words(entry.scope.driver)}; {entry.scope.build}")),
            ("Model", md("; ".join(filter(None, (entry.scope.model, weights_words(entry.coverage)))))),
            ("Varied", md("; ".join(varied(plan)))),
            ("Design", "over restarts: each block starts anew what the knob needs" * (plan.design == "restarts")),
            ("Held fixed", md(shape_words(held(entry)))),
            ("Reached", md("; ".join(reached(entry.coverage)))),
            ("Checks", md("; ".join(check_words(newest)))),
            ("Sessions", sessions_words(entry)),
            ("Attempts", newest.attempts.words() if newest.attempts else ""),
            ("Measured elsewhere", "; ".join(imported_words(event) for event in entry.events if event.imported_sha256)),
            ("Does not count", "; ".join(invalid_words(item) for item in entry.invalid)),
            ("Left out", left_out(newest)),
            ("Notices", md("; ".join(newest.verdict.notices))),
            ("Audit", md("; ".join(newest.audit))),
            *(("Waived", md(f"{w.fault} of {w.run}, {w.day}: {w.reason}")) for w in entry.waivers),
            *(("Correction", md(f"{c.day}: {c.text}")) for c in entry.corrections),
            *elsewhere_lines(entry, book),
        )
    )
    parts.append(claims_list("Can be claimed", can_claim(entry)))
    parts.append(claims_list("Should not be claimed", should_not_claim(entry, book.elsewhere(entry))))
    if withheld := [f"{md(c.text)} ({md(c.withheld)})" for c in newest.claims if c.withheld]:
        parts.append(claims_list("Withheld, as the data do not bear it out", withheld))
    return "\n\n".join(part for part in parts if part)


def former_anchors(entry: Entry) -> str:
    """The anchors of its later runs: any of them can have been the first, before branches were merged."""
    return "".join(f'<a id="{anchor_of(item)}"></a>' for item in [*entry.stored[1:], *entry.invalid])


def fate(entry: Entry) -> list[str]:
    """What it overturned and what became of it, with links both ways."""
    said = []
    if entry.retracted is not None:
        said.append(f"**Retracted** {entry.retracted.day}: {md(entry.retracted.text)}")
    if entry.struck_by is not None:
        other = entry.struck_by
        how = "Settled" if entry.verdict.outcome == "inconclusive" else "Overturned"
        said.append(f"**{how}** {other.day} by {link(other)}.")
    if entry.overturns is not None:
        how = "Settles" if entry.overturns.verdict.outcome == "inconclusive" else "Overturns"
        said.append(f"**{how}** {link(entry.overturns)}.")
    return said


def what_was_found(entry: Entry) -> str:
    """The number with its evidence: `is **5.83× [5.70, 5.96]** (95 % …); 10 pairs in 1 session: a session result.`"""
    verdict = entry.verdict
    how = {
        "t": "t interval",
        "bootstrap": "bootstrap of the median",
        "sessions": "t interval of the session means",
        "hull": "the interval that spans both sessions'",
        "none": "no interval",
    }.get(verdict.method, verdict.method)
    how += " on logarithms" if verdict.logarithmic and verdict.method in ("t", "sessions") else ""
    unit = "pair" if verdict.ratio else "repetition"
    word = f": *{verdict.word}*" if verdict.word else ""
    end = f"is **{verdict.number()}**{word} ({100 * verdict.level:g} %, {how}); {count(verdict.pairs, unit)} in "
    end += count(verdict.runs, "session") + (f": a {verdict.strength}" if verdict.decided else ", not settled")
    end += ", *retrospective*: the rule is younger than the data." if verdict.retrospective else "."
    return end + (" It was close: the margin reaches the threshold." if verdict.close else "")


def subject(entry: Entry) -> str:
    """What the number is of: `decode_tok_s at width=8 over width=1`."""
    rule = entry.plan.rule
    over = f" over {cell_words(rule.against)}" if rule.against is not None else ""
    return f"`{rule.metric}` at {md(cell_words(rule.cell) + over)}"


def standing(entry: Entry) -> str:
    """Whether the rule was risked."""
    return "retrospective" if entry.verdict.retrospective else "stored before the data"


def numbers_table(event: EntryEvent) -> str:
    """The rule's metric at every planned cell, from the newest run."""
    metric = event.plan.rule.metric
    unit = METRICS[metric].unit
    rows = [n for n in event.numbers if n.metric == metric]
    if not rows:
        return ""
    head = [f"| cell | {metric}{'' if unit == '1' else f' ({unit})'} | blocks |", "|---|---|---|"]
    body = [f"| {md(cell_words(json.loads(n.cell)))} | {figure(n.value)} | {n.n} |" for n in rows]
    return "\n".join([*head, *body])


def left_out(event: EntryEvent) -> str:
    """The blocks of warm-up that the plan let the data leave out."""
    blocks = len(event.verdict.warmup)
    return f"{count(blocks, 'block')} of warm-up, kept in the record" if blocks else ""


def figure(value: float) -> str:
    """A mean at four digits, a large one in full: `24.33`, `11,240`."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"


def check_words(event: EntryEvent) -> list[str]:
    """The run's checks in words."""
    return [
        f"{check.name} {'passed' if check.passed else 'FAILED'}{f' ({check.detail})' if check.detail else ''}"
        for check in event.checks
    ]


def sessions_words(entry: Entry) -> str:
    """The runs behind it, newest first, as links; each with its own verdict."""
    items = [*entry.older, *entry.stored]
    shown = [f"{run_link(entry_of(item))} ({session_word(entry_of(item))})" for item in reversed(items[-RUNS_SHOWN:])]
    hidden = len(items) - len(shown)
    return ", ".join(shown) + (f" and {hidden} before" if hidden else "")


def session_word(event: EntryEvent) -> str:
    """What a run alone came to."""
    looked = "look, " if event.verdict.strength == "look" else ""
    return f"{looked}{event.verdict.number() or event.verdict.outcome}"


def elsewhere_lines(entry: Entry, book: Book) -> list[tuple[str, str]]:
    """The same rule under another device, driver, build, model or shape: where it differs, and where it agrees."""
    found = []
    for other in book.elsewhere(entry):
        name = "Agrees under" if other.verdict.outcome == entry.verdict.outcome else "Differs under"
        found.append((name, f"{md(difference(entry, other))}: {other.verdict.outcome}, {link(other)}"))
    return found


def difference(entry: Entry, other: Entry) -> str:
    """What is not the same in the other's scope, with its value there; of another card, its name and driver stand for
    all that goes with a card."""
    here, there = entry.scope, other.scope
    names = ["device", "driver", "model"] if here.device != there.device else ["uuid", "driver", "build", "model"]
    parts = [
        f"{name} {driver_words(getattr(there, name)) if name == 'driver' else getattr(there, name)}"
        for name in names
        if getattr(there, name) != getattr(here, name)
    ]
    if here.shape != there.shape:
        ours, theirs = parse_shape(here.shape), parse_shape(there.shape)
        changed = {name: value for name, value in theirs.items() if value != ours.get(name, ABSENT)}
        short = len(there.shape) <= SHAPE_SHOWN or not changed
        parts.append(f"shape {shape_words(theirs if short else changed)}")
    if there.retrospective != here.retrospective:
        parts.append("a rule younger than its data" if there.retrospective else "a rule stored before its data")
    return "; ".join(parts)


def can_claim(entry: Entry) -> list[str]:
    """What the entry bears: its own number with its conditions, then what the notebook claims and the data bear out."""
    verdict, scope = entry.verdict, entry.scope
    if entry.struck:
        return ["Nothing: this entry no longer holds."]
    if not verdict.decided:
        return ["Only that this was tried and is not settled: the interval allows both."]
    rule = entry.plan.rule
    over = f" is {verdict.number()} that at {cell_words(rule.against)}" if rule.against else f" is {verdict.number()}"
    found = [f"On {scope.device} with {driver_words(scope.driver)}, {scope.model}: {rule.metric} at"]
    found[0] += f" {cell_words(rule.cell)}{over}"
    within = [*reached(entry.coverage), shape_words(held(entry)) if len(scope.shape) <= SHAPE_SHOWN else ""]
    own = f"{found[0]}; {'; '.join(filter(None, within))}." if any(within) else f"{found[0]}."
    return [md(own), *(md(claim.text) for claim in entry.newest.claims if not claim.withheld)]


def should_not_claim(entry: Entry, elsewhere: Sequence[Entry] = ()) -> list[str]:
    """What the evidence does not reach, from what was varied and what was not, then what the notebook adds."""
    verdict = entry.verdict
    found = [f"{line}." for line in beyond(entry, bool(elsewhere))]
    if verdict.strength != "finding":
        found.append(f"That it holds in other sessions: {count(verdict.runs, 'session')} so far, three make a finding.")
    if verdict.retrospective:
        found.append("That it was predicted: the rule was written after the data.")
    if verdict.close:
        found.append("That the threshold is passed by more than the margin.")
    return [*map(md, found), *(md(text) for text in entry.newest.should_not_claim)]


def mistake_text(entry: Entry) -> str:
    """What was believed, why, what was measured, and what corrected it."""
    plan, old = entry.plan, entry.overturns
    if entry.retracted is not None:
        day, believed = entry.retracted.day, f"{ENDINGS[entry.verdict.outcome].lower()}: {md(plan.belief)}"
        measured, corrected = f"{subject(entry)} {what_was_found(entry)}", md(entry.retracted.text)
        why = "the entry said so, on the runs it names"
    elif old is not None and old.verdict.decided:
        day = entry.day
        believed = f"{ENDINGS[old.verdict.outcome].lower()}: {md(old.plan.belief)} ({link(old)})"
        why = f"{subject(old)} {what_was_found(old)}"
        measured = f"{subject(entry)} {what_was_found(entry)} That is {entry.verdict.outcome}."
        corrected = f"{run_link(entry.events[0])}, pooled with the sessions before it"
    else:
        published = f"it was published: {md(plan.claim)}" if plan.claim else ""
        reasons = "; ".join(filter(None, [md(plan.believed_because), published]))
        day, believed, why = entry.day, md(plan.belief), reasons or "no reason was given"
        measured = f"{subject(entry)} {what_was_found(entry)} The rule: {md(plan.rule.words())}."
        corrected = run_link(entry.events[0])
    title = f"{day} · {md(plan.belief)}"
    struck = entry.struck_by is not None
    parts = [f"## ~~{title}~~" if struck else f"## {title}"]
    if entry.struck_by is not None:
        parts.append(f"**No longer held to be one**: {link(entry.struck_by)}.")
    parts.append(
        lines(
            ("Believed", believed),
            ("Why", why),
            ("Measured", measured),
            ("Corrected by", corrected),
            ("See", link(entry)),
        )
    )
    return "\n\n".join(parts)


def invalid_words(item: Stored) -> str:
    """A run that does not count, with why."""
    event = entry_of(item)
    return f"{run_link(event)}: {md(event.verdict.reason)}"


def link(entry: Entry) -> str:
    """A link to an entry, which stays true: its anchor never changes."""
    return f"[{entry.day}, {entry.verdict.outcome}, {entry.verdict.number()}]({entry.ledger}#{entry.anchor})"


def run_link(event: EntryEvent) -> str:
    """A link to a run's folder."""
    return f"[{event.run}](data/runs/{event.run}/)"


def imported_words(event: EntryEvent) -> str:
    """Where a run from another machine came from."""
    return f"{event.run} came in an archive (SHA-256 {event.imported_sha256[:12]}); it was judged here"


def lines(*pairs: tuple[str, str]) -> str:
    """A list of what is known, `- **Model**: …`; what is empty is left out."""
    return "\n".join(f"- **{name}**: {text}" for name, text in pairs if text)


def claims_list(title: str, texts: Sequence[str]) -> str:
    """A titled list."""
    return "\n".join([f"**{title}**", "", *(f"- {text}" for text in texts)]) if texts else ""


def md(text: str) -> str:
    """A person's words as one line of markdown that cannot become a tag, a table cell's end or a heading."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return f"\\{flat}" if flat[:1] in ("#", ">") else flat
