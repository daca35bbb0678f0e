"""The plan of an experiment: what is believed, what is measured, and the rule that decides, fixed before the data."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from labkit.errors import ParameterError
from labkit.lab.record import canonical_cell, plain_value, write_atomic
from labkit.measure.metrics import metric

MOST_REPETITIONS = 1000
Comparison = Literal[">=", "<=", "same", "different"]
Cell = dict[str, Any]


class Declared(BaseModel):
    """A declaration that is checked where it is made and never changed; a fault is a one-line ParameterError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # type checkers see the fields as the arguments

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise ParameterError(first_fault(type(self).__name__, error)) from None

        def __setattr__(self, name: str, value: Any) -> None:
            raise ParameterError(f"a {type(self).__name__} is not changed once made ({name}); make another")

    def canonical(self) -> str:
        """Canonical JSON: sorted keys, no spaces. Equal declarations have equal text."""
        return canonical_json(self.model_dump(mode="json"))

    def essence(self) -> str:
        """Canonical JSON of what is not at its default: a field added in a later version does not change it."""
        return canonical_json(self.model_dump(mode="json", exclude_defaults=True))

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return document_hash(self.model_dump(mode="json"))


class Rule(Declared):
    """What decides: a metric of `cell` over the same metric of `against`, paired by block, compared with `threshold`.

    `against` None takes the metric itself. Let I be the 95 % interval of the effect:

    - `>=`: confirmed when all of I is at least the threshold, refuted when all of it is below; `<=` the other way;
    - `same`: confirmed when all of I lies in the band threshold × (1 ± margin), refuted when all of it lies outside;
    - `different`: confirmed when all of I lies outside the band, refuted when all of it lies inside.

    In every other case it is inconclusive. For `same` and `different` the threshold of a ratio is 1 when left out. For
    `>=` and `<=` the margin decides nothing: a verdict won or lost by less than it is called close. A margin around a
    threshold of 0 is in the metric's own unit. ParameterError for what cannot decide."""

    metric: str
    cell: Cell
    against: Cell | None = None
    comparison: Comparison
    threshold: float | None = None
    margin: float = 0.0

    @field_validator("metric")
    @classmethod
    def _registered(cls, value: str) -> str:
        metric(value)
        return value

    @field_validator("cell", "against", mode="before")
    @classmethod
    def _plain_cell(cls, value: Any) -> Any:
        return checked_cell(value) if value is not None else None

    @model_validator(mode="after")
    def _decides(self) -> "Rule":
        if self.against is not None and canonical_cell(self.cell) == canonical_cell(self.against):
            raise ValueError(f"cell and against are both {canonical_cell(self.cell)}; they must differ")
        if self.threshold is None and self.needs_threshold:
            raise ValueError(f"{self.comparison!r} needs a threshold, such as threshold=4.0")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ValueError(f"threshold is {self.threshold}; use a finite number")
        if self.ratio and self.limit <= 0:
            raise ValueError(f"threshold is {self.limit}; a ratio is compared with a number above 0")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"margin is {self.margin}; use a share such as 0.02 for 2 %")
        if self.limit != 0 and self.margin >= 1:
            raise ValueError(f"margin is {self.margin}; it is a share of the threshold and stays under 1 (0.02 is 2 %)")
        if self.comparison == "same" and self.margin == 0:
            raise ValueError("'same' needs a margin above 0, such as margin=0.02: nothing measured is exactly equal")
        return self

    @property
    def ratio(self) -> bool:
        """Whether the effect is a ratio of two cells; else it is the metric itself."""
        return self.against is not None

    @property
    def needs_threshold(self) -> bool:
        """Whether a threshold left out has no natural value."""
        return self.comparison in (">=", "<=") or not self.ratio

    @property
    def limit(self) -> float:
        """The threshold; 1 where a ratio's is left out."""
        return 1.0 if self.threshold is None else self.threshold

    @property
    def band(self) -> tuple[float, float]:
        """The values within the margin of the threshold, lowest and highest."""
        half = self.margin * abs(self.limit) if self.limit else self.margin
        return self.limit - half, self.limit + half

    def words(self) -> str:
        """The rule in words: `decode_tok_s at width=8 over width=1, in each block: at least 4`."""
        subject = f"{self.metric} at {cell_words(self.cell)}"
        if self.against is not None:
            subject += f" over {cell_words(self.against)}, in each block"
        low, high = (f"{end:.6g}" for end in self.band)
        wanted = {
            ">=": f"at least {self.limit:.6g}",
            "<=": f"at most {self.limit:.6g}",
            "same": f"within {low} to {high}",
            "different": f"outside {low} to {high}" if self.margin else f"not {self.limit:.6g}",
        }
        return f"{subject}: {wanted[self.comparison]}"

    def __repr__(self) -> str:
        return f"<Rule {self.words()}>"

    __str__ = __repr__


