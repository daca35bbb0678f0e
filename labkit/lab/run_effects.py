"""What a planned run measured beside its rule: from the control outward, one knob at a time, and its negative control."""

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.lab.lever_effect import LeverEffect, outcome_of, settings_of
from labkit.lab.lever_ratio import paired_ratio
from labkit.lab.plan import Plan, cell_words
from labkit.lab.record import RunRecord, canonical_cell
from labkit.lab.scope import device_words, driver_words, model_words, shape_of
from labkit.measure import statistics

Cell = Mapping[str, Any]


def effects_of_run(record: RunRecord, plan: Plan, rows: Sequence[Any]) -> list[LeverEffect]:
    """The paired ratio of each cell that differs from the control in one knob, over the control, with intervals that hold
    together (Bonferroni); the rule's own pair has its entry and is left out, its negative control is there and marked."""
    pairs = [pair for pair in one_knob_away(plan) if not of_rule(plan.rule, *pair)]
    control = plan.negative_control
    asked = [
        (cell, against, False) for cell, against in pairs if control is None or not of_rule(control, cell, against)
    ]
    if control is not None and control.against is not None:
        asked.append((control.cell, control.against, True))
    level = statistics.family_level(max(1, len(asked)))
    settings = settings_of(shape_of(record) if plan.shape is None else plan.shape, plan.knobs)
    found = []
    for cell, against, negative in asked:
        rule = control if negative and control is not None else plan.rule
        margin = rule.margin or statistics.MARGIN
        effect = paired(record, rule.metric, cell, against, rows, level, margin, negative, settings)
        if effect is not None:
            found.append(effect)
    return found


def one_knob_away(plan: Plan) -> list[tuple[Cell, Cell]]:
    """(cell, control) for each cell that differs from the control in one knob; without a control, from what the rule
    compares with, else from the first cell."""
    control = plan.control or plan.rule.against or plan.cells[0]
    return [
        (cell, control)
        for cell in plan.cells
        if len([name for name in plan.knobs if cell.get(name) != control.get(name)]) == 1
    ]


def of_rule(rule: Any, cell: Cell, against: Cell) -> bool:
    """Whether a rule compares these two cells."""
    ends = [canonical_cell(end) for end in (rule.cell, rule.against) if end is not None]
    return sorted(ends) == sorted([canonical_cell(cell), canonical_cell(against)])


def paired(
    record: RunRecord, name: str, cell: Cell, against: Cell, rows: Sequence[Any], level: float, margin: float, negative: bool,
    settings: Mapping[str, Any],
) -> LeverEffect | None:  # fmt: skip
    """The effect between two cells of one run; None where they have no block in common or a sample is not positive."""
    old, new = canonical_cell(against), canonical_cell(cell)
    found = paired_ratio(rows, name, new, old, level)
    if found is None:
        return None
    moved = [knob for knob in cell if cell.get(knob) != against.get(knob)]
    return LeverEffect(
        lever=", ".join(moved),
        old=cell_words({knob: against.get(knob) for knob in moved}),
        new=cell_words({knob: cell[knob] for knob in moved}),
        at=cell_words({knob: value for knob, value in cell.items() if knob not in moved}),
        metric=name,
        cells=(old, new),
        **found._asdict(),
        outcome=outcome_of(found.low, found.high, name, margin, paired=True),
        margin=margin,
        paired=True,
        level=level,
        negative_control=negative,
        runs=(record.id, record.id),
        device=device_words(record),
        model=model_words(record.model),
        driver=driver_words(record.device),
        settings=dict(settings),
    )
