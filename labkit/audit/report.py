"""Judging evidence with every detector, and the report of it: root causes first, what follows from each beneath it."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from labkit.audit.evidence import Evidence
from labkit.audit.notice import GRAVITY, OUTCOMES, Notice, Outcome, notice_html
from labkit.audit.registry import detectors, stamps
from labkit.show.pieces import Html, mark, paragraph

SHOWN = 3  # subjects named where many are counted


class Audit(BaseModel):
    """What all detectors said of one run or file of claims. `stamps` say which version of each judged, `subjects` are
    the cells or rows there were, `waived` the detectors whose fails a person set aside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    kind: Literal["run", "claims"]
    name: str
    stamps: dict[str, str]
    subjects: tuple[str, ...]
    notices: tuple[Notice, ...]

    @property
    def outcome(self) -> Outcome:
        """The gravest outcome; `not assessable` where nothing could be judged."""
        found = {notice.outcome for notice in self.notices}
        order: tuple[Outcome, ...] = ("fail", "warn", "ok", "not assessable")
        return next((outcome for outcome in order if outcome in found), "not assessable")

    @property
    def failed(self) -> tuple[str, ...]:
        """The detectors that failed it, root causes first."""
        return tuple(dict.fromkeys(n.detector for n in self.troubles() if n.outcome == "fail"))

    def troubles(self) -> list[Notice]:
        """Every warning and fail in the order it is shown."""
        return [notice for group in self.groups() for notice in (group.root, *group.consequences)]

    def groups(self) -> "list[Group]":
        """The warnings and fails, each root cause with what follows from it; the gravest group first."""
        return group_notices([notice for notice in self.notices if notice.trouble])

    @functools.cached_property
    def by_subject(self) -> "dict[str, list[Notice]]":
        """The notices on each cell or row, those in trouble first and in the order they are shown."""
        found: dict[str, list[Notice]] = {}
        for notice in (*self.troubles(), *(notice for notice in self.notices if not notice.trouble)):
            for subject in notice.about:
                found.setdefault(subject, []).append(notice)
        return found

    def standing(self, subject: str) -> Outcome:
        """What is to be thought of one cell or row: fail or warn where any detector says so, ok where it was judged by
        itself and stands, else not assessable."""
        about = self.by_subject.get(subject, [])
        if grave := [notice for notice in about if notice.trouble]:
            return max(grave, key=lambda notice: notice.gravity).outcome
        essential = {one.id for one in detectors().values() if one.essential}
        return "ok" if any(n.outcome == "ok" and n.detector in essential for n in about) else "not assessable"

    def reason(self, subject: str) -> str:
        """The sentence behind a cell's or row's standing."""
        standing = self.standing(subject)
        found = next((n.text for n in self.by_subject.get(subject, []) if n.outcome == standing), "")
        return found or "no detector knows what to hold it against"

    def document(self) -> dict[str, Any]:
        """As JSON has it: outcome, groups, and the standing of each subject."""
        return {
            "kind": self.kind,
            "name": self.name,
            "outcome": self.outcome,
            "failed": list(self.failed),
            "groups": [group.document() for group in self.groups()],
            "subjects": {name: {"outcome": self.standing(name), "reason": self.reason(name)} for name in self.subjects},
            "notices": [notice.model_dump(mode="json") for notice in self.notices],
            "stamps": self.stamps,
        }

    def text(self) -> str:
        """For a terminal: the groups with their arithmetic, then what could not be judged, then what stands."""
        lines: list[str] = []
        for group in self.groups():
            lines += [f"{group.outcome.upper():5} {group.root.detector}: {group.root.text}"]
            lines += [f"        {line}" for line in group.root.arithmetic]
            for notice in group.consequences:
                lines.append(f"      follows: {notice.detector}: {notice.text}")
        for label in ("not assessable", "ok"):
            lines += [f"{label}: {line}" for line in counted(self.notices, label)]
        return "\n".join(lines or ["nothing to judge"])

    def __repr__(self) -> str:
        said = Counter(notice.outcome for notice in self.notices)
        found = ", ".join(f"{said[outcome]} {outcome}" for outcome in OUTCOMES if said[outcome])
        why = f" ({', '.join(self.failed)})" if self.failed else ""
        return f"<Audit of {self.name}: {self.outcome}{why}; {found or 'nothing to judge'}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True)
