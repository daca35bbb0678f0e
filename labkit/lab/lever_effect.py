"""What a lever was measured to do: one value against another, with interval, conditions and whether its witness moved."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from labkit.lab.levers import LEVERS, Lever, find_lever
from labkit.lab.record import Frozen
from labkit.measure import statistics
from labkit.measure.metrics import metric
from labkit.measure.statistics import Word as Outcome


class LeverEffect(Frozen):
    """A lever moved from `old` to `new`: the ratio new over old of `metric` at `cell`, with `blocks` repetitions of each.

    `paired` when both were measured in one run, in the same blocks; else each in a run of its own, and the interval holds
    the `spread` between sessions (standard deviation of logarithms, degrees of freedom, and from how many sessions it is
    known; 0 is an assumption). `at` are the other levers, `level` is the interval's."""

    lever: str
    old: str
    new: str
    at: str = ""
    metric: str
    cell: str = ""
    cells: tuple[str, str]  # old and new as measurements.csv has them
    ratio: float
    low: float | None
    high: float | None
    blocks: tuple[int, int]
    outcome: Outcome
    margin: float
    paired: bool = False
    level: float = 0.95
    spread: tuple[float, int, int] = (0.0, 1, 0)
    negative_control: bool = False
    witness: Literal["moved", "did not move", "not recorded"] = "not recorded"
    runs: tuple[str, str]
    device: str = ""
    model: str = ""
    driver: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)  # that were alike and no lever's
    unlike: tuple[str, ...] = ()  # what else differs between the two runs

    @property
    def control_moved(self) -> bool:
        """Whether this is a negative control that came out beyond the margin."""
        strict = outcome_of(self.low, self.high, self.metric, self.margin)
        return self.negative_control and strict not in ("same", "undecided")


def settings_of(
    shape: Mapping[str, Any], varied: Iterable[str], levers: Mapping[str, Lever] = LEVERS
) -> dict[str, Any]:
    """The settings of a run that no lever of `varied` sets under any of its names; what is empty or off is left out."""
    moved = {find_lever(name, levers) or name for name in varied} | set(varied)
    return {
        name: value
        for name, value in shape.items()
        if name not in moved and find_lever(name, levers) not in moved and value not in ("", False, None)
    }


def outcome_of(low: float | None, high: float | None, name: str, margin: float, paired: bool = False) -> Outcome:
    """What an interval of a ratio of `name` says; see `comparison_word`. Where it is not
    `paired` by block, a difference must lie beyond the margin."""
    return statistics.comparison_word(low, high, metric(name).better, margin, beyond=not paired)


def effect_line(effect: LeverEffect) -> str:
    """One line: `kv=f16 to kv=f32: decode_tok_s 0.912× [0.90, 0.93], slower (10 and 10 blocks)`."""
    from labkit.lab.verdict import effect_words

    place = ", ".join(part for part in (effect.at, effect.cell) if part)
    number = effect_words(effect.ratio, effect.low, effect.high, True, "")
    parts = [
        f"{effect.old} to {effect.new}{f' at {place}' if place else ''}: {effect.metric} {number}, {effect.outcome}"
    ]
    if effect.negative_control:
        parts.append("NEGATIVE CONTROL MOVED" if effect.control_moved else "negative control")
    if effect.witness == "did not move":
        parts.append("its witness did not move")
    if effect.unlike:
        parts.append(f"also different: {', '.join(effect.unlike)}")
    return "; ".join([*parts, evidence(effect)])


def evidence(effect: LeverEffect) -> str:
    """What it rests on, in words."""
    if effect.paired:
        return f"{effect.blocks[0]} pairs of one run"
    known = f"known from {effect.spread[2]}" if effect.spread[2] else "assumed"
    spread = f"spread of sessions {100 * effect.spread[0]:.2g} %, {known}"
    return f"{effect.blocks[0]} and {effect.blocks[1]} blocks, one run each; {spread}"
