"""The heartbeat of a server that was started here: its health asked for about once a second while requests are open."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.runtimes.runtime import Answer
from labkit.runtimes.server_process import ServerProcess

EVERY_S = 1.0
WAIT_S = 2.0  # longer than that for its health is no answer
ENDS_S = 0.5  # after a broken connection it may take as long to be seen dead


@dataclass(frozen=True)
class Beat:
    """Health asked for once: when (`time.perf_counter`), how long the answer took, and whether it was 200."""

    time_s: float
    ms: float
    ok: bool


class Pulse:
    """Asks within a `with` block, from a thread that sleeps in between; the first time after a second.

    `beats` is what came; a short measurement has none, and nothing beside it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.beats: list[Beat] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="labkit-pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S + 1.0)

    def _ask(self) -> None:
        while not self._over.wait(EVERY_S):
            began = time.perf_counter()
            ok = self.process.healthy(WAIT_S)
            self.beats.append(Beat(began, (time.perf_counter() - began) * 1e3, ok))


def explained(answers: Sequence[Answer], process: ServerProcess, beats: Sequence[Beat]) -> list[Answer]:
    """The answers, where failed ones say what became of the server: that it died, or stopped answering, and its last line."""
    lost = ("refused", "silent", "closed")
    if not any(answer.failed in lost for answer in answers):
        return list(answers)
    what = process.ended(ENDS_S)
    if what is not None:
        return [
            dataclasses.replace(answer, failed="closed", error=what) if answer.failed in lost else answer
            for answer in answers
        ]
    silent = 0
    for beat in reversed(beats):
        if beat.ok:
            break
        silent += 1
    if not silent:
        return list(answers)
    since = time.perf_counter() - beats[-silent].time_s
    more = f"; {process.name} has not answered {process.health} for {since:.0f} s, and its log ends: {process.last_words()}"
    return [
        dataclasses.replace(answer, error=f"{answer.error}{more}") if answer.failed in lost else answer
        for answer in answers
    ]
