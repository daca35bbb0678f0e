"""A sweep: a table of parameter sets, one run each, whose state is the run folders and one file that outlives any kill."""

import contextlib
import hashlib
import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.driver import notebook_in_lab, resume_run, run_experiment
from labkit.lab.experiments import Experiment
from labkit.lab.folder import close_dead_runs, runs_folder
from labkit.lab.grid import points_of
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.lever_checks import cannot_act, same_work, undeclared
from labkit.lab.levers import Lever, find_lever, workload
from labkit.lab.lock import ProcessLock
from labkit.lab.plan import cell_words
from labkit.lab.record import read_record, utc_now, write_atomic
from labkit.lab.sweep_file import Point, SweepFile, read_sweep, state_of, sweeps_folder

CLOSING_S = 30.0  # how long the process of a killed point may take to close its record


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
        fixed=asked.fixed,
        grid=asked.grid,
        negative_controls=asked.negative_controls,
        margin=asked.margin,
        begun=begun,
        points=tuple(Point(values=values) for values in asked.points),
        warnings=tuple(warnings),
    )


@dataclass
class Night:
    """How long a sweep may take and whether a person asked it to stop."""

    budget_s: float | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.took: list[float] = []

    @property
    def left_s(self) -> float | None:
        """Seconds of the budget that are left."""
        return None if self.budget_s is None else max(0.0, self.budget_s - (time.monotonic() - self.began))

    @property
    def each_s(self) -> float | None:
        """Seconds a point took, None before one was done."""
        return sum(self.took) / len(self.took) if self.took else None

    def room(self) -> bool:
        """Whether another point is likely to fit."""
        left = self.left_s
        return not self.stopped and (left is None or left > (self.each_s or 0.0))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, Ctrl-C and termination end the sweep after the point that runs has closed its record."""

        def stop(number: int, frame: Any) -> None:
            self.stopped = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class How:
    """How the points are run: limits a run, whether it waits for the device, and what is done once it has ended."""

    timeout_s: float | None = None
    cell_timeout_s: float | None = None
    wait: bool = True
    quiet: bool = True
    settle: Callable[[StoredRun], None] = lambda run: None
    say: Callable[[str], None] = lambda text: None


class Sweep:
    """A sweep in progress, held by this process alone; a context manager. RunError when another process has it."""

    def __init__(self, lab: Lab, asked: Asked, file: SweepFile) -> None:
        self.lab, self.asked, self.file = lab, asked, file
        folder = sweeps_folder(lab.root)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{file.id}.json"
        self.lock = ProcessLock(folder / f".{file.id}.lock")

    def __enter__(self) -> "Sweep":
        if not self.lock.acquire():
            raise RunError(f"the sweep {self.file.id} is being run by another process")
        if self.path.exists():
            self.file = read_sweep(self.path)
        else:
            self.write()
        if self.file.notebook_sha256 != self.asked.experiment.code_sha256():
            raise RunError(
                f"the code of {self.file.notebook} has changed since the sweep began on {self.file.begun}; its points "
                f"would not be alike: start another with --anew"
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self.lock.path.unlink(missing_ok=True)
        self.lock.release()

    def write(self) -> None:
        """Swaps the file in whole."""
        write_atomic(self.path, self.file.model_dump_json(indent=2) + "\n")

    def note(self, number: int, **fields: Any) -> None:
        """Changes one point, on the disk when it returns."""
        self.file = self.file.with_point(number, **fields)
        self.write()

    def states(self) -> list[str]:
        """The state of each point."""
        return [state_of(self.lab.root, point) for point in self.file.points]

    def missing(self) -> list[int]:
        """The points without a completed run."""
        return [number for number, state in enumerate(self.states()) if state != "completed"]

    def run(self, night: Night, how: How) -> None:
        """Runs what is missing, in order, as far as the night reaches; then what is complete is settled."""
        self._settle(how)
        todo = self.missing()
        for done, number in enumerate(todo):
            if not night.room():
                break
            left = night.each_s and night.each_s * (len(todo) - done)
            how.say(self._line(number, done, len(todo), left))
            began = time.monotonic()
            run = self._run_point(number, night, how)
            if run.record.state == "completed":
                night.took.append(time.monotonic() - began)
            else:
                how.say(f"  {run.record.state}: {run.record.reason}")
            self._settle(how)

    def _run_point(self, number: int, night: Night, how: How) -> StoredRun:
        """A run of one point: the one it has is taken up, else a new one, whose name is on the disk before it starts."""
        point = self.file.points[number]
        limits: dict[str, Any] = {
            "timeout_s": min((x for x in (how.timeout_s, night.left_s) if x is not None), default=None),
            "cell_timeout_s": how.cell_timeout_s,
            "wait": how.wait,
            "quiet": how.quiet,
        }
        state = self._settled_state(point)
        if state == "damaged":
            raise RunError(
                f"the record of {point.run} cannot be read; put it right or remove its folder, then --resume"
            )
        if point.run is not None and state != "missing":
            return resume_run(self.lab, point.run, **limits)
        return run_experiment(
            self.lab,
            self.asked.experiment,
            self.asked.fixed | self.asked.points[number],
            name=f"sweep {self.file.definition}: {cell_words(point.values)}",
            made=lambda record: self.note(number, run=record.id),
            **limits,
        )

    def _settled_state(self, point: Point) -> str:
        """A point's state once the process of a killed run has closed its record."""
        end = time.monotonic() + CLOSING_S
        while (state := state_of(self.lab.root, point)) == "running":
            close_dead_runs(self.lab.root)
            if time.monotonic() > end:
                raise RunError(f"{point.run} is still being run by another process; wait for it, then --resume")
            time.sleep(0.2)
        return state

    def _settle(self, how: How) -> None:
        """Hands each completed run on once; a kill in between costs nothing, since the ledger knows its runs."""
        for number, point in enumerate(self.file.points):
            if point.run is not None and not point.settled and state_of(self.lab.root, point) == "completed":
                folder = runs_folder(self.lab.root) / point.run
                how.settle(StoredRun(read_record(folder), folder))
                self.note(number, settled=True)

    def _line(self, number: int, done: int, total: int, left_s: float | None) -> str:
        from labkit.lab.progress import duration

        eta = f" (about {duration(left_s)} left)" if left_s else ""
        return f"[{done + 1}/{total}] {cell_words(self.file.points[number].values)}{eta}"

    def finish(self, effects: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what the sweep measured, and when it was complete."""
        self.file = self.file.model_copy(update={"ended": utc_now(), "effects": tuple(dict(one) for one in effects)})
        self.write()


def read_duration(text: str) -> float:
    """`6h`, `90m`, `45s`, `1h30m` or seconds. ParameterError otherwise."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    seconds = (
        sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    )
    if not seconds > 0 or not math.isfinite(seconds):
        raise ParameterError(f"--budget {text!r} is not a time such as 6h, 90m or 1h30m")
    return seconds
