"""Pages of runs made by several processes at once: each takes the next run as it is done with one."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import labkit
from labkit.errors import LabError
from labkit.lab.publish.made import Made, Site, Task, make_page

FEW = 24  # runs that one process has done before another has started
MOST = 8  # processes


def make_pages(site: Site, tasks: Sequence[Task], jobs: int | None = None) -> dict[str, Made]:
    """Makes every page, in `jobs` processes where there are more than a few (default: one a core, eight at the most);
    what was made, by run. The first error ends it, and the processes with it."""
    jobs = min(jobs or len(os.sched_getaffinity(0)), MOST, max(1, len(tasks) // 2))
    if jobs < 2 or len(tasks) < FEW:
        return {task.id: make_page(site, task) for task in tasks}
    made: dict[str, Made] = {}
    errors: list[BaseException] = []
    left, lock = iter(tasks), threading.Lock()
    workers = [start() for _ in range(jobs)]
    try:
        threads = [
            threading.Thread(target=feed, args=(worker, site, left, lock, made, errors), daemon=True)
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    if errors:
        raise errors[0]
    return made


def start() -> "subprocess.Popen[bytes]":
    """A process that makes pages."""
    home = str(Path(labkit.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )


def feed(
    worker: "subprocess.Popen[bytes]",
    site: Site,
    left: Iterator[Task],
    lock: threading.Lock,
    made: dict[str, Made],
    errors: list[BaseException],
) -> None:
    """Gives a process one run after the other, until none is left or an error came from any of them."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        send(worker.stdin, site)
        while not errors:
            with lock:
                task = next(left, None)
            if task is None:
                return
            send(worker.stdin, task)
            answer = pickle.load(worker.stdout)
            if isinstance(answer, BaseException):
                raise answer
            made[task.id] = answer
    except (EOFError, OSError, pickle.UnpicklingError):
        errors.append(
            LabError("a process that made pages died; nothing was published: publish again, or with --jobs 1")
        )
    except BaseException as error:
        errors.append(error)


def send(pipe: IO[bytes], thing: object) -> None:
    """Sends one object whole."""
    pickle.dump(thing, pipe)
    pipe.flush()


def serve() -> None:
    """Makes the pages that are asked for on the standard input until it ends; what is made goes out by the output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this is interrupted, and ends it
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    site: Site = pickle.load(sys.stdin.buffer)
    while True:
        try:
            task: Task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: Made | BaseException
        try:
            answer = make_page(site, task)
        except BaseException as error:
            answer = error
        send(out, answer)
