"""What must hold before a lever is varied: it is declared, and at this workload its values do not come to the same."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.lab.levers import ANEW, LEVERS, OWN_FILE, At, Lever, find_lever, workload

if TYPE_CHECKING:
    from labkit.lab.plan import Plan, Rule
    from labkit.lab.record import RunRecord


def undeclared(name: str, levers: Mapping[str, Lever] = LEVERS) -> str:
    """Why a knob nobody declared may not be varied."""
    from labkit.lab.scope import NOT_SHAPE

    if name in NOT_SHAPE or name in ("quick", "compare", "control_margin"):
        return f"{name} says what is asked or how often, and is no lever"
    own = ", ".join(dict.fromkeys(found.name for found in levers.values()))
    return (
        f"{name} is not a declared lever (there are: {own}); declare it in {OWN_FILE} with what it is, how it acts and "
        f"what witnesses it, or declare it a negative control"
    )


def comes_to(name: str, value: Any, at: At, levers: Mapping[str, Lever] = LEVERS) -> tuple[Any, str]:
    """What a value of a lever amounts to at a workload, and why where that is not the value. A list, as a parameter that
    makes the notebook's own cells takes it, amounts to what its items do, each once; a list of one is its item."""
    found = find_lever(name, levers)
    if found is None:
        return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value, ""
    if not isinstance(value, list | tuple) or not value:
        return found.comes_to(value, at)
    items = [found.comes_to(item, at) for item in value]
    why = next((said for _, said in items if said), "")
    if not why and len(items) > 1:
        return value, ""
    outcomes = list({repr(outcome): outcome for outcome, _ in items}.values())
    return outcomes[0] if len(outcomes) == 1 else outcomes, why


def same_work(name: str, values: Sequence[Any], at: At, levers: Mapping[str, Lever] = LEVERS) -> list[tuple[Any, ...]]:
    """Groups of two and more values of a lever that come to the same at a workload, in order."""
    groups: dict[str, list[Any]] = {}
    for value in {repr(value): value for value in values}.values():
        groups.setdefault(repr(comes_to(name, value, at, levers)[0]), []).append(value)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def cannot_act(name: str, values: Sequence[Any], at: At, levers: Mapping[str, Lever] = LEVERS) -> str:
    """Why a lever set to each of `values` changes nothing at a workload; nothing when it acts, or has one value."""
    alike = same_work(name, values, at, levers)
    if not alike or len(alike[0]) < len({repr(value) for value in values}):
        return ""
    why = next((said for value in reversed(alike[0]) if (said := comes_to(name, value, at, levers)[1])), "")
    shown = ", ".join(str(value[0] if isinstance(value, list) and len(value) == 1 else value) for value in alike[0])
    return f"{name} cannot act at {shown}: {why}"


def groups_of(cells: Sequence[At], name: str) -> list[tuple[dict[str, Any], list[Any]]]:
    """(the other knobs, the values of `name` measured with them), for each setting of the other knobs."""
    found: dict[str, tuple[dict[str, Any], list[Any]]] = {}
    for cell in cells:
        if name not in cell:
            continue
        rest = without(cell, name)
        key = json.dumps(rest, sort_keys=True, default=str)
        found.setdefault(key, (rest, []))[1].append(cell[name])
    return list(found.values())


def check_plan(plan: "Plan", parameters: At, levers: Mapping[str, Lever] = LEVERS) -> None:
    """Refuses a plan over a lever that nobody declared, that cannot act, or that needs a restart which the plan's design
    does not give it, with the reason. ParameterError.

    Cells that a negative control compares may be out of the lever's reach: that is what they are for."""
    control = plan.negative_control
    exempt = [cell for cell in (control.cell, control.against) if cell is not None] if control else []
    varied = [name for name in plan.knobs if len({repr(cell[name]) for cell in plan.cells}) > 1]
    for name in varied:
        if find_lever(name, levers) is None and not only_controlled(plan.cells, exempt, name):
            raise ParameterError(f"the plan is refused: {undeclared(name, levers)}")
    if plan.rule.against is not None and not (control and same_pair(plan.rule, control)):
        moved = [name for name in varied if plan.rule.cell.get(name) != plan.rule.against.get(name)]
        reasons = [reason_between(name, plan.rule, parameters, levers) for name in moved]
        if moved and all(reasons):
            raise ParameterError(
                f"the plan is refused: {'; '.join(reasons)}. Compare where it acts, or make this its negative control"
            )
    for name in varied:
        for others, values in groups_of(plan.cells, name):
            reason = cannot_act(name, values, workload(parameters, others, levers=levers), levers)
            if reason and not any(others | {name: value} in exempt for value in values):
                raise ParameterError(
                    f"the plan is refused: {reason}{where(others)}. Leave these cells out, or declare them the "
                    f"negative control"
                )
    check_design(plan, varied, parameters, levers)


