"""An upgrade in questions: each asked before and after, as a ratio of speeds with simultaneous intervals, and a word."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.audit.run_files import read_lines
from labkit.errors import RunError
from labkit.lab.compare import CellRatio, cell_ratio
from labkit.lab.effects import by_block
from labkit.lab.measurements import Measurement
from labkit.lab.pictures.forest import Branch
from labkit.lab.record import canonical_cell
from labkit.measure.metrics import metric as known_metric
from labkit.measure.serving.parting import Parting, parting
from labkit.measure.statistics import MARGIN, comparison_word, family_level, paired_ratios
from labkit.models.model import Model

Word = Literal["better", "worse", "same", "undecided", "invalid"]
ANSWERS = {"prefill": "prefill_tok_s", "decode": "decode_tok_s", "mixed": "total_tok_s", "load": "load_s"}  # by phase


@dataclass(frozen=True)
class Change:
    """One question before and after: `old` and `new` in the metric's unit; `ratio` with its interval is that of speeds,
    above 1 better, whichever way the metric is; `each` are those of the pairs."""

    question: str
    metric: str
    unit: str
    old: float
    new: float
    ratio: float
    low: float | None
    high: float | None
    word: Word
    spread: str = ""
    each: tuple[float, ...] = ()

    @property
    def branch(self) -> Branch:
        """As the forest plot draws it."""
        return Branch(self.question, self.ratio, self.low, self.high, self.word, self.each)

    def row(self) -> tuple[Any, ...]:
        """Question, before, after, unit, ratio, low, high, word."""
        return (self.question, self.old, self.new, self.unit, self.ratio, self.low, self.high, self.word)


def change_of(found: CellRatio, margin: float = MARGIN, each: Sequence[float] = (), undecided: bool = False) -> Change:
    """A ratio of `lab compare` as a change: turned where less is better, with the word for that margin. `undecided`: nothing
    is to be said of it, since no anchor holds; an *invalid* stays one."""
    better = known_metric(found.metric).better
    turned = better == "lower"
    ratio, low, high = found.ratio, found.low, found.high
    if turned:
        ratio, low, high = 1 / ratio, None if high is None else 1 / high, None if low is None else 1 / low
    said = comparison_word(low, high, "higher", margin)
    words: dict[str, Word] = {"faster": "better", "slower": "worse", "same": "same"}
    word = words.get(said, "undecided")
    if found.word == "invalid":
        word = "invalid"
    elif undecided:
        word = "undecided"
    return Change(
        question_words(found.cell), found.metric, found.unit, found.old, found.new, ratio, low, high, word, found.spread,
        tuple(1 / value if turned else value for value in each),
    )  # fmt: skip


def question_words(cell: str) -> str:
    """A question as a reader asks it, from the words of its cell: `decoding, 4 streams behind 16 tokens`."""
    knobs = dict(part.partition("=")[::2] for part in cell.split(", "))
    streams = f"{knobs.get('streams', '?')} stream{'s' * (knobs.get('streams') != '1')}"
    words = {
        "prefill": f"reading {knobs.get('prompt', '?')} tokens",
        "decode": f"decoding, {streams} behind {knobs.get('prompt', '?')} tokens",
        "mixed": f"mixed load, {streams}",
        "load": "loading the model",
    }
    return words.get(knobs.get("phase", ""), cell)


def changes(
    rows: Sequence[Measurement], knob: str, before: str, after: str, cells: Iterable[Mapping[str, Any]], margin: float = MARGIN,
    invalid: bool = False,
) -> tuple[list[Change], float]:  # fmt: skip
    """Every question that was measured on both sides, paired by block, and the level of each interval: all hold together in
    95 % of cases (Bonferroni). `cells` are the plan's, of which `knob` says the side; a question's metric follows from its
    `phase`. `rows`: of a plan over restarts, as `started_rows` gives them."""
    ends = []
    for cell in cells:
        if cell[knob] != after:
            continue
        old, new = canonical_cell({**cell, knob: before}), canonical_cell(cell)
        name = ANSWERS[cell["phase"]]
        values = by_block(rows, name, old), by_block(rows, name, new)
        if values[0].keys() & values[1].keys():
            ends.append((old, new, name, values))
    level = family_level(max(1, len(ends)))
    found = []
    for old, new, name, values in ends:
        ratio = cell_ratio((old, new), name, values, level, None, None, invalid=invalid)
        found.append(change_of(ratio, margin, paired_ratios(values[1], values[0]).ratios))
    return found, level


def greedy_outputs(folder: Path, knob: str, side: str) -> dict[str, tuple[list[int], list[int]]]:
    """What a side said greedily in the run of `folder`, phase `greedy` of its requests: hash of the prompt → (ids of the
    prompt, ids that followed)."""
    found = {}
    for row in read_lines(folder / "requests.jsonl"):
        cell = row.get("cell")
        if isinstance(cell, dict) and cell.get("phase") == "greedy" and cell.get(knob) == side and "token_ids" in row:
            found[str(row["prompt_sha256"])] = (list(row["prompt_ids"]), list(row["token_ids"]))
    return found


def partings(
    model: Model, before: Mapping[str, tuple[list[int], list[int]]], after: Mapping[str, tuple[list[int], list[int]]]
) -> tuple[list[Parting], int]:
    """Where the outputs of the prompts that both sides had part, and how many prompts those are."""
    both = [prompt for prompt in before if prompt in after]
    ends = model.tokenizer.eos_ids
    found = (parting(model, before[prompt][0], before[prompt][1], after[prompt][1], ends) for prompt in both)
    return [one for one in found if one is not None], len(both)


def output_words(found: Sequence[Parting], prompts: int) -> str:
    """What became of the outputs, in a sentence's part."""
    others = [one for one in found if not one.tie]
    if not prompts:
        return "outputs not compared: no prompt of both"
    if not found:
        return f"outputs equal ({prompts} prompts)"
    if not others:
        return f"outputs equal up to near-ties ({len(found)} of {prompts} prompts part at one)"
    worst = max(one.gap for one in others)
    return f"outputs changed: {len(others)} of {prompts} prompts part where the two tokens lie up to {worst:.2g} nats apart"


def told_apart(before: str, after: str, control: bool) -> None:
    """RunError where both sides are one engine by what their processes report, unless that is the control; and where the
    control's are not."""
    if before == after and not control:
        raise RunError(
            f"before and after are the same engine, {after}: there is no upgrade to judge. Give two versions or flags, or "
            f"control=True to see what the same engine twice gives"
        )
    if before != after and control:
        raise RunError(f"control=True takes the same engine twice, and these are two: {before}, and {after}")


def tally(found: Iterable[Change]) -> str:
    """`2 better, 1 worse, 3 same, 1 undecided`."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.word] = counts.get(one.word, 0) + 1
    order = ("better", "worse", "same", "undecided", "invalid")
    return ", ".join(f"{counts[word]} {word}" for word in order if word in counts) or "nothing measured on both sides"
