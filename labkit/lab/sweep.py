"""A sweep: a table of parameter sets, one run each, whose state is the run folders and one file that outlives any kill."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.driver import notebook_in_lab, run_experiment
from labkit.lab.experiments import Experiment
from labkit.lab.grid import points_of
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.lever_checks import cannot_act, same_work, undeclared
from labkit.lab.levers import Lever, find_lever, workload
from labkit.lab.plan import cell_words
from labkit.lab.record import RunRecord, plain_value, utc_now
from labkit.lab.redact import Redactor
from labkit.lab.series import Series
from labkit.lab.sweep_file import Point, SweepFile, read_sweep, sweeps_folder


@dataclass(frozen=True)
class Asked:
    """What a person asks for: the experiment, what is fixed, what is varied, and which of it is a negative control."""

    experiment: Experiment
    fixed: dict[str, Any]
    grid: dict[str, list[Any]]
    negative_controls: tuple[str, ...] = ()
    margin: float = 0.02

    @property
    def definition(self) -> str:
        """Sixteen digits that stand for what was asked for: the same request is the same sweep."""
        text = json.dumps(
            [self.experiment.name, self.fixed, self.grid, sorted(self.negative_controls), self.margin], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def points(self) -> list[dict[str, Any]]:
        """The values of each point."""
        return points_of(self.grid)


def check_levers(asked: Asked, levers: Mapping[str, Lever]) -> list[str]:
    """Refuses a sweep over a lever that nobody declared or that cannot act somewhere in the grid, unless it is declared a
    negative control. ParameterError with the reason; else a line for each pair of points that does the same work."""
    said = []
    for name in asked.negative_controls:
        if name not in asked.grid:
            raise ParameterError(f"--negative-control {name} is not in the grid: {', '.join(asked.grid)}")
    for name, values in asked.grid.items():
        if len(values) < 2 or name in asked.negative_controls:
            continue
        if find_lever(name, levers) is None:
            raise ParameterError(f"the sweep is refused: {undeclared(name, levers)}")
        others = {key: value for key, value in asked.grid.items() if key != name}
        for rest in points_of(others):
            at = workload(asked.experiment.defaults(), asked.fixed, rest, levers=levers)
            place = f" (at {cell_words(rest)})" if rest else ""
            if reason := cannot_act(name, values, at, levers):
                raise ParameterError(
                    f"the sweep is refused: {reason}{place}. Vary it where it acts, or declare it with "
                    f"--negative-control {name}"
                )
            alike = same_work(name, values, at, levers)
            said += [f"{name} {', '.join(map(str, group))} do the same work{place}" for group in alike]
    return said


def new_sweep(lab: Lab, asked: Asked, warnings: Sequence[str] = ()) -> SweepFile:
    """A sweep none of whose points has run."""
    begun = utc_now()
    stamp = begun.replace("-", "").replace(":", "")
    return SweepFile(
        id=f"{stamp}-{asked.experiment.name}-{asked.definition}",
        experiment=asked.experiment.name,
        notebook=notebook_in_lab(lab.root, asked.experiment.path),
        notebook_sha256=asked.experiment.code_sha256(),
        definition=asked.definition,
        fixed=Redactor().value(plain_value(asked.fixed)),
        grid=asked.grid,
        negative_controls=asked.negative_controls,
        margin=asked.margin,
        begun=begun,
        points=tuple(Point(values=values) for values in asked.points),
        warnings=tuple(warnings),
    )


class Sweep(Series[SweepFile]):
    """A sweep in progress. RunError when the notebook's code is another than it began with."""

    what = "sweep"

    def __init__(self, lab: Lab, asked: Asked, file: SweepFile) -> None:
        super().__init__(lab, file, sweeps_folder(lab.root))
        self.asked = asked

    def read(self) -> SweepFile:
        file = read_sweep(self.path)
        if file.notebook_sha256 != self.asked.experiment.code_sha256():
            raise RunError(
                f"the code of {file.notebook} has changed since the sweep began on {file.begun}; its points would not be "
                f"alike: start another with --anew"
            )
        return file

    def changed(self, number: int, fields: Mapping[str, Any]) -> SweepFile:
        if "run" in fields:  # another run: what was said of the one before is over
            fields = {"worker": "", "reason": ""} | dict(fields)
        return self.file.with_point(number, **fields)

    def start(self, number: int, made: Callable[[RunRecord], None], limits: Mapping[str, Any]) -> StoredRun:
        overrides = self.asked.fixed | self.asked.points[number]
        name = f"sweep {self.file.definition}: {self.words(number)}"
        return run_experiment(self.lab, self.asked.experiment, overrides, name=name, made=made, **limits)

    def words(self, number: int) -> str:
        return cell_words(self.file.points[number].values)

    def finish(self, effects: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what the sweep measured, and when it was complete."""
        self.file = self.file.model_copy(update={"ended": utc_now(), "effects": tuple(dict(one) for one in effects)})
        self.write()
