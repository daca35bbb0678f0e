"""Promoting: what a run without a plan found is repeated as a planned run, its cells and knobs taken from the samples."""

import atexit
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError, RunError
from labkit.lab.effects import by_block, centre
from labkit.lab.levers import find_lever
from labkit.lab.measurements import Measurement, read_rows
from labkit.lab.plan import Cell, Plan, Rule, cell_words, checked_cell
from labkit.lab.record import canonical_cell
from labkit.lab.starts import read_starts
from labkit.measure.metrics import metric as known_metric
from labkit.measure.statistics import MARGIN

if TYPE_CHECKING:
    from labkit.lab.lab import Lab, StoredRun
    from labkit.lab.run import Run


def promote(
    run: "Run",
    belief: str,
    rule: Rule | None = None,
    *,
    metric: str | None = None,
    control: Mapping[str, Any] | None = None,
    repetitions: int = 10,
    measure: Callable[[dict[str, Any]], Mapping[str, Any] | float] | None = None,
    **fields: Any,
) -> "Run":
    """A new run with a plan for what `run` found without one; the samples of the old run stay in its own record.

    The plan has the cells and knobs of the samples, and is stored before anything is measured again. `rule` decides;
    left out, it is that the cell furthest from `control` (else from the first cell) in `metric` (else the first that was
    measured) lies on the side of 1 where it was found. `fields` are further fields of the plan. With `measure`, which
    takes a cell and returns its metrics by id (or the metric alone), every block is measured here, in the plan's order;
    without, the caller goes through `plan.schedule()`. Samples of a knob that acts by restart, which said their start,
    make a plan over restarts; then `measure` returns what it made anew too, as "start". The new run is open when it is
    returned: check what it computes, then `conclude()` it. Device and model are described as they were.

    By hand the old run is closed. In a notebook under `lab run` it goes on, and the new run is one of its own beside it.
    RunError where `run` has a plan already or is closed; ParameterError where its samples do not make one."""
    if run.closed:
        raise RunError(f"the run {run.id} is closed; promote it while it is open, or give its plan to a new run")
    if run.record.plan_hash is not None:
        raise RunError(f"the run {run.id} has a plan; `lab rerun {run.id}` repeats it")
    fields = design_of(run.folder, run.samples) | fields
    plan = plan_of_samples(run.experiment, run.samples, belief, rule, metric, control, repetitions, run.id, **fields)
    new = beside(run)
    new.plan(plan)
    new.describe(**run.described, programs=run.record.program_fingerprints, promoted_from=run.id)
    if not run.attached:
        run.end("completed", f"promoted to {new.id}")
    if measure is not None:
        schedule = plan.schedule()
        for number, (block, cell) in enumerate(schedule):
            new.progress(number, len(schedule), f"block {block + 1} of {repetitions}, {cell_words(cell)}")
            found = measure(dict(cell))
            new.measure(cell, block, **(found if isinstance(found, Mapping) else {plan.rule.metric: found}))
    return new


def promote_stored(
    lab: "Lab",
    run_id: str,
    belief: str,
    *,
    metric: str | None = None,
    control: Mapping[str, Any] | None = None,
    repetitions: int = 10,
    **options: Any,
) -> "StoredRun":
    """Runs the notebook of a stored run without a plan again, as `lab run` does, with a plan that is stored before the
    notebook begins: its cells, knobs and rule are those of the stored samples, as in `promote`. `repetitions` is handed
    to the notebook where it has such a parameter; else it makes as many as it did. `options` are those of
    `run_experiment`. The closed run, not yet in the ledger.

    RunError where the stored run has a plan or no notebook; ParameterError where its samples do not make a plan."""
    from labkit.lab.driver import run_experiment, stored_experiment, stored_overrides
    from labkit.lab.lever_checks import check_plan
    from labkit.lab.levers import known_levers

    stored = lab.find_run(run_id)
    if stored.record.plan_hash is not None:
        raise RunError(f"the run {stored.record.id} has a plan; `lab rerun {stored.record.id}` repeats it")
    rows = read_rows(stored.folder / "measurements.csv")
    experiment = stored_experiment(lab, stored.record)
    given = {"repetitions": repetitions} if "repetitions" in experiment.parameters else {}
    blocks = repetitions if given else max((row.block for row in rows), default=0) + 1
    plan = plan_of_samples(
        stored.record.experiment,
        rows,
        belief,
        metric=metric,
        control=control,
        repetitions=blocks,
        found_in=stored.record.id,
        **design_of(stored.folder, rows),
    )
    overrides = stored_overrides(experiment, stored.record, replaced=given) | given
    check_plan(plan, experiment.defaults() | overrides, known_levers(lab.root))
    document = plan.model_dump(mode="json")
    return run_experiment(
        lab, experiment, overrides, name=f"promoted from {stored.record.id}", plan=document, **options
    )


