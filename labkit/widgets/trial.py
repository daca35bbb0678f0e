"""What one run of a kernel lab came to: faults at their lines, trials against NumPy, and the compiler's numbers."""

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from labkit.show.pieces import Html, escape, facts_table, paragraph
from labkit.widgets.swapped import Tried

if TYPE_CHECKING:
    from labkit.vulkan.isa import Statistics

AROUND = 2  # lines shown before and after a fault
CODE = (
    ("vgprs", "VGPRs"), ("sgprs", "SGPRs"), ("registers", "registers"), ("spilled", "spilled"), ("scratch_bytes", "scratch B"),
    ("shared_bytes", "shared B"), ("occupancy", "occupancy"), ("code_bytes", "code B"), ("instructions", "instructions"),
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What a trial of one's own found: the normalised mean squared error and the most it may be, seconds of one run, and
    the fewest bytes and FLOPs it takes."""

    error: float
    limit: float
    seconds: float
    nbytes: float = 0.0
    flops: float = 0.0
    label: str = "trial"
    committed_s: float | None = None  # of the operation's own shader, where there is one

    @property
    def right(self) -> bool:
        """Whether the result was."""
        return self.error <= self.limit

    @property
    def gb_s(self) -> float:
        """10^9 bytes a second; 0 where it was wrong and so not timed."""
        return self.nbytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass
class Found:
    """What one run came to."""

    source: str
    faults: list[tuple[int, str]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: "Statistics | None" = None


def of_bench(tried: Tried) -> Trial:
    """A case of the operations bench as a trial."""
    edited, case = tried.edited, tried.edited.case
    return Trial(
        edited.error, edited.limit, median(edited.seconds) if edited.seconds else 0.0, case.nbytes, case.flops, case.label,
        median(tried.committed.seconds) if tried.committed.seconds else None,
    )  # fmt: skip


def faults_html(found: Found) -> Html:
    """Each fault below its line of the text, with the lines around."""
    lines, parts = found.source.split("\n"), []
    for number, text in found.faults:
        near = range(max(1, number - AROUND), min(len(lines), number + AROUND) + 1)
        code = "".join(
            f"{'▸' if at == number else ' '}{at:4d}  {escape(lines[at - 1])}\n" + (f"       {escape(text)}\n" if at == number
                                                                                   else "") for at in near
        )  # fmt: skip
        parts.append(f"<pre>{code}</pre>\n" if near else paragraph(f"line {number}: {text}"))
    return Html("".join(parts))


def code_html(code: "Statistics") -> Html:
    """The compiler's numbers, those it gives."""
    values = {name: code.spilled if key == "spilled" else code.numbers.get(key) for key, name in CODE}
    facts = {name: f"{value:,.0f}" for name, value in values.items() if value is not None}
    return facts_table(facts, f"compiled for {code.target} by {code.driver}")