class Anchor(Declared):
    """What a driver or engine upgrade must leave alone: a metric of a pinned kernel, measured at `cell` once a block.

    `labkit.lab.anchor.stream_anchor()` makes the one there always is, and `measure_anchor(run, device, block)` measures
    it. Five completed runs before an upgrade, and one after: then `lab compare BEFORE AFTER` tells faster from slower.
    `pinned` says what is fixed about it (the hash of its SPIR-V, say): anchors of equal declaration are one anchor, and
    their earlier sessions on a device tell how far the next may lie. `cell` is no cell of the plan. ParameterError for
    what nobody could find again."""

    metric: str
    cell: Cell
    pinned: str

    @field_validator("metric")
    @classmethod
    def _registered(cls, value: str) -> str:
        metric(value)
        return value

    @field_validator("cell", mode="before")
    @classmethod
    def _plain_cell(cls, value: Any) -> Any:
        return checked_cell(value)

    def words(self) -> str:
        """`read_gb_s at anchor=read stream, pinned to spv/read_stream.spv 3fa9...`."""
        return f"{self.metric} at {cell_words(self.cell)}, pinned to {self.pinned}"

    @field_validator("pinned")
    @classmethod
    def _said(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("say what is pinned, such as the SHA-256 of the kernel's SPIR-V")
        return value.strip()


class Plan(Declared):
    """An experiment before it runs. Stored with its hash before the first measurement.

    `knob` names what is varied (one name, or several); `cells` are the values measured, `control` the one of them the
    others are read against; each is measured `repetitions` times, once a block, in the order `schedule()` gives.
    `design` says how they are repeated: "interleaved", in turns; or over "restarts", where what the knob needs (an
    engine, a process: each lever says) is made anew for each cell of each block, `run.measure(..., start=)` names it, and
    one start is one repetition however often it is measured. `held` says the belief is one people act on, so its
    refutation is a mistake worth keeping: left out, it is when the plan is confirmatory and says why it is believed.
    `shape` names what else was kept fixed (tokens, KV type); left out, the run's parameters stand for it. `claim` names
    the published claim that is tried (its source, or its id in `data/claims`): its refutation is a mistake worth keeping
    too. A `negative_control` is a rule that must come out *same*: where it is refuted the measurement itself is at fault
    and the run is invalid. An `anchor` is what makes it comparable across an upgrade of the driver or of labkit.
    ParameterError for what does not fit together."""

    experiment: str
    belief: str
    knob: str | tuple[str, ...]
    cells: tuple[Cell, ...]
    rule: Rule
    repetitions: int
    believed_because: str = ""
    question: str = ""
    refuted_if: str = ""
    control: Cell | None = None
    kind: Literal["exploratory", "confirmatory", "retrospective"] = "exploratory"
    design: Literal["interleaved", "restarts"] = "interleaved"
    warmup: Literal["counted", "left out"] = "counted"
    held: bool | None = None
    shape: dict[str, Any] | None = None
    negative_control: Rule | None = None
    anchor: Anchor | None = None
    claim: str = ""
    seed: int = 0

    @field_validator("experiment")
    @classmethod
    def _name(cls, value: str) -> str:
        from labkit.lab.lab import experiment_name

        return experiment_name(value)

    @field_validator("belief", "believed_because", "question", "refuted_if", "claim")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())

    @field_validator("belief")
    @classmethod
    def _sentence(cls, value: str) -> str:
        if len(value.split()) < 2 or not any(character.isalpha() for character in value):
            raise ValueError(f"{value!r} says nothing that could be wrong; state the belief in one sentence")
        return value

    @field_validator("cells", mode="before")
    @classmethod
    def _plain_cells(cls, value: Any) -> Any:
        if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
            raise ValueError(
                f'cells is {value!r}; give a list of knob values, such as [{{"width": 1}}, {{"width": 8}}]'
            )
        return tuple(checked_cell(cell) for cell in value)

    @field_validator("control", mode="before")
    @classmethod
    def _plain_control(cls, value: Any) -> Any:
        return checked_cell(value) if value is not None else None

    @field_validator("shape", mode="before")
    @classmethod
    def _plain_shape(cls, value: Any) -> Any:
        return checked_cell(value) if value else None

    @field_validator("repetitions")
    @classmethod
    def _count(cls, value: int) -> int:
        if not 1 <= value <= MOST_REPETITIONS:
            raise ValueError(f"{value} repetitions; use 1 to {MOST_REPETITIONS} (10 make a result of the session)")
        return value

    @model_validator(mode="after")
    def _holds_together(self) -> "Plan":
        known = [canonical_cell(cell) for cell in self.cells]
        if not known:
            raise ValueError("there are no cells; give at least one")
        if repeated := sorted({cell for cell in known if known.count(cell) > 1}):
            raise ValueError(f"the cell {repeated[0]} is listed twice")
        for knob in self.knobs:
            if without := [text for text, cell in zip(known, self.cells, strict=True) if knob not in cell]:
                raise ValueError(f"the cell {without[0]} has no value for the knob {knob!r}")
        rules = [("rule", self.rule), ("negative_control", self.negative_control)]
        named = [(f"{name}.{end}", getattr(rule, end)) for name, rule in rules if rule for end in ("cell", "against")]
        for name, cell in [*named, ("control", self.control)]:
            if cell is not None and canonical_cell(cell) not in known:
                raise ValueError(f"{name} is {canonical_cell(cell)}, which is not among the cells {', '.join(known)}")
        if self.negative_control is not None and self.negative_control.comparison != "same":
            raise ValueError(
                f"the negative control asks for {self.negative_control.comparison!r}; it must ask for 'same'"
            )
        if self.anchor is not None and canonical_cell(self.anchor.cell) in known:
            raise ValueError(
                f"the anchor's cell {canonical_cell(self.anchor.cell)} is one of the cells; it stands apart"
            )
        return self

    @property
    def knobs(self) -> tuple[str, ...]:
        """The names of what is varied."""
        return (self.knob,) if isinstance(self.knob, str) else self.knob

    @property
    def belief_held(self) -> bool:
        """Whether a refutation of the belief is a mistake to be kept: `held`, a published claim, or confirmatory with a
        reason given."""
        if self.held is not None:
            return self.held
        return bool(self.claim) or (self.kind == "confirmatory" and bool(self.believed_because))

    def schedule(self) -> list[tuple[int, Cell]]:
        """(block, cell) in the order to measure: complete blocks; A B B A for two cells, else shuffled by `seed`."""
        from labkit.measure.statistics import block_order

        order = block_order(self.cells, self.repetitions, self.seed)
        return [(block, dict(cell)) for block, cells in enumerate(order) for cell in cells]

    def facts(self) -> dict[str, str]:
        """What a reader wants to know of it, in words."""
        facts = {
            "question": self.question,
            "belief": self.belief,
            "because": self.believed_because,
            "rule": self.rule.words(),
            "refuted if": self.refuted_if,
            "cells": ", ".join(cell_words(cell) for cell in self.cells),
            "control": cell_words(self.control) if self.control else "",
            "repetitions": str(self.repetitions),
            "kind": self.kind,
            "design": "over restarts" if self.design == "restarts" else "",
            "warm-up": "left out where the data show one" if self.warmup == "left out" else "",
            "negative control": self.negative_control.words() if self.negative_control else "",
            "anchor": f"{self.anchor.metric} at {cell_words(self.anchor.cell)}" if self.anchor else "",
            "hash": self.hash[:12],
        }
        return {name: text for name, text in facts.items() if text}

    def __repr__(self) -> str:
        return f"<Plan {self.experiment}: {self.belief} [{self.rule.words()}; {self.repetitions} blocks]>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from labkit.show.pieces import facts_table

        return facts_table(self.facts(), self.experiment)