def check_design(plan: "Plan", varied: Iterable[str], parameters: At, levers: Mapping[str, Lever] = LEVERS) -> None:
    """Refuses a plan that measures in turns what acts by restart, or that would change the driver within a run."""
    for name in varied:
        found = find_lever(name, levers)
        if found is None:
            continue
        needs = {needed for cell in plan.cells if (needed := found.needs_at(workload(parameters, cell, levers=levers)))}
        if "driver" in needs:
            raise ParameterError(
                f"the plan is refused: {name} acts by {ANEW['driver']}, and a run has one. Measure before and after in runs "
                f"of their own, both with Plan(anchor=labkit.lab.anchor.stream_anchor()), then `lab compare BEFORE AFTER`"
            )
        if needs and plan.design == "interleaved":
            anew = ANEW[next(each for each in ANEW if each in needs)]
            raise ParameterError(
                f"the plan is refused: {name} acts by restart, and in turns every repetition would be of one start. It "
                f'needs {anew}. Say Plan(design="restarts"), make it anew for each cell of each block, and '
                f"hand it over: run.measure(cell, block, start=engine, ...)"
            )


def only_controlled(cells: Sequence[At], exempt: Sequence[At], name: str) -> bool:
    """Whether a lever is varied in the cells of the negative control alone."""
    left = [cell for cell in cells if cell not in exempt]
    return bool(exempt) and all(len(values) < 2 for _, values in groups_of(left, name))


def same_pair(a: "Rule", b: "Rule") -> bool:
    """Whether two rules compare the same cells."""
    return a.cell == b.cell and a.against == b.against


def reason_between(name: str, rule: "Rule", parameters: At, levers: Mapping[str, Lever]) -> str:
    """Why a lever that a rule moves changes nothing: its values come to the same at either end's workload."""
    assert rule.against is not None
    values = [rule.against[name], rule.cell[name]]
    reasons = [
        cannot_act(name, values, workload(parameters, without(end, name), levers=levers), levers)
        for end in (rule.cell, rule.against)
    ]
    return reasons[0] if all(reasons) else ""


def without(cell: At, name: str) -> dict[str, Any]:
    """The cell's other knobs."""
    return {key: value for key, value in cell.items() if key != name}


def where(others: At) -> str:
    """The other knobs of a group, in words."""
    from labkit.lab.plan import cell_words

    return f" (at {cell_words(others)})" if others else ""


def witness_of(name: str, record: "RunRecord", folder: Path, levers: Mapping[str, Lever] = LEVERS) -> Any:
    """What a record says of a lever's witness, None where it says nothing: fingerprints by label, the values of a metric
    by cell, the values of a column of requests.jsonl by cell, or a field of run.json. Two runs whose witness is equal
    were not told apart by the lever."""
    found = find_lever(name, levers)
    if found is None:
        return None
    witness = found.witness
    if witness.kind == "fingerprint":
        return dict(record.program_fingerprints) or None
    if witness.kind == "readback" and witness.name != "cell":
        value: Any = json.loads(record.to_json())
        for part in witness.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value
    from labkit.lab.measurements import read_rows

    rows = read_rows(folder / "measurements.csv")
    if witness.name == "cell":
        return sorted({row.cell for row in rows}) or None
    by_cell: dict[str, set[Any]] = {}
    for row in rows:
        if row.metric == witness.name:
            by_cell.setdefault(row.cell, set()).add(row.value)
    for cell, value in request_values(folder / "requests.jsonl", witness.name):
        by_cell.setdefault(cell, set()).add(value)
    return {cell: sorted(values, key=repr) for cell, values in sorted(by_cell.items())} or None


def request_values(path: Path, column: str) -> Iterable[tuple[str, Any]]:
    """(cell, value) of a column of requests.jsonl, line by line; a damaged line is passed over."""
    from labkit.lab.record import canonical_cell

    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
                if column in row:
                    yield canonical_cell(row["cell"]), row[column]
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
