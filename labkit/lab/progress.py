"""How far a run is: the file a notebook writes, and what a person sees on a terminal or in the notebook."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from labkit.lab.record import utc_now, write_atomic

THROTTLE_S = 0.2  # between two writes of the progress file
LINES_S = 10.0  # between two lines in a log


def write_progress(path: Path, done: float, total: float, text: str) -> None:
    """Writes the heartbeat of a long cell, at most five times a second unless it is the last step."""
    last = _written.get(path, (0.0, ""))
    now = time.monotonic()
    if done < total and now - last[0] < THROTTLE_S and text == last[1]:
        return
    document = {"done": done, "total": total, "text": text, "utc": utc_now()}
    write_atomic(path, json.dumps(document, ensure_ascii=False) + "\n")
    _written[path] = (now, text)


_written: dict[Path, tuple[float, str]] = {}


def duration(seconds: float) -> str:
    """Seconds as a person says them: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Pace:
    """The time left, from the pace since this piece of work was first seen."""

    def __init__(self) -> None:
        self.total: float | None = None
        self.start = (0.0, 0.0)

    def left(self, done: float, total: float) -> float | None:
        """Seconds until `total`, or None before there is a pace."""
        now = time.monotonic()
        if total != self.total or done < self.start[1]:
            self.total, self.start = total, (now, done)
        moved = done - self.start[1]
        return (total - done) * (now - self.start[0]) / moved if moved > 0 else None


def progress_text(done: float, total: float, text: str, left: float | None) -> str:
    """One line: `12/60 width 8, block 3 (about 40 s left)`."""
    count = f"{done:g}/{total:g}" if total else ""
    eta = f"(about {duration(left)} left)" if left is not None and done < total else ""
    return " ".join(part for part in (count, text, eta) if part)


class ProgressDisplay:
    """Progress of a run by hand: one line that changes in place, in the notebook or on the terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.pace = Pace()
        self.handle: Any = None
        self.cell = -1  # the notebook's cell the line is in
        self.shown = 0.0

    def show(self, done: float, total: float, text: str) -> None:
        """Draws the line, at most ten times a second unless it is the last step."""
        now = time.monotonic()
        if done < total and now - self.shown < 0.1:
            return
        self.shown = now
        line = progress_text(done, total, text, self.pace.left(done, total))
        if in_notebook():
            self._draw(done, total, line)
        else:
            self.stream.write(f"\r\x1b[2K{line}" if self.stream.isatty() else f"{line}\n")
            self.stream.flush()

    def _draw(self, done: float, total: float, line: str) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        from labkit.show.pieces import bar, paragraph

        page = {"text/html": paragraph(*([bar(done / total)] if total else []), line), "text/plain": line}
        cell = getattr(get_ipython(), "execution_count", 0)
        if cell != self.cell:  # a later cell shows its progress under itself
            self.handle, self.cell = display(page, raw=True, display_id=True), cell
        else:
            self.handle.update(page, raw=True)

    def close(self) -> None:
        """Ends the terminal's line, where the terminal is still there."""
        with contextlib.suppress(ValueError):  # at the interpreter's end its stream may be closed
            if not in_notebook() and self.stream.isatty():
                self.stream.write("\n")


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