def canonical_json(document: Any) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def document_hash(document: Any) -> str:
    """SHA-256 of a stored plan's canonical JSON: the hash it had when it was stored, whatever fields plans have now."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def store_plan(folder: Path, document: Mapping[str, Any], known_data: bool = False) -> dict[str, Any]:
    """Writes a plan's JSON as plan.json of a run; the fields of its record that follow. `known_data` tells that samples
    came first."""
    write_atomic(folder / "plan.json", json.dumps(dict(document), indent=2, ensure_ascii=False) + "\n")
    retrospective = known_data or document.get("kind") == "retrospective"
    return {"plan_hash": document_hash(document), "exploratory": False, "retrospective": retrospective}


def read_plan(path: Path) -> Plan:
    """The plan stored at `path`. ParameterError when it is not one."""
    return Plan.model_validate(read_document(path))


def stored_hash(path: Path) -> str:
    """The hash of the plan stored at `path`. ParameterError when it is not JSON."""
    return document_hash(read_document(path))


def read_document(path: Path) -> Any:
    """A plan's JSON. ParameterError when there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"{path} is not a plan: {error}") from None


def checked_cell(value: Any) -> Cell:
    """Knob values as plain JSON. ValueError when they are not a mapping, are empty, or hold what JSON cannot."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f'{value!r} is not a cell; give knob values, such as {{"width": 8}}')
    try:
        canonical_cell(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{value!r} cannot be a cell: {error}") from None
    return {str(name): plain_value(item) for name, item in value.items()}


def cell_words(cell: Mapping[str, Any]) -> str:
    """A cell as a reader writes it: `width=8, kv=f16`."""
    return ", ".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in cell.items())


def first_fault(what: str, error: ValidationError) -> str:
    """The first thing wrong with a declaration, in one line: `Plan.repetitions: 0 repetitions; use 1 to 1000`."""
    fault = error.errors(include_url=False)[0]
    place = ".".join([what, *(str(part) for part in fault["loc"])])
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing":
        return f"{place} is missing; a {what} needs it"
    if fault["type"] == "extra_forbidden":
        return f"{place} is not a field of a {what}"
    if fault["type"] == "value_error":
        return f"{place}: {message}"
    return f"{place} is {fault['input']!r}: {message[0].lower()}{message[1:]}"
