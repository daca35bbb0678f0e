"""How often a question was tried before a run: earlier runs of the same rule, or of the same knob, metric and cells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from labkit.errors import LabError
from labkit.lab.folder import runs_folder
from labkit.lab.measurements import COLUMNS, read_rows
from labkit.lab.plan import Plan, read_plan
from labkit.lab.record import Frozen, RunRecord, canonical_cell, read_record

Fate = Literal["confirmed", "refuted", "inconclusive", "invalid", "exploratory", "stopped"]
WORDS: dict[Fate, str] = {
    "confirmed": "confirmed",
    "refuted": "refuted",
    "inconclusive": "inconclusive",
    "invalid": "invalid",
    "exploratory": "without a plan",
    "stopped": "stopped early",
}


class Attempts(Frozen):
    """The tries before this one at its question, by how they ended; all that had measured something count."""

    confirmed: int = 0
    refuted: int = 0
    inconclusive: int = 0
    invalid: int = 0
    exploratory: int = 0
    stopped: int = 0

    @property
    def before(self) -> int:
        """How many there were."""
        return sum(getattr(self, fate) for fate in WORDS)

    def words(self) -> str:
        """`attempt 4 at this question; 2 inconclusive, 1 stopped early`."""
        if not self.before:
            return "the first at this question"
        counted = [f"{getattr(self, fate)} {word}" for fate, word in WORDS.items() if getattr(self, fate)]
        return f"attempt {self.before + 1} at this question; {', '.join(counted)}"


class Tried(NamedTuple):
    """What an earlier run asked and how it ended; `plan` None where it had none."""

    record: RunRecord
    plan: Plan | None
    fate: Fate


def attempts_before(root: Path, record: RunRecord, plan: Plan) -> Attempts:
    """The attempts at the plan's question in the lab at `root` that began before the run of `record`.

    The same question is the same experiment and rule, or the same knobs, metric and cells under whatever name and
    threshold; of a run without a plan, the same experiment with samples of the rule's metric at the rule's cells."""
    fates: dict[str, int] = {}
    for tried in earlier_runs(root, record):
        folder = runs_folder(root) / tried.record.id
        if same_question(tried, plan, folder):
            fates[tried.fate] = fates.get(tried.fate, 0) + 1
    return Attempts(**fates)


def earlier_runs(root: Path, record: RunRecord) -> Iterator[Tried]:
    """Every final run that measured something and began before the run of `record`; what cannot be read is passed over."""
    for path in sorted(runs_folder(root).glob("[!.]*/run.json")):
        if path.parent.name == record.id:
            continue
        try:
            tried = read_tried(path)
        except (LabError, OSError):
            continue
        if tried is not None and (tried.record.started, tried.record.id) < (record.started, record.id):
            yield tried


_known: dict[Path, tuple[int, Tried | None]] = {}  # a final run changes seldom: each is read once a process


def read_tried(path: Path) -> Tried | None:
    """A run by its run.json; None for one that measured nothing, which was no attempt."""
    changed = path.stat().st_mtime_ns
    if path not in _known or _known[path][0] != changed:
        _known[path] = (changed, tried_in(path.parent))
    return _known[path][1]


def tried_in(folder: Path) -> Tried | None:
    """See `read_tried`."""
    samples = folder / "measurements.csv"
    if not samples.is_file() or samples.stat().st_size <= len(",".join(COLUMNS)) + 2:
        return None
    record = read_record(folder)
    plan = read_plan(folder / "plan.json") if (folder / "plan.json").is_file() else None
    return Tried(record, plan, fate_of(record, plan))


def fate_of(record: RunRecord, plan: Plan | None) -> Fate:
    """How a run ended, as an attempt."""
    if record.state != "completed":
        return "stopped"
    if plan is None:
        return "exploratory"
    outcome = (record.verdict or {}).get("outcome")
    return outcome if outcome in WORDS else "invalid"


def same_question(tried: Tried, plan: Plan, folder: Path) -> bool:
    """Whether an earlier run asked what the plan asks; see `attempts_before`."""
    other = tried.plan
    if other is not None:
        ruled = other.experiment == plan.experiment and other.rule.essence() == plan.rule.essence()
        return ruled or measured_by(other) == measured_by(plan)
    if tried.record.experiment != plan.experiment:
        return False
    wanted = {canonical_cell(cell) for cell in (plan.rule.cell, plan.rule.against) if cell is not None}
    try:
        return wanted <= {row.cell for row in read_rows(folder / "measurements.csv") if row.metric == plan.rule.metric}
    except LabError:
        return False


def measured_by(plan: Plan) -> tuple[frozenset[str], str, frozenset[str]]:
    """A plan's knobs, metric and cells."""
    return frozenset(plan.knobs), plan.rule.metric, frozenset(map(canonical_cell, plan.cells))
