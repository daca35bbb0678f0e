"""Lever without effect: a lever was set to other values, and its declared witness did not move."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.audit.detectors.admission_waves import most_at_once
from labkit.audit.evidence import Evidence, Observation, Request
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector
from labkit.lab.lever_checks import cannot_act, without
from labkit.lab.levers import LEVERS, Lever, find_lever, known_levers, workload

FULL = ("acceptance", (1.0,))  # a share that is at its end at both values cannot tell them apart
SHOWN = 4
Pair = tuple[Observation, Observation]


class Reported(tuple[str, ...]):
    """A reading that is what a process reported of a setting, and no witness of the lever's own."""

    __slots__ = ()
    name, read = "as its process reports it", "requests.jsonl: settings, as their process reports them"


@detector(
    "lever-witness", 2, version=3, title="Levers that moved nothing", explains=("identical-timings", "repetitions")
)
def lever_witness(evidence: Evidence) -> Iterator[Notice]:
    """The declared witness of each lever (a program's fingerprint, a counter, the workload, a readback) at the cells that
    are read against each other. One that is the same at both fails where the rule compares them, for then it compares a
    thing with itself; elsewhere it warns. A negative control is exempt: it must not move."""
    if evidence.kind != "run":
        return
    levers = levers_of(evidence)
    control = list(pairs_of(evidence, "negative_control"))
    ruled = list(pairs_of(evidence, "rule"))
    still: dict[str, list[tuple[Pair, Any]]] = {}
    moved: dict[str, list[str]] = {}
    reads: dict[str, str] = {}
    unknown: dict[str, list[str]] = {}
    for pair in evidence.read_against():
        if pair in control:
            continue
        for name in pair[0].knobs_apart(pair[1]):
            found = find_lever(name, levers)
            if found is None or name not in evidence.levers:
                continue
            readings = readings_of(name, found, pair, evidence)
            cells = [one.subject for one in pair]
            if readings is None:
                unknown.setdefault(name, []).extend(cells)
            elif readings[0] != readings[1]:
                moved.setdefault(name, []).extend(cells)
                reads.setdefault(name, witness_by(found, readings[0]).read)
            else:
                still.setdefault(name, []).append((pair, readings[0]))
    for name, pairs in still.items():
        lever = find_lever(name, levers)
        assert lever is not None
        yield unmoved(name, lever, sorted(pairs, key=lambda one: one[0] not in ruled), ruled, levers, evidence)
    for name, cells in moved.items():
        text = f"{name} moved its witness ({reads[name]})"
        about = tuple(dict.fromkeys(cells))
        yield Notice(outcome="ok", text=text, subject=evidence.name, about=about)
    for name, cells in unknown.items():
        lever = find_lever(name, levers)
        if name in moved or lever is None:
            continue
        text = f"whether {name} did anything is not told by its witness"
        missing = (f"{lever.witness.read}, at each value",)
        about = tuple(dict.fromkeys(cells))
        yield Notice(outcome="not assessable", text=text, subject=evidence.name, about=about, missing=missing)


def levers_of(evidence: Evidence) -> Mapping[str, Lever]:
    """The declared levers, those of the run's own lab among them."""
    from labkit.audit.stored import lab_of

    root = lab_of(evidence.folder) if evidence.folder is not None else None
    return known_levers(root) if root is not None else LEVERS


def pairs_of(evidence: Evidence, which: str) -> Iterator[tuple[Observation, Observation]]:
    """The cells that the plan's rule, or its negative control, compares."""
    rule = getattr(evidence.plan, which, None)
    if rule is not None and rule.against is not None:
        yield from evidence.pair(rule.cell, rule.against)


def readings_of(
    name: str, lever: Lever, pair: tuple[Observation, Observation], evidence: Evidence
) -> tuple[Any, Any] | None:
    """What the lever's witness says at each of two cells, or else what the processes that answered reported of the lever;
    None where neither is told of both."""
    witness = lever.witness
    if witness.name == "cell":  # the cells are named by what was executed
        return pair[0].subject, pair[1].subject
    if witness.kind == "fingerprint":
        return fingerprints(name, pair, evidence.witnesses.get(name)) or read_back(lever, pair)
    if witness.kind == "workload" and witness.name == "prompt_tokens" and isinstance(pair[0].knobs.get(name), str):
        return columns(pair, "prompt_sha256")  # prompts by their text
    depths = [[request.number("depth") for request in one.requests] for one in pair]
    if lever.name == "depth" and all(depths) and depths[0] != depths[1]:
        return depths[0], depths[1]  # counted where a runtime counts it
    given = [one.witness.get(name) for one in pair]
    if witness.kind == "counter" and given[0] != given[1]:
        return given[0], given[1]  # a counter that is there at one of them alone has moved
    if witness.name == "slot":
        return most_together(pair)
    if (
        given[0] is None
        or given[1] is None
        or (witness.name, tuple(given[0])) == (witness.name, tuple(given[1])) == FULL
    ):
        return read_back(lever, pair)
    return tuple(given[0]), tuple(given[1])


