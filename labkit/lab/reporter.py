"""What a run says while it goes: a line a cell on stderr, the time left inside long ones, and `log.txt`."""

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from labkit.lab.measurements import append_text
from labkit.lab.progress import LINES_S, Pace, duration, progress_text
from labkit.lab.record import utc_now
from labkit.lab.redact import Redactor

TITLE_WIDTH = 60


class RunLog:
    """`log.txt`: what the cells and the kernel printed, line by line, redacted as it is written."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self.redactor = redactor
        self.pending: dict[str, str] = {}
        self.lock = threading.Lock()

    def line(self, source: str, text: str) -> None:
        """Writes one line: UTC time, where it came from, text."""
        with self.lock:
            append_text(self.path, f"{utc_now()} {source}: {self.redactor.text(text)}\n")

    def stream(self, source: str, text: str) -> None:
        """Takes printed text in pieces and writes whole lines; of a line drawn over (`\\r`), its last state."""
        *lines, rest = (self.pending.pop(source, "") + text).split("\n")
        for line in lines:
            self.line(source, line.rstrip("\r").rpartition("\r")[2])
        if rest:
            self.pending[source] = rest.rpartition("\r")[2] or rest

    def flush(self) -> None:
        """Writes the lines that have no end yet."""
        pending, self.pending = self.pending, {}
        for source, text in pending.items():
            self.line(source, text)


def bar(done: float, total: float, width: int = 20) -> str:
    """A bar of `width` signs."""
    full = round(width * min(max(done / total, 0.0), 1.0))
    return "█" * full + "░" * (width - full)


class Reporter:
    """Progress for the person at the terminal: in place on a tty, else one line a cell and one every ten seconds."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.cells = 0
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.live = self.stream.isatty()
        self.number = 0
        self.title = ""
        self.started = 0.0
        self.next_line = float("inf")  # until a cell runs
        self.pace = Pace()
        self.last = ""  # what was last said to be going on
        self.line = ""  # how far that was

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self.quiet:
            self._write(f"{self._clear()}{text}\n")

    def cell_start(self, number: int, title: str) -> None:
        """A cell begins; `number` counts from 1."""
        self.number, self.title, self.started = number, title[:TITLE_WIDTH], time.monotonic()
        self.next_line = self.started + LINES_S
        self.pace = Pace()
        self.line = ""
        self._draw(title)

    def cell_end(self, state: str) -> None:
        """A cell has ended."""
        mark = "" if state == "executed" else f" {state}"
        took = duration(time.monotonic() - self.started).rjust(8)
        self.say(f"{self._place()} {took}{mark}  {self.title}")

    def progress(self, document: dict[str, Any]) -> None:
        """What the notebook says of its progress inside the cell."""
        try:
            done, total, text = float(document["done"]), float(document["total"]), str(document["text"])
        except (KeyError, TypeError, ValueError):
            return
        line = progress_text(done, total, text, self.pace.left(done, total))
        waiting = not total and text != self.last  # a message that says what is waited for is never held back
        self.last, self.line = text, line
        if self.live:
            self._draw(f"{bar(done, total)} {line}" if total else line)
        elif waiting:
            self._say_where()
        else:
            self.tick()

    def tick(self) -> None:
        """Keeps a silent cell from looking dead: a line every ten seconds, with how far it last said it was."""
        if not self.live and time.monotonic() >= self.next_line:
            self._say_where()

    def _say_where(self) -> None:
        now = time.monotonic()
        self.next_line = now + LINES_S
        text = f"{self.title}: {self.line}" if self.line else f"still running: {self.title}"
        self.say(f"{self._place()} {duration(now - self.started).rjust(8)}  {text}")

    def _place(self) -> str:
        return f"[{self.number:>{len(str(self.cells))}}/{self.cells}]"

    def _clear(self) -> str:
        return "\r\x1b[2K" if self.live else ""

    def _draw(self, text: str) -> None:
        if self.live and not self.quiet:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be drawn over
            self._write(self._clear() + f"{self._place()} {text}"[:room])

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (BrokenPipeError, OSError):
            self.quiet = True  # nobody listens any more; the run goes on
