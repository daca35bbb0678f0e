"""The sweeps of the ledger as the table of LEVERS.md: each lever from one value to another, the newest sweep's row."""

from collections.abc import Sequence

from labkit.lab.conditions import driver_words, shape_words
from labkit.lab.entry_text import md
from labkit.lab.events import Stored, SweepEvent
from labkit.lab.lever_effect import LeverEffect, evidence

HEAD = (
    "## What sweeps measured",
    "",
    "From one value of a lever to another, all else as it stands under *at*. Intervals of one sweep hold together where",
    "both values were measured in one run; a lever that needs a restart was measured in a run for each value.",
    "",
    "| lever | from | to | at | metric | effect | outcome | evidence | witness | device | driver | model | settings | date |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def sweeps_text(sweeps: Sequence[Stored]) -> str:
    """The table, newest sweep first; of a comparison that was measured again, the newest row and how often it was."""
    rows: dict[tuple[str, ...], tuple[str, LeverEffect, str]] = {}
    times: dict[tuple[str, ...], int] = {}
    for item in sorted(sweeps, key=lambda item: item.name, reverse=True):
        event = item.event
        assert isinstance(event, SweepEvent)
        for effect in event.effects:
            key = comparison(event.experiment, effect)
            times[key] = times.get(key, 0) + 1
            rows.setdefault(key, (event.day, effect, "void: a negative control moved" if event.void else ""))
    return "\n".join([*HEAD, *(row(day, effect, void, times[key]) for key, (day, effect, void) in rows.items())])


def comparison(experiment: str, effect: LeverEffect) -> tuple[str, ...]:
    """What makes two rows the same question under the same conditions."""
    under = (effect.device, effect.driver, effect.model, shape_words(effect.settings))
    return (experiment, effect.old, effect.new, effect.at, effect.cell, effect.metric, *under)


def row(day: str, effect: LeverEffect, void: str, times: int) -> str:
    """One row of the table."""
    from labkit.lab.verdict import effect_words

    outcome = (
        f"negative control: {'MOVED' if effect.control_moved else effect.outcome}" if effect.negative_control else ""
    )
    place = ", ".join(part for part in (effect.at, effect.cell) if part)
    grounds = [
        evidence(effect),
        f"newest of {times}" if times > 1 else "",
        *(f"{what} differs" for what in effect.unlike),
    ]
    run = effect.runs[1]
    cells = (
        effect.lever, effect.old, effect.new, place, effect.metric,
        effect_words(effect.ratio, effect.low, effect.high, True, ""), void or outcome or effect.outcome,
        "; ".join(part for part in grounds if part), effect.witness,
        effect.device, driver_words(effect.driver), effect.model, shape_words(effect.settings),
    )  # fmt: skip
    return "| " + " | ".join([*(md(cell) for cell in cells), f"[{day}](data/runs/{run}/)"]) + " |"