def read_back(lever: Lever, pair: Pair) -> tuple[Any, Any] | None:
    """What the processes that answered the requests of two cells reported of a lever, in the column `settings` of
    requests.jsonl; None where one of them does not tell it."""
    told: list[Reported] = []
    for one in pair:
        rows = [request.row.get("settings") for request in one.requests]
        told.append(
            Reported(sorted({str(row[lever.name]) for row in rows if isinstance(row, Mapping) and lever.name in row}))
        )
    return (told[0], told[1]) if all(told) else None


def witness_by(lever: Lever, reading: Any) -> Any:
    """What a reading is of: the lever's witness, or what a process reported. Both have a `name` and say how to `read` it."""
    return Reported if isinstance(reading, Reported) else lever.witness


def fingerprints(name: str, pair: tuple[Observation, Observation], known: Any) -> tuple[Any, Any] | None:
    """The fingerprints of the programs whose labels name each of two values, by the rest of the label; None where no
    program is named by both."""
    if not isinstance(known, Mapping):
        return None
    first, second = (labelled(name, one.knobs.get(name), known) for one in pair)
    both = sorted(first.keys() & second.keys())
    return ({label: first[label] for label in both}, {label: second[label] for label in both}) if both else None


def labelled(name: str, value: Any, known: Mapping[str, str]) -> dict[str, str]:
    """Label without the value → fingerprint, of the programs that name the value of a lever: `kv=f16`, or `f16`."""
    words = {str(value), f"{name}={value}"}
    found = {}
    for label, fingerprint in known.items():
        parts = re.split(r"[\s,]+", label)
        if words & set(parts):
            found[" ".join(part for part in parts if part not in words)] = fingerprint
    return found


def columns(pair: tuple[Observation, Observation], column: str) -> tuple[Any, Any] | None:
    """The values of a column of the requests of two cells; None where one of them has none."""
    first, second = (sorted({text for r in one.requests if (text := r.text(column))}) for one in pair)
    return (first, second) if first and second else None


def most_together(pair: tuple[Observation, Observation]) -> tuple[Any, Any] | None:
    """The most slots that the requests of one block had, or the requests at work at once where no slot is told; None
    where neither is, and a block has more requests than streams: a client sends the next one as another ends."""
    counts, rows = [], []
    for one in pair:
        blocks: dict[int, list[Request]] = {}
        for request in one.requests:
            blocks.setdefault(request.block, []).append(request)
        found = [in_block(one, requests) for requests in blocks.values()]
        told = [count for count in found if count is not None]
        if not found or len(told) < len(found):
            return None
        counts.append(max(told))
        rows.append(max(len(requests) for requests in blocks.values()))
    return None if rows == [1, 1] else (counts[0], counts[1])  # one row may stand for many streams


def in_block(one: Observation, requests: Sequence[Request]) -> int | None:
    """How many of a block's requests were at work together."""
    slots = [request.number("slot") for request in requests]
    if any(slot is not None for slot in slots) or not one.streams or len(requests) <= one.streams:
        return len({place if slot is None else slot for place, slot in enumerate(slots)})
    return most_at_once([request for request in requests if request.text("error") is None])


def unmoved(
    name: str, lever: Lever, pairs: Sequence[tuple[Pair, Any]], ruled: Sequence[Pair], levers: Mapping[str, Lever],
    evidence: Evidence,
) -> Notice:  # fmt: skip
    """The notice on a lever that did nothing between the cells of these pairs, those of the rule first."""
    parameters = evidence.record.parameters if evidence.record is not None else {}
    lines: list[str] = []
    for pair, reading in pairs[:SHOWN]:
        at = workload(parameters, without(pair[0].knobs, name), levers=levers)
        why = cannot_act(name, [one.knobs.get(name) for one in pair], at, levers)
        lines += [f"{one.subject}: {witness_by(lever, reading).name} {words(reading)}" for one in pair]
        lines += [why] if why else []
    first = pairs[0][0]
    more = f", nor between {len(pairs) - 1} more pairs of cells" if len(pairs) > 1 else ""
    set_to = f"{first[0].knobs.get(name)} and to {first[1].knobs.get(name)}"
    text = f"{name} was set to {set_to}, and its witness ({witness_by(lever, pairs[0][1]).name}) did not move{more}"
    about = tuple(dict.fromkeys(one.subject for pair, _ in pairs for one in pair))
    outcome = "fail" if first in ruled else "warn"
    lines = list(dict.fromkeys(lines))
    return Notice(outcome=outcome, text=text, subject=first[0].subject, about=about, arithmetic=tuple(lines))  # type: ignore[arg-type]


def words(reading: Any) -> str:
    """A reading of a witness, a long one shortened."""
    if isinstance(reading, Mapping):
        return ", ".join(f"{label or 'program'} {value}" for label, value in list(reading.items())[:SHOWN])
    if isinstance(reading, list | tuple):
        shown = [number(value) if isinstance(value, int | float) else str(value)[:16] for value in reading[:SHOWN]]
        return ", ".join(shown) + (", …" if len(reading) > SHOWN else "")
    return number(reading) if isinstance(reading, int | float) else str(reading)