def design_of(folder: Path, rows: Sequence[Measurement]) -> dict[str, Any]:
    """The design of a plan that repeats the run in `folder`: over restarts where its samples say their start, and a knob
    of them needs one."""
    cells = [json.loads(text) for text in dict.fromkeys(row.cell for row in rows)]
    knobs = dict.fromkeys(name for cell in cells for name in cell)
    moved = [name for name in knobs if len({repr(cell.get(name)) for cell in cells}) > 1]
    needing = [found for name in moved if (found := find_lever(name)) is not None and found.needs]
    return {"design": "restarts"} if needing and read_starts(folder) else {}


def beside(run: "Run") -> "Run":
    """An empty run of the same experiment with the same parameters, in a folder of its own."""
    from labkit.lab.lab import _open_runs
    from labkit.lab.run import Run

    record = run.lab.new_record(run.experiment, run.parameters, interactive=not run.attached)
    new = Run(run.lab, record, None, run.waits)
    if not run.attached:
        _open_runs[run.lab.root, run.experiment] = new
    atexit.register(new.close)
    return new


def plan_of_samples(
    experiment: str,
    rows: Sequence[Measurement],
    belief: str,
    rule: Rule | None = None,
    metric: str | None = None,
    control: Mapping[str, Any] | None = None,
    repetitions: int = 10,
    found_in: str = "",
    **fields: Any,
) -> Plan:
    """The plan that repeats what the samples show. ParameterError where they show nothing a rule could be about."""
    if not rows:
        raise ParameterError("nothing was measured yet, so there is nothing to promote; run.plan(...) takes a plan")
    name = metric or (rule.metric if rule else rows[0].metric)
    known_metric(name)
    cells: list[Cell] = [json.loads(text) for text in dict.fromkeys(row.cell for row in rows if row.metric == name)]
    if not cells:
        measured = ", ".join(dict.fromkeys(row.metric for row in rows))
        raise ParameterError(f"{name} was not measured; there are samples of {measured}")
    base = checked_control(control if control is not None else rule.against if rule else None, cells)
    names = list(dict.fromkeys(knob for cell in cells for knob in cell))
    knobs = [knob for knob in names if len({canonical_cell({"": cell.get(knob)}) for cell in cells}) > 1] or names
    why = ""
    if rule is None:
        rule, why = rule_found(rows, name, cells, base, found_in)
    return Plan(
        **{
            "experiment": experiment,
            "belief": belief,
            "believed_because": why,
            "knob": knobs[0] if len(knobs) == 1 else tuple(knobs),
            "cells": cells,
            "control": base,
            "rule": rule,
            "repetitions": repetitions,
            "kind": "confirmatory",
            "held": False,  # nobody acts on what was found a moment ago
            **fields,
        }
    )


def checked_control(control: Mapping[str, Any] | None, cells: Sequence[Cell]) -> Cell:
    """The control as one of the cells, the first where none is given. ParameterError where it was not measured."""
    if control is None:
        return cells[0]
    try:
        wanted = canonical_cell(checked_cell(control))
    except ValueError as error:
        raise ParameterError(f"control: {error}") from None
    for cell in cells:
        if canonical_cell(cell) == wanted:
            return cell
    measured = ", ".join(map(canonical_cell, cells))
    raise ParameterError(f"control is {wanted}, which was not measured; there are {measured}")


def rule_found(
    rows: Sequence[Measurement], name: str, cells: Sequence[Cell], base: Cell, found_in: str
) -> tuple[Rule, str]:
    """(the rule that the cell furthest from the control stays on its side of it, what was found). ParameterError for one
    cell, or samples that have no ratio."""
    middles = {
        canonical_cell(cell): centre(list(by_block(rows, name, canonical_cell(cell)).values())) for cell in cells
    }
    bottom = middles[canonical_cell(base)]
    others = [cell for cell in cells if cell is not base]
    if not others:
        raise ParameterError(
            f"only {cell_words(base)} was measured; give a rule with a threshold: promote(belief, rule=…)"
        )
    if min(middles.values()) <= 0:
        raise ParameterError(f"{name} has samples that are not above 0, so it has no ratios; give a rule")
    ratios = [middles[canonical_cell(cell)] / bottom for cell in others]
    best = max(range(len(others)), key=lambda at: max(ratios[at], 1 / ratios[at]))
    rule = Rule(
        metric=name, cell=others[best], against=base, comparison=">=" if ratios[best] >= 1 else "<=", threshold=1.0,
        margin=MARGIN,
    )  # fmt: skip
    return rule, f"{found_in or 'a run without a plan'} found {ratios[best]:.4g}×, without a plan"
