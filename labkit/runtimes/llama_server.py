"""llama-server (llama.cpp) as a peer: found, started on one device, asked over HTTP, and stopped whatever happens."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.runtimes.arrivals import events_of, post_streams, token_times
from labkit.runtimes.server_process import HOST, ServerProcess, free_port

NAME = "llama-server"
VARIABLE = "LABKIT_LLAMA_SERVER"
CHUNK = 2048  # rows of a prompt chunk, -ub and -b


@dataclass(frozen=True)
class Binary:
    """A llama-server on this machine: its path, what `--version` says, and the text of its `--help`."""

    path: Path
    version: str
    help: str

    def knows(self, flag: str) -> bool:
        """Whether this build has `flag`."""
        words = self.help.replace(",", " ").split()
        return flag in words


@dataclass(frozen=True)
class Answer:
    """One completion: when it was sent for, when each of its tokens came, and the server's own timings."""

    prompt: int
    submit_s: float
    times: tuple[float, ...]
    timings: dict[str, float]


def find_binary(given: str | os.PathLike[str] | None = None) -> Binary:
    """The binary named by `given`, the environment's LABKIT_LLAMA_SERVER, or the PATH. ParameterError without one."""
    named = os.fspath(given) if given else os.environ.get(VARIABLE, "")
    found = named or shutil.which(NAME)
    if not found:
        raise ParameterError(
            f"no {NAME} on the PATH: give --llama-server PATH or set {VARIABLE}; releases of llama.cpp hold one"
        )
    path = Path(found).expanduser().resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ParameterError(f"{path} is not a program that can be run; give the path of {NAME} itself")
    version = _said(path, "--version")
    line = next((line for line in version.splitlines() if "version" in line), version.strip()[:80])
    return Binary(path, line.strip(), _said(path, "--help"))


def _environment(path: Path, device_index: int | None = None) -> dict[str, str]:
    """The environment it runs in: its own folder first among the libraries, one device to be seen."""
    environment = dict(os.environ)
    folders = [str(path.parent), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    if device_index is not None:
        environment["GGML_VK_VISIBLE_DEVICES"] = str(device_index)
    return environment


def _said(path: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [path, flag], capture_output=True, text=True, errors="replace", timeout=60, env=_environment(path)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParameterError(f"{path} {flag} does not run: {error}") from None
    if done.returncode != 0 and not done.stdout:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ParameterError(f"{path} {flag} ends with code {done.returncode}: {last[:200]}")
    return done.stdout + done.stderr


def arguments(
    binary: Binary, model: Path, *, port: int, slots: int, context: int, ub: int = CHUNK, kv: str = "f16"
) -> list[str]:
    """Its command line: all layers on the device, flash attention, `context` positions for each of `slots` streams."""
    given = [
        str(binary.path), "-m", str(model), "--host", HOST, "--port", str(port), "-ngl", "99", "-np", str(slots),
        "-c", str(slots * context), "-ub", str(ub), "-b", str(max(ub, CHUNK)),
        "-ctk", kv, "-ctv", kv,
    ]  # fmt: skip
    given += ["-fa", "on"] if "[on|off|auto]" in binary.help.partition("--flash-attn")[2][:40] else ["-fa"]
    # each stream its own cache, nothing kept from an earlier request, no settings guessed: what is measured is asked for
    optional = (["--no-webui"], ["--no-kv-unified"], ["--cache-ram", "0"], ["--ctx-checkpoints", "0"], ["--fit", "off"])
    for flags in optional:
        if binary.knows(flags[0]):
            given += flags
    return given


class LlamaServer:
    """A running llama-server; a context manager. `device_index`: the Vulkan device it may see, as the loader counts.

    `slots` streams of `context` positions each; its output goes to `log`. RunError, with the last line it wrote, when
    it does not come up."""

    def __init__(
        self,
        binary: Binary,
        model: Path,
        *,
        slots: int,
        context: int,
        log: Path,
        ub: int = CHUNK,
        kv: str = "f16",
        device_index: int | None = None,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.binary, self.log, self.port = binary, log, free_port()
        self.arguments = arguments(binary, model, port=self.port, slots=slots, context=context, ub=ub, kv=kv)
        self.process = ServerProcess(
            NAME,
            self.arguments,
            port=self.port,
            log=log,
            environment=_environment(binary.path, device_index),
            waiting=waiting,
        )

    @property
    def origin(self) -> dict[str, int]:
        """Which process it is, for `run.measure(..., start=server)`."""
        return self.process.origin

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
        """Stream `tokens` greedy tokens behind each prompt (token ids), all at once. RunError when it fails."""
        bodies: list[dict[str, Any]] = [
            {
                "prompt": [int(i) for i in ids], "n_predict": tokens, "stream": True, "ignore_eos": True,
                "cache_prompt": False, "temperature": 0.0, "top_k": 1, "samplers": ["top_k"],
            }
            for ids in prompts
        ]  # fmt: skip
        try:
            replies = post_streams(HOST, self.port, "/completion", bodies)
            events = [events_of(reply) for reply in replies]
            answers = []
            for ids, reply, each in zip(prompts, replies, events, strict=True):
                times = token_times(each, tokens)
                timings: dict[str, Any] = next((e.data["timings"] for e in reversed(each) if "timings" in e.data), {})
                kept = {key: float(value) for key, value in timings.items() if isinstance(value, int | float)}
                answers.append(Answer(len(ids), reply.submit_s, tuple(times), kept))
        except RunError as error:
            raise RunError(self.process.ended(0.5) or f"{NAME}: {error}") from None
        return answers

    def close(self) -> None:
        """Stop it. Stopping twice is harmless."""
        self.process.close()

    def __enter__(self) -> "LlamaServer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
