"""Drives a kernel through a notebook and keeps our own account of it, whatever happens to kernel or runner."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.engines import Engine, papermill_engines
from traitlets.config import Config

from labkit.lab.executed import ExecutedNotebook, title_of
from labkit.lab.folder import HEARTBEAT, PROGRESS, RunFolder, process_start, read_json
from labkit.lab.record import State, utc_now, write_atomic
from labkit.lab.reporter import Reporter, RunLog

ENGINE = "labkit"
PULSE_S = 0.25
HEARTBEAT_S = 1.0
INTERRUPT_GRACE_S = 1.5  # for a timed-out cell to show where it was
SENTINEL = "ran to the end"
FLOOD_S = 120  # how long output may lag behind a cell that has ended


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended: the record's state, why in one line, and the error's traceback when a cell failed."""

    state: State
    reason: str


class Ended(Exception):
    """The notebook ends here, with this outcome."""

    def __init__(self, state: State, reason: str) -> None:
        self.outcome = Outcome(state, reason)


@dataclass
class Limits:
    """Seconds a cell and the whole run may take; None is without limit."""

    cell_s: float | None = None
    run_s: float | None = None
    started: float = field(default_factory=time.monotonic)

    def next(self) -> tuple[float | None, str]:
        """How long the next cell may take, and what to say when it takes longer."""
        left = None if self.run_s is None else max(0.0, self.run_s - (time.monotonic() - self.started))
        if left is not None and (self.cell_s is None or left < self.cell_s):
            return left, f"the run took longer than its limit of {self.run_s:g} s"
        return self.cell_s, f"it took longer than the limit of {self.cell_s or 0:g} s a cell"