class Group:
    """A root cause and what follows from it."""

    root: Notice
    consequences: tuple[Notice, ...]

    @property
    def outcome(self) -> Outcome:
        """The gravest outcome in it."""
        return max((self.root, *self.consequences), key=lambda notice: notice.gravity).outcome

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "outcome": self.outcome,
            "root": self.root.model_dump(mode="json"),
            "consequences": [notice.model_dump(mode="json") for notice in self.consequences],
        }


def audit(evidence: Evidence) -> Audit:
    """Every detector's notices on the evidence. A detector that breaks says so in a notice of its own and keeps the
    others from nothing."""
    notices: list[Notice] = []
    for one in detectors().values():
        try:
            notices += list(one.notices(evidence))
        except Exception as error:  # a fault of a detector must not cost a run its end
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            text = f"the detector {one.id} broke on {evidence.name}: {what}"
            notices.append(
                Notice(outcome="not assessable", text=text, detector=one.id, missing=("a working detector",))
            )
    return Audit(
        kind=evidence.kind,
        name=evidence.name,
        stamps=stamps(),
        subjects=tuple(dict.fromkeys(one.subject for one in evidence.observations)),
        notices=tuple(notices),
    )


def group_notices(troubles: Sequence[Notice]) -> list[Group]:
    """Each notice under the root cause that explains it: a notice on something in common whose `explains` names its
    detector, and that is no consequence itself. The gravest group first, then in the order of the detectors."""
    order = {id: place for place, id in enumerate(detectors())}
    explained: dict[str, list[int]] = {}  # by detector: the notices that may explain its own
    for place, other in enumerate(troubles):
        for id in other.explains:
            explained.setdefault(id, []).append(place)
    cause: dict[int, int] = {}
    for child, notice in enumerate(troubles):
        parents = (one for one in explained.get(notice.detector, ()) if troubles[one].concerns(notice))
        found = next((one for one in parents if child not in chain(one, cause)), None)
        if found is not None:
            cause[child] = found
    roots: dict[int, list[Notice]] = {}
    for child, notice in enumerate(troubles):
        root = chain(child, cause)[-1]
        roots.setdefault(root, [])
        if root != child:
            roots[root].append(notice)
    groups = [
        Group(troubles[root], tuple(sorted(followers, key=lambda notice: -notice.gravity)))
        for root, followers in roots.items()
    ]
    return sorted(groups, key=lambda group: (-GRAVITY[group.outcome], order.get(group.root.detector, 99)))


def chain(start: int, cause: Mapping[int, int]) -> list[int]:
    """A notice, its cause, the cause of that, to the root."""
    found = [start]
    while found[-1] in cause:
        found.append(cause[found[-1]])
    return found


def counted(notices: Iterable[Notice], outcome: str) -> list[str]:
    """A line a detector for its notices of one outcome: how many, on what, and what is missing."""
    by_detector: dict[str, list[Notice]] = {}
    for notice in notices:
        if notice.outcome == outcome:
            by_detector.setdefault(notice.detector, []).append(notice)
    lines = []
    for id, found in by_detector.items():
        missing = list(dict.fromkeys(part for notice in found for part in notice.missing))
        lacks = f": needs {', '.join(missing)}" if missing else ""
        if len(found) == 1:
            lines.append(f"{id}: {found[0].text}")
            continue
        named = ", ".join(dict.fromkeys(notice.subject for notice in found[:SHOWN] if notice.subject))
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        lines.append(f"{id} on {len(found)} ({named}{more}){lacks}")
    return lines


def html_of(found: Audit) -> Html:
    """A fragment of HTML that needs no style sheet: the groups with their arithmetic, and the counts."""
    parts = [notice_html(group.root, group.outcome, group.consequences) for group in found.groups()]
    for outcome in ("not assessable", "ok"):
        parts += [paragraph(mark(outcome), line) for line in counted(found.notices, outcome)]
    return Html("".join(parts)) or paragraph("nothing to judge")
