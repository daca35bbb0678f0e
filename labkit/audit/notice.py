"""A notice: what one detector says of one subject, with its arithmetic."""

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from labkit.show.pieces import Html, escape, mark, paragraph

Outcome = Literal["ok", "warn", "fail", "not assessable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
GRAVITY: dict[Outcome, int] = {"ok": 0, "not assessable": 1, "warn": 2, "fail": 3}


class Notice(BaseModel):
    """What a detector found.

    `text` is one sentence that stands alone; `arithmetic` are the lines that lead to it, numbers put in. `subject` names
    what it is about, `about` every cell or row it concerns (empty: all of them). `missing` says what would be needed to
    judge. `explains` are the detectors whose notices on the same subjects follow from this one; left out, those that the
    detector itself declares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Outcome
    text: str
    detector: str = ""
    subject: str = ""
    about: tuple[str, ...] = ()
    arithmetic: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> "Notice":
        if not self.text.strip() or "\n" in self.text:
            raise ValueError("a notice is one sentence on one line")
        if self.outcome in ("warn", "fail") and not self.arithmetic:
            raise ValueError(f"a {self.outcome} shows its arithmetic: {self.text!r} has none")
        if (self.outcome == "not assessable") != bool(self.missing):
            raise ValueError(f"what is missing belongs to 'not assessable', and to it alone: {self.text!r}")
        return self

    @property
    def gravity(self) -> int:
        """How grave it is: 0 for ok to 3 for a fail."""
        return GRAVITY[self.outcome]

    @property
    def trouble(self) -> bool:
        """Whether it is a warning or a fail."""
        return self.gravity >= GRAVITY["warn"]

    def concerns(self, other: "Notice") -> bool:
        """Whether both are about something in common; a notice about no cell in particular is about all of them."""
        return not self.about or not other.about or not set(self.about).isdisjoint(other.about)

    def __repr__(self) -> str:
        about = f"{self.detector}: " if self.detector else ""
        return f"<Notice {self.outcome}: {about}{self.text}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return notice_html(self, self.outcome)


def notice_html(notice: Notice, outcome: Outcome, consequences: Sequence[Notice] = ()) -> Html:
    """A notice with its arithmetic, what it lacks, and what follows from it."""
    detector = Html(f"<strong>{escape(notice.detector)}</strong>:") if notice.detector else ""
    lines = [Html(f"<code>{escape(line)}</code>") for line in notice.arithmetic]
    lines += [escape(f"missing: {part}") for part in notice.missing]
    follows = [escape(f"{one.detector}: {one.text}") for one in consequences]
    said = paragraph(mark(outcome), detector, notice.text) + listed(lines)
    return Html(said + paragraph("follows from it:") + listed(follows) if follows else said)


def listed(items: Sequence[Html]) -> str:
    """A list of items; nothing of none."""
    return "<ul>\n" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>\n" if items else ""