class Client(NotebookClient):
    """nbclient, telling the execution of each message a cell causes."""

    execution: "Execution"

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Lets nbclient take the message, then notes what changed and what was printed."""
        try:
            return super().process_message(msg, cell, cell_index)
        finally:
            self.execution.saw(msg, cell_index)


class Execution:
    """One notebook run by one kernel. `outcome` and the notebook's cell states are set when `run` returns."""

    def __init__(
        self,
        folder: RunFolder,
        scratch: Path,
        working_folder: Path,
        environment: dict[str, str],
        limits: Limits,
        reporter: Reporter,
        log: RunLog,
    ) -> None:
        self.folder = folder
        self.scratch = scratch
        self.working_folder = working_folder
        self.environment = environment
        self.limits = limits
        self.reporter = reporter
        self.log = log
        self.outcome = Outcome("crashed", "the kernel was not started")
        self.notebook: ExecutedNotebook
        self.client: Client
        self.stop = asyncio.Event()
        self.stopped_by = ""
        self.reply: dict[str, Any] = {}
        self.parent = os.getppid()
        self.current = 0

    def run(self, document: Any, kernel_name: str) -> None:
        """Runs every cell. Never raises for what happens to the kernel: that is the outcome."""
        self.notebook = ExecutedNotebook(document, self.folder.path / "notebook.ipynb", self.log.redactor)
        self.reporter.cells = len(self.notebook.code_cells)
        asyncio.run(self._run(kernel_name))

    # The course of a run

    async def _run(self, kernel_name: str) -> None:
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sent, self._ask_to_stop, f"the run was stopped by {sent.name}")
        pulse = loop.create_task(self._pulse())
        self.client = Client(
            self.notebook.document,
            kernel_name=kernel_name,
            config=Config({"KernelManager": {"transport": "ipc", "ip": str(self.scratch / "k")}}),
            log=quiet_logger(),
            iopub_timeout=FLOOD_S,
            raise_on_iopub_timeout=True,
            shell_timeout_interval=1,
            on_cell_executed=self._note_reply,
        )
        self.client.execution = self
        try:
            await self._start_kernel()
            for number, (index, cell) in enumerate(self.notebook.code_cells, start=1):
                await self._run_cell(number, index, cell)
            await self._reach_the_end()
            self.client.set_widgets_metadata()
            self.outcome = Outcome("completed", "")
        except Ended as ended:
            self.outcome = ended.outcome
        finally:
            pulse.cancel()
            await self._stop_kernel(graceful=self.outcome.state == "completed")
            self.log.flush()
            self.log.line("run", f"{self.outcome.state} {self.outcome.reason}".strip())
            self.notebook.save()

    async def _start_kernel(self) -> None:
        self.client.create_kernel_manager()
        read_end, write_end = os.pipe()
        threading.Thread(target=self._drain, args=(read_end,), daemon=True).start()
        try:
            await self._or_stop(
                self.client.async_start_new_kernel(
                    env=self.environment, cwd=str(self.working_folder), stdout=write_end, stderr=write_end
                )
            )
        except (OSError, RuntimeError) as error:
            raise Ended("crashed", f"the kernel did not start: {one_line(error)}") from None
        finally:
            os.close(write_end)
        self._beat()
        try:
            await self._or_stop(self.client.async_start_new_kernel_client())
        except RuntimeError as error:
            raise Ended("crashed", f"the kernel did not start: {one_line(error)}{self._death()}") from None

    async def _run_cell(self, number: int, index: int, cell: Any) -> None:
        self.current, self.reply = number, {}
        title = title_of(self.notebook.document, index)
        self.reporter.cell_start(number, title)
        self.log.line("run", f"cell {number} of {self.reporter.cells}: {title}")
        self.notebook.start(index)
        self._beat()
        began, state = time.monotonic(), "interrupted"
        try:
            limit, over = self.limits.next()
            await self._or_stop(self.client.async_execute_cell(cell, index), limit, f"cell {number} ({title}): {over}")
            state = "executed"
        except CellExecutionError as error:
            state = "failed"
            self._end_by_error(number, error)
        except DeadKernelError:
            raise Ended("crashed", f"the kernel died in cell {number} ({title}){self._death()}") from None
        except TimeoutError as error:  # nbclient's: the cell ended, but its output never did
            raise Ended("timed-out", f"the output of cell {number} never ended: {one_line(error)}") from None
        finally:
            self.log.flush()
            self.notebook.end(index, state, time.monotonic() - began)
            self.reporter.cell_end(state)
        if any(part.get("source") == "ask_exit" for part in self.reply.get("payload", [])):
            raise Ended("stopped-early", self._stop_reason(number, "exit()"))

    def _end_by_error(self, number: int, error: CellExecutionError) -> None:
        name, value = getattr(error, "ename", "error"), getattr(error, "evalue", "")
        if name == "SystemExit" and value in ("", "0", "None"):
            raise Ended("stopped-early", self._stop_reason(number, f"sys.exit({value})"))
        text = self.log.redactor.text(f"{name}: {value}".strip(": \n"))
        raise Ended("failed", f"cell {number} failed: {' '.join(text.split())}")

    def _stop_reason(self, number: int, call: str) -> str:
        from labkit.lab.record import read_record

        given = read_record(self.folder.path).reason  # from run.stop("...")
        return given or f"cell {number} called {call}"

    async def _reach_the_end(self) -> None:
        """Asks the kernel for a last sign of life: a run is complete when it answers and has numbered each."""
        client = self.client.kc
        assert client is not None
        message = client.execute("", silent=True, user_expressions={"sentinel": repr(SENTINEL)})
        try:
            reply = await self._or_stop(self.client.async_wait_for_reply(message), 30, "the kernel did not answer")
        except DeadKernelError:
            raise Ended("crashed", f"the kernel died after the last cell{self._death()}") from None
        answer = ((reply or {}).get("content", {}).get("user_expressions") or {}).get("sentinel", {})
        if SENTINEL not in str(answer.get("data", {}).get("text/plain")):
            raise Ended("crashed", "the kernel did not reach the end: it no longer answers as asked")
        count = self.notebook.count()
        if count.executed != count.total:
            raise Ended("crashed", f"the kernel numbered {count.executed} of {count.total} cells")

    async def _stop_kernel(self, graceful: bool) -> None:
        self.client.shutdown_kernel = "graceful" if graceful else "immediate"
        group = self.kernel_pid()
        if self.client.km is None:
            return
        with contextlib.suppress(Exception):  # whatever a dying kernel's sockets say, the record comes first
            cleanup: Any = self.client._async_cleanup_kernel()
            await asyncio.wait_for(cleanup, 15)
        if group is not None:  # what the notebook started and left behind goes with it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    # What happens beside it

    async def _or_stop(self, work: Awaitable[Any], limit_s: float | None = None, over: str = "") -> Any:
        """Awaits `work` unless the run is asked to stop or the limit passes; a cell over its limit is interrupted
        first, so its traceback shows where it was."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({task, stop}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self.stop.is_set():
                raise Ended("killed", self.stopped_by)
            if self.client.km is not None and self.client.km.has_kernel:
                await ensure_async(self.client.km.interrupt_kernel())
                await asyncio.wait({task, stop}, timeout=INTERRUPT_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            raise Ended("timed-out", over)
        finally:
            for left in (task, stop):
                if not left.done():
                    left.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.gather(task, stop, return_exceptions=True)

    def _ask_to_stop(self, reason: str) -> None:
        self.stopped_by = self.stopped_by or reason
        self.stop.set()

    async def _pulse(self) -> None:
        """Heartbeat, progress and autosave, also while a cell is silent; stops the run when its starter is gone."""
        seen, beaten = "", 0.0
        while True:
            await asyncio.sleep(PULSE_S)
            if os.getppid() != self.parent:
                self._ask_to_stop("the process that started the run was killed")
            progress = read_json(self.folder.path / PROGRESS)
            text = json.dumps(progress)
            if progress and text != seen:
                seen = text
                self.reporter.progress(progress)
            else:
                self.reporter.tick()
            if time.monotonic() - beaten >= HEARTBEAT_S:
                beaten = time.monotonic()
                self._beat()
            self.notebook.save_when_due()

    def _beat(self) -> None:
        pid = self.kernel_pid()
        document = {
            "utc": utc_now(),
            "cell": self.current,
            "cells": self.reporter.cells,
            "runner_pid": os.getpid(),
            "kernel_pid": pid,
            "kernel_started": process_start(pid) if pid else None,
            "scratch": str(self.scratch),
        }
        write_atomic(self.folder.path / HEARTBEAT, json.dumps(document) + "\n")

    def kernel_pid(self) -> int | None:
        """The kernel's process id while it has one."""
        provisioner = getattr(getattr(self, "client", None) and self.client.km, "provisioner", None)
        return getattr(provisioner, "pid", None)

    def _death(self) -> str:
        """How the kernel ended, as a clause: `: killed by SIGKILL`, `: it exited with code 3`."""
        process = getattr(getattr(self.client.km, "provisioner", None), "process", None)
        code = process.poll() if process is not None else None
        if code is None:
            return ""
        if code >= 0:
            return f": it exited with code {code}"
        try:
            return f": killed by {signal.Signals(-code).name}"
        except ValueError:
            return f": killed by signal {-code}"

    def _note_reply(self, execute_reply: dict[str, Any], **_: Any) -> None:
        self.reply = execute_reply.get("content", {})

    def saw(self, msg: dict[str, Any], index: int) -> None:
        """Notes a message: which cells changed, and what goes into the log."""
        kind, content = msg["msg_type"], msg["content"]
        self.notebook.touch(None if kind == "update_display_data" else index)
        if kind == "stream":
            self.log.stream(f"cell {self.current}", content["text"])
        elif kind == "error":
            for line in content.get("traceback", []):
                self.log.stream(f"cell {self.current}", strip_colour(line) + "\n")

    def _drain(self, handle: int) -> None:
        """Reads what the kernel's process prints past Jupyter (a driver's message, a crash) until it is gone."""
        with os.fdopen(handle, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                with contextlib.suppress(OSError):  # the folder may be final already
                    self.log.line("kernel", line.rstrip("\n"))


class LabEngine(Engine):
    """Papermill's engine for labkit: Papermill puts the parameters in, the execution given as `execution` does the
    rest and judges for itself how it ended."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, execution: Execution, **_: Any) -> Any:
        """Runs `nb` and returns it; the outcome is in `execution`."""
        nb.metadata.papermill.pop("input_path", None)
        nb.metadata.papermill.pop("output_path", None)
        for cell in nb.cells:
            if "injected-parameters" in cell.metadata.get("tags", []):
                cell["id"] = "injected-parameters"
        execution.run(nb, kernel_name)
        return nb


def register_engine() -> None:
    """Makes the engine known to Papermill as `labkit`."""
    papermill_engines.register(ENGINE, LabEngine)


def quiet_logger() -> logging.Logger:
    """A logger that says nothing: nbclient's messages double what the record says."""
    logger = logging.getLogger("labkit.nbclient")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def one_line(error: BaseException) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def strip_colour(text: str) -> str:
    """Text without terminal colours."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)
