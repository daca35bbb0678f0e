"""A sweep over many machines: each missing point goes to one worker, once, and what comes back is judged here alone."""

import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from labkit.audit.stored import run_audit
from labkit.errors import LabError
from labkit.lab.fleet import workplace
from labkit.lab.fleet.connection import FETCH_S, Fleet, SchedulerLost, Worker, WorkerLost
from labkit.lab.fleet.delivery import Expected, receive
from labkit.lab.fleet.workplace import Task
from labkit.lab.folder import new_run_id
from labkit.lab.lab import Lab
from labkit.lab.series import How, Night, state_of
from labkit.lab.sweep import Asked, Sweep
from labkit.lab.sweep_file import SweepFile

LOOK_S = 0.1
AGAIN_S = 1.0  # between two looks at a run that a worker is still at
LOST_S = 2.0  # for the result of a worker that is gone
HURRY_S = 10.0  # for a worker to hear that it is to stop
STOP_S = 30.0  # for runs that were asked to stop to close their records and come


@dataclass(frozen=True)
class Job:
    """A point that a worker has."""

    number: int
    run: str
    worker: Worker
    future: Any
    began: float


class FleetSweep(Sweep):
    """A sweep whose points are run by a fleet. This process alone writes the sweep's file, the runs here and the ledger;
    a point whose worker is lost has failed, and is run again by nobody but `--resume`."""

    def __init__(self, lab: Lab, asked: Asked, file: SweepFile, fleet: Fleet) -> None:
        super().__init__(lab, asked, file)
        self.fleet = fleet
        self._jobs: dict[str, Job] = {}  # by the worker's address

    def run(self, night: Night, how: How) -> None:
        """Fetches what workers have finished, runs what is missing on them as they are free, and settles what came."""
        self._settle(how)
        try:
            self._course(night, how)
        except SchedulerLost as lost:
            for job in self._jobs.values():
                self.note(job.number, reason=f"the scheduler was lost while {job.worker.name} ran it")
            how.say(f"lab: {lost}")
        self._settle(how)

    def _course(self, night: Night, how: How) -> None:
        left = self._collect(night, how)
        todo = deque(number for number in self.missing() if number not in left)
        total, stop_by = len(todo), 0.0
        while True:
            here = self.fleet.workers()
            for text in self.fleet.refused():
                how.say(f"lab: {text}")
            ended = [job for address, job in self._jobs.items() if job.future.done() or address not in here]
            for job in ended:
                self._take(job, job.worker.address in here, night, how)
                del self._jobs[job.worker.address]
            if night.stopped and not stop_by:
                stop_by = time.monotonic() + STOP_S
                self._stop(how)
            if stop_by and time.monotonic() > stop_by:
                for job in self._jobs.values():
                    how.say(f"lab: {job.run} is still running on {job.worker.name}; --resume fetches it")
                return
            for address, worker in here.items():
                if todo and address not in self._jobs and night.room():
                    left_s = night.each_s and night.each_s * -(-len(todo) // len(here))
                    number = todo.popleft()
                    line = self._line(number, total - len(todo) - 1, total, None)
                    how.say(f"{line} on {worker.name}{self._eta(left_s)}")
                    self._begin(number, worker, night, how)
            if ended:
                self._settle(how)  # while the workers are at the next points
            if not self._jobs and (not todo or not night.room()):
                return
            if not here and not self._jobs:
                how.say(f"lab: no worker is left at {self.fleet.address}; start one with `lab worker`, then --resume")
                return
            time.sleep(LOOK_S)

    def _begin(self, number: int, worker: Worker, night: Night, how: How) -> None:
        """Hands a point to a worker; the run's name is on the disk before."""
        run = new_run_id(self.file.experiment)
        self.note(number, run=run, settled=False, worker=worker.name, reason="")
        timeout = min((x for x in (how.timeout_s, night.left_s) if x is not None), default=None)
        task = Task(
            run=run,
            experiment=self.file.experiment,
            notebook=self.file.notebook,
            overrides=json.dumps(self.asked.fixed | self.asked.points[number]),
            name=f"sweep {self.file.definition}: {self.words(number)}",
            code=self.fleet.code,
            allow_difference=self.fleet.allow,
            timeout_s=timeout,
            cell_timeout_s=how.cell_timeout_s,
            wait=how.wait,
        )
        self._jobs[worker.address] = Job(number, run, worker, self.fleet.begin(worker, task), time.monotonic())

    def _take(self, job: Job, there: bool, night: Night, how: How) -> None:
        """What became of a point: its run comes into the lab and is settled, or why there is none is kept."""
        try:
            sent = self.fleet.result(job.future, FETCH_S if there else LOST_S)
            self._receive(job.number, sent, how, took_s=time.monotonic() - job.began)
            if state_of(self.lab.root, job.run) == "completed":
                night.took.append(time.monotonic() - job.began)
        except SchedulerLost:
            raise
        except WorkerLost as lost:
            text = f"{job.worker.name} was lost while it ran it ({lost}); --resume fetches what it finished once it is back"
            self._failed(job.number, text, how)
        except LabError as error:
            self._failed(job.number, f"{job.worker.name}: {error}", how)

    def _failed(self, number: int, reason: str, how: How) -> None:
        self.note(number, reason=reason)
        how.say(f"  {self.words(number)}: failed: {reason}")

    def _receive(self, number: int, sent: dict[str, Any], how: How, took_s: float | None = None) -> None:
        """Takes a point's run in; see `receive`."""
        point = self.file.points[number]
        assert point.run is not None
        code = None if self.fleet.allow else self.file.notebook_sha256
        expected = Expected(point.run, self.file.experiment, code, point.values)
        came = {"sweep": self.file.id, "worker": point.worker}
        record, folder = receive(self.lab.root, sent, expected, came)
        run_audit(folder)  # by this lab, as of any run that comes in
        took = "" if took_s is None else f" after {took_s:.0f} s"
        why = f": {record.reason}" if record.reason else ""
        how.say(f"  {self.words(number)}: {record.state}{took}{why}")

    def _collect(self, night: Night, how: How) -> set[int]:
        """Fetches the runs of missing points that workers have ended, and waits for those they are still at. The points
        whose run is there and could not be had are returned: they are not run again by this sweep."""
        wanted = {
            str(self.file.points[number].run): number
            for number in self.missing()
            if self.file.points[number].run is not None
            and self.file.points[number].worker
            and self._settled_state(self.file.points[number]) == "missing"
        }
        waited, left, running = set(), set(), bool(wanted)
        while wanted and running and night.room():
            running = False
            for address, worker in self.fleet.workers().items():
                if not wanted:
                    break
                try:
                    states = self.fleet.ask(address, workplace.states, [*wanted])
                except WorkerLost:
                    continue
                for run, state in states.items():
                    if state == "running":
                        running = True
                        if run not in waited:
                            waited.add(run)
                            how.say(f"waiting for {worker.name}, which still runs {run}")
                    elif state not in ("missing", "damaged"):
                        number = wanted.pop(run)
                        if not self._fetch(number, run, worker, how):
                            left.add(number)
            if running:
                time.sleep(AGAIN_S)
        if not running and night.room():
            for run, number in wanted.items():
                how.say(f"  {self.words(number)}: no worker here has {run}; it runs again")
        self._settle(how)
        return left

    def _fetch(self, number: int, run: str, worker: Worker, how: How) -> bool:
        """Takes in a run that a worker has. False when the worker is lost over it; one that is refused is made again."""
        how.say(f"fetching {run} from {worker.name}")
        try:
            sent = self.fleet.ask(worker.address, workplace.hand_over, run, within_s=FETCH_S)
            self._receive(number, sent, how)
            self.note(number, reason="")
        except SchedulerLost:
            raise
        except LabError as error:
            how.say(f"  {self.words(number)}: not fetched: {error}")
            return not isinstance(error, WorkerLost)
        return True

    def _stop(self, how: How) -> None:
        """Asks the workers to stop what they run for this sweep."""
        if self._jobs:
            how.say(f"stopping {len(self._jobs)} run{'s' if len(self._jobs) != 1 else ''}; what they have is kept")
        for job in [*self._jobs.values()]:
            try:
                begun = self.fleet.ask(job.worker.address, workplace.stop, job.run, within_s=HURRY_S)
            except WorkerLost:
                continue  # the next look says so
            if not begun:  # it waits behind what others gave that worker
                job.future.cancel()
                self.note(job.number, reason="it was stopped before it began")
                del self._jobs[job.worker.address]
