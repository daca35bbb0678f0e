"""labkit behind its own HTTP server: `lab serve` in a process of its own, asked as any OpenAI-compatible endpoint is."""

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.commands.serve import KEY_VARIABLE
from labkit.errors import ParameterError
from labkit.lab.capture import capture_git
from labkit.models.model import Model
from labkit.runtimes.load import Load
from labkit.runtimes.openai_endpoint import OpenAiEndpoint
from labkit.runtimes.pulse import Pulse, explained
from labkit.runtimes.registry import Loading, Wanted, not_told, opener
from labkit.runtimes.runtime import Answer, Ask, Progress, Runtime, no_progress
from labkit.runtimes.server_process import HOST, ServerProcess, free_port

NAME = "labkit-serve"
QUEUE = 4096  # completions that may wait: what a load offers is not refused


@dataclass(frozen=True)
class Program:
    """A labkit that can serve: how it is run, its version, and its commit where it runs from a checkout. Another's takes
    nothing of this process's Python."""

    command: tuple[str, ...]
    version: str
    build: str | None = None
    another: bool = False

    def environment(self) -> dict[str, str]:
        """The environment it runs in, without a key, which is for another server."""
        without = {KEY_VARIABLE, *(("PYTHONPATH", "PYTHONHOME") if self.another else ())}
        return {name: value for name, value in os.environ.items() if name not in without}


def find_program(given: str = "") -> Program:
    """This labkit, or the one of `given`: the interpreter of another environment (its name begins with `python`), or the
    `lab` of another checkout. ParameterError where it is none, or does not run."""
    if not given.strip():
        return Program((sys.executable, "-m", "labkit"), __version__, commit_of(Path(__file__).parents[2]))
    path = Path(os.path.abspath(Path(given.strip()).expanduser()))  # not resolved: a link is an environment
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ParameterError(
            f"{NAME}:{path} is no program that can be run: give the Python of an environment that has labkit, or the lab of "
            f"another checkout"
        )
    python = path.name.startswith("python")
    command = (str(path), "-P", "-m", "labkit") if python else (str(path),)
    found = Program(command, "", another=True)
    version = said(found, [*command, "--version"]).split()[-1]
    folder = path.resolve().parent
    if python:
        where = "import labkit, pathlib; print(pathlib.Path(labkit.__file__).parents[1])"
        folder = Path(said(found, [str(path), "-P", "-c", where]))
    return replace(found, version=version, build=commit_of(folder))


def said(program: Program, command: Sequence[str]) -> str:
    """What a small question to a program prints. ParameterError, with its last line, when it does not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=600, env=program.environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParameterError(f"{NAME}:{command[0]} does not run: {error}") from None
    if done.returncode != 0 or not done.stdout.split():
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ParameterError(f"{NAME}:{command[0]} has no labkit that runs: {last[:200]}")
    return done.stdout.strip()


@functools.cache
def commit_of(folder: Path) -> str | None:
    """`commit 0a67793c1d2e`, with a hash of its edits where it has some; None where the folder is no checkout."""
    found = capture_git(folder) if (folder / ".git").exists() else None
    if found is None:
        return None
    return f"commit {found.commit[:12]}" + (f" with edits {found.diff_sha256[:8]}" if found.diff_sha256 else "")


class LabkitServe(Runtime):
    """`lab serve` over `model`, on a loopback port without a key. Its output goes to `log`.

    `slots` streams of `context` positions each; `device` is an index of the Vulkan loader; `program` is another labkit than
    this one. RunError, with the last line it
    wrote, when it does not come up."""

    name = NAME

    def __init__(
        self,
        model: Path,
        *,
        slots: int,
        context: int,
        log: Path,
        device: int | str | None = None,
        ub: int | None = None,
        kv: str = "f16",
        arithmetic: str = "fast",
        label: str | None = None,
        loading: Loading = not_told,
        program: Program | None = None,
    ) -> None:
        self.label, self.log = label or NAME, log
        self.program = program or find_program()
        port = free_port()
        self.arguments = [
            *self.program.command, "serve", str(model), "--host", HOST, "--port", str(port), "--slots", str(slots),
            "--context", str(context), "--queue", str(QUEUE), "--kv", kv, "--arithmetic", arithmetic,
        ]  # fmt: skip
        self.arguments += [] if device is None else ["--device", str(device)]
        self.arguments += [] if ub is None else ["--ub", str(ub)]
        environment = self.program.environment()
        self.process = ServerProcess(NAME, self.arguments, port=port, log=log, environment=environment, waiting=loading)
        self.file = Model(model)  # whose tokenizer is the server's
        try:
            self.asked = OpenAiEndpoint(f"http://{HOST}:{port}/v1", label=self.label)
        except BaseException:
            self.close()
            raise
        self.model = self.asked.model
        self.can = replace(self.asked.can, own_process=True, tokenizer=True)

    @property
    def origin(self) -> dict[str, int]:
        """Which process it is."""
        return self.process.origin

    def describe(self) -> dict[str, Any]:
        """See `Runtime`."""
        own: dict[str, Any] = {
            "kind": NAME,
            "label": self.label,
            "version": self.program.version,
            "build": self.program.build,
        }
        own["arguments"] = self.arguments
        return self.asked.describe() | own | {"log": self.log.name}

    def settings(self) -> dict[str, Any]:
        """See `Runtime`."""
        return self.asked.settings()

    def tokenize(self, text: str) -> list[int]:
        """See `Runtime`."""
        return list(self.file.tokenizer.encode(text, special=True))

    def detokenize(self, ids: Sequence[int]) -> str:
        """See `Runtime`."""
        text: str = self.file.tokenizer.decode(ids)
        return text

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`."""
        with Pulse(self.process) as pulse:
            answers = self.asked.stream(asks, load, progress)
        return explained(answers, self.process, pulse.beats)

    def counters(self) -> dict[str, float]:
        """See `Runtime`."""
        return self.asked.counters()

    def close(self) -> None:
        """See `Runtime`."""
        self.process.close()
        self.file.close()


def missing(argument: str = "") -> str | None:
    """Why `lab serve` cannot run here."""
    from labkit.runtimes.labkit_engine import missing as no_device

    absent = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{absent[0]} is not installed: {sys.executable} -m pip install 'starlette>=1.0' 'uvicorn>=0.40'"
    return no_device()


@opener(NAME, missing=missing)
def open_labkit_serve(wanted: Wanted) -> Runtime:
    """labkit's engine behind its own OpenAI server, in a process of its own: over the same transport as others."""
    wanted.refuse_draft()
    return LabkitServe(
        wanted.model, slots=wanted.slots, context=wanted.context, log=wanted.log, device=wanted.device_index, ub=wanted.ub,
        kv=wanted.kv, label=wanted.label, loading=wanted.loading, program=find_program(wanted.argument),
        **wanted.options(["arithmetic"]),
    )  # fmt: skip
