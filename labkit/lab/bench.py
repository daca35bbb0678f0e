"""A bench as a run of the lab: its conditions, samples, telemetry and end, in a record like any other's."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.errors import LabError
from labkit.lab.lab import Lab
from labkit.lab.lock import free_device, take_device
from labkit.lab.measurements import append_json, append_text
from labkit.lab.progress import Pace, progress_text
from labkit.lab.redact import Redactor
from labkit.lab.run import Run
from labkit.measure.neighbours import Neighbours
from labkit.measure.telemetry import Telemetry, find_source, header
from labkit.measure.watch import Watch, observe
from labkit.vulkan.device import Device

QUIET_S = 5.0  # between two lines where the progress cannot change in place


class Progress:
    """One line on stderr that changes in place; on no terminal, a line now and then."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.pace, self.shown = total, 0, Pace(), float("-inf")

    def show(self, text: str) -> None:
        """Say what begins."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if not terminal and now - self.shown < QUIET_S:
            return
        self.shown = now
        line = progress_text(self.done, self.total, text, self.pace.left(self.done, self.total))
        sys.stderr.write(f"\r\x1b[2K{line[:120]}" if terminal else f"{line}\n")
        sys.stderr.flush()

    def advance(self) -> None:
        """One more is done."""
        self.done += 1

    def close(self) -> None:
        """Take the line away."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


class BenchRun:
    """The run of one bench; a context manager that closes its record however the bench ends.

    `total`: measurements to come. With `keep=False` nothing is stored. An interrupt leaves a record marked as killed
    with what was measured, an error one marked as failed; a bench that measured nothing leaves nothing."""

    def __init__(
        self, experiment: str, parameters: Mapping[str, Any], device: Device, total: int, *, keep: bool = True,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self.device, self.progress = device, Progress(total)
        self.run: Run | None = None
        if keep:
            lab = Lab()
            self.run = Run(lab, lab.new_record(experiment, parameters, name=name), None)
        self.folder: Path | None = None  # of the closed record
        self.zero = time.perf_counter()
        source, self.sensor = find_source(device)
        self.watch = Watch(observe(device), self._tell)
        self.telemetry = Telemetry(source, beside=(lambda: self.watch.latest) if source is not None else None)
        self.figure: Callable[[], Any] | None = None  # drawn at the end, where plotly is there
        self.limited: set[str] = set()
        self.measured = 0
        self.troubled = False  # a peer failed
        self._scratch = contextlib.ExitStack()

    def __enter__(self) -> "BenchRun":
        facts = self.telemetry.source.facts() if self.telemetry.source else {}
        uuid = str(self.device.info.uuid or self.device.name)
        take_device(uuid, "bench", waiting=self.progress.show)
        self._scratch.callback(free_device, uuid)
        if self.run is not None:
            self.run.describe(device=self.device.describe() | ({"card": facts} if facts else {}))
            self.note("telemetry", self.sensor)
        self.watch.start()
        self.telemetry.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.telemetry.stop()
        self.watch.stop()
        self.progress.close()
        try:
            self._flush()
            if self.telemetry.trouble:
                self.note("telemetry", self.telemetry.trouble)
            if self.limited:
                self.note("clocks", f"held back by {', '.join(sorted(self.limited))} while measuring")
            self._end(error)
        finally:
            self._scratch.close()

    def _end(self, error: BaseException | None) -> None:
        if self.run is None:
            return
        if error is None:
            self.folder = self.run.end("completed", figure=self._drawn())
            return
        so_far = f"after {self.measured} of its measurements"
        if isinstance(error, KeyboardInterrupt):
            self.folder = self.run.end("killed", f"interrupted {so_far}")
        else:
            said = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            self.folder = self.run.end("failed", f"{said} ({so_far})")
        if self.folder is not None:
            print(f"kept {so_far}: {self.folder}", file=sys.stderr)

    def _drawn(self) -> Any:
        try:
            return self.figure() if self.figure is not None else None
        except ImportError:  # without plotly there is no picture; the numbers are all there
            return None

    def _tell(self, seen: Neighbours) -> None:
        if self.run is not None:
            self.run.met(seen)

    # what it is told

    def note(self, key: str, text: str) -> None:
        """A line for the record's notes."""
        if self.run is not None:
            self.run.describe(None, None, None, None, **{key: text})

    def describe(self, model: Mapping[str, Any] | None = None, programs: Mapping[str, str] | None = None) -> None:
        """The model and the programs' fingerprints, for the record."""
        if self.run is not None:
            self.run.describe(model=model, programs=programs)

    def line(self, file: str, row: Mapping[str, Any]) -> None:
        """A line of JSON for a file of the record's own."""
        if self.run is not None:
            append_json(self.run.folder / file, row)

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        """A correctness gate."""
        if self.run is not None:
            self.run.check(name, passed, detail)

    def since(self, at: float) -> float:
        """A reading of `time.perf_counter()` as seconds since the run's start."""
        return self.run.elapsed(at) if self.run is not None else at - self.zero

    def trouble(self, runtime: str, what: str) -> None:
        """A peer failed: said at once, a failed check of the record, and the command's exit code."""
        self.troubled = True
        self.progress.close()
        print(f"lab: {what}", file=sys.stderr)
        self.check(f"{runtime} ran", False, what)

    def sensed(self, start_s: float, end_s: float) -> dict[str, float]:
        """What the card said in a window, by metric."""
        self.limited |= self.telemetry.limits(start_s, end_s)
        return self.telemetry.window(start_s, end_s)

    def store(
        self, cell: Mapping[str, Any], block: int, metrics: Mapping[str, float], requests: Sequence[Mapping[str, Any]]
    ) -> None:
        """Samples of one measurement, its requests, and the telemetry so far: on the disk when it returns."""
        self.measured += 1
        if self.run is None:
            return
        self.run.measure(cell, block, **metrics)
        for row in requests:
            self.run.request(block=block, cell=cell, **row)
        self._flush()

    def _flush(self) -> None:
        text = self.telemetry.fresh(self.since)
        if self.run is None or not text:
            return
        path = self.run.folder / "telemetry.csv"
        append_text(path, text if path.exists() else header() + text)

    def log(self, name: str) -> Path:
        """Where a peer's output goes: in the record's folder, redacted when the run ends; else a temporary file."""
        if self.run is None:
            import tempfile

            folder = self._scratch.enter_context(tempfile.TemporaryDirectory(prefix="labkit-"))
            return Path(folder) / f"{name}.log"
        return self.run.folder / f"{name}.log"

    def redact(self, log: Path) -> None:
        """Take what must not be kept out of a finished log."""
        if log.exists():
            text = Redactor().text(log.read_text(encoding="utf-8", errors="replace"))
            log.write_text(text, encoding="utf-8")

    def document(self, **more: Any) -> dict[str, Any]:
        """What `--json` writes."""
        return {
            "run": self.run.id if self.run is not None else None,
            "folder": str(self.folder) if self.folder else None,
            "device": {"name": self.device.name, "driver": self.device.info.driver_info},
            "telemetry": self.sensor,
            **more,
        }
