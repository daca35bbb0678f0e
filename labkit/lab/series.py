"""A series of runs, one process each, that outlives any kill: what is missing runs, and nothing runs twice."""

import contextlib
import math
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from labkit.errors import ParameterError, RunError
from labkit.lab.driver import resume_run
from labkit.lab.folder import CAME_IN, PARTIAL, close_dead_runs, runs_folder
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.lock import ProcessLock
from labkit.lab.progress import duration
from labkit.lab.record import RunRecord, read_record, write_atomic

CLOSING_S = 30.0  # how long the process of a killed run may take to close its record


@dataclass
class Night:
    """How long a series may take and whether a person asked it to stop."""

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
        """Seconds a run took, None before one was done."""
        return sum(self.took) / len(self.took) if self.took else None

    def room(self) -> bool:
        """Whether another run is likely to fit."""
        left = self.left_s
        return not self.stopped and (left is None or left > (self.each_s or 0.0))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, Ctrl-C and termination end the series after the run in progress has closed its record."""

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
    """How the runs are made: limits a run, whether it waits for the device, and what is done once it has ended."""

    timeout_s: float | None = None
    cell_timeout_s: float | None = None
    wait: bool = True
    quiet: bool = True
    settle: Callable[[StoredRun], None] = lambda run: None
    say: Callable[[str], None] = lambda text: None


class Item(Protocol):
    """One run of a series: its name once it is made, and whether what follows it was done."""

    @property
    def run(self) -> str | None: ...
    @property
    def settled(self) -> bool: ...


class SeriesFile(Protocol):
    """What is kept of a series, as a frozen pydantic model."""

    @property
    def id(self) -> str: ...
    @property
    def points(self) -> Sequence[Item]: ...
    def model_dump_json(self, *, indent: int) -> str: ...


F = TypeVar("F", bound=SeriesFile)


class Series(ABC, Generic[F]):
    """Runs in order, whose state is their folders and one file swapped in whole; a context manager that holds it for this
    process alone. RunError when another process has it."""

    what: ClassVar[str]

    def __init__(self, lab: Lab, file: F, folder: Path) -> None:
        self.lab, self.file = lab, file
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{file.id}.json"
        self.lock = ProcessLock(folder / f".{file.id}.lock")

    def __enter__(self) -> Self:
        if not self.lock.acquire():
            raise RunError(f"the {self.what} {self.file.id} is being run by another process")
        if self.path.exists():
            self.file = self.read()
        else:
            self.write()
        return self

    @abstractmethod
    def read(self) -> F:
        """The file as it is on the disk."""

    @abstractmethod
    def changed(self, number: int, fields: Mapping[str, Any]) -> F:
        """The file with fields of one run replaced."""

    @abstractmethod
    def start(self, number: int, made: Callable[[RunRecord], None], limits: Mapping[str, Any]) -> StoredRun:
        """Makes a run: `made` is told of its record before anything starts."""

    @abstractmethod
    def words(self, number: int) -> str:
        """What a run is, in a few words."""

    def __exit__(self, *exc: object) -> None:
        self.lock.path.unlink(missing_ok=True)
        self.lock.release()

    def write(self) -> None:
        """Swaps the file in whole."""
        write_atomic(self.path, self.file.model_dump_json(indent=2) + "\n")

    def note(self, number: int, **fields: Any) -> None:
        """Changes one run, on the disk when it returns."""
        self.file = self.changed(number, fields)
        self.write()

    def states(self) -> list[str]:
        """The state of each run."""
        return [state_of(self.lab.root, point.run) for point in self.file.points]

    def missing(self) -> list[int]:
        """The runs that are not completed."""
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
        """The one there is is taken up, else a new one, whose name is on the disk before it starts."""
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
        if point.run is not None and state == "completed":  # the child of a killed sweep went on, and has finished
            folder = runs_folder(self.lab.root) / point.run
            return StoredRun(read_record(folder), folder)
        if point.run is not None and state != "missing" and not came_in(self.lab.root, point.run):
            return resume_run(self.lab, point.run, **limits)
        return self.start(number, lambda record: self.note(number, run=record.id), limits)

    def _settled_state(self, point: Item) -> str:
        """A run's state once the process of a killed run has closed its record."""
        end = time.monotonic() + CLOSING_S
        while (state := state_of(self.lab.root, point.run)) == "running":
            close_dead_runs(self.lab.root)
            if time.monotonic() > end:
                raise RunError(f"{point.run} is still being run by another process; wait for it, then --resume")
            time.sleep(0.2)
        return state

    def _settle(self, how: How) -> None:
        """Hands each completed run on once; a kill in between costs nothing, since the ledger knows its runs."""
        for number, point in enumerate(self.file.points):
            if point.run is not None and not point.settled and state_of(self.lab.root, point.run) == "completed":
                folder = runs_folder(self.lab.root) / point.run
                how.settle(StoredRun(read_record(folder), folder))
                self.note(number, settled=True)

    def _line(self, number: int, done: int, total: int, left_s: float | None) -> str:
        return f"[{done + 1}/{total}] {self.words(number)}{self._eta(left_s)}"

    def _eta(self, left_s: float | None) -> str:
        return f" (about {duration(left_s)} left)" if left_s else ""


def read_duration(text: str) -> float:
    """`6h`, `90m`, `45s`, `1h30m` or seconds. ParameterError otherwise."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    seconds = (
        sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    )
    if not seconds > 0 or not math.isfinite(seconds):
        raise ParameterError(f"--budget {text!r} is not a time such as 6h, 90m or 1h30m")
    return seconds


def came_in(root: Path, run: str) -> bool:
    """Whether a run was measured in another lab: it cannot be taken up again in this one."""
    return (runs_folder(root) / run / CAME_IN).exists()


def state_of(root: Path, run: str | None) -> str:
    """`missing` before a run has a folder, else the state of its record, also where it is renamed at this moment."""
    damaged = False
    for name in () if run is None else (run, f"{PARTIAL}{run}", run):
        folder = runs_folder(root) / name
        if folder.is_dir():
            try:
                return read_record(folder).state
            except RunError:
                damaged = folder.is_dir()
    return "damaged" if damaged else "missing"
