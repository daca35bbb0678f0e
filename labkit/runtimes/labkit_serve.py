"""labkit behind its own HTTP server: `lab serve` in a process of its own, asked as any OpenAI-compatible endpoint is."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.commands.serve import KEY_VARIABLE
from labkit.models.model import Model
from labkit.runtimes.load import Load
from labkit.runtimes.openai_endpoint import OpenAiEndpoint
from labkit.runtimes.pulse import Pulse, explained
from labkit.runtimes.registry import Loading, Wanted, not_told, opener
from labkit.runtimes.runtime import Answer, Ask, Progress, Runtime, no_progress
from labkit.runtimes.server_process import HOST, ServerProcess, free_port

NAME = "labkit-serve"
QUEUE = 4096  # completions that may wait: what a load offers is not refused


class LabkitServe(Runtime):
    """`lab serve` over `model`, on a loopback port without a key. Its output goes to `log`.

    `slots` streams of `context` positions each; `device` is an index of the Vulkan loader. RunError, with the last line it
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
    ) -> None:
        self.label, self.log = label or NAME, log
        port = free_port()
        self.arguments = [
            sys.executable, "-m", "labkit", "serve", str(model), "--host", HOST, "--port", str(port), "--slots", str(slots),
            "--context", str(context), "--queue", str(QUEUE), "--kv", kv, "--arithmetic", arithmetic,
        ]  # fmt: skip
        self.arguments += [] if device is None else ["--device", str(device)]
        self.arguments += [] if ub is None else ["--ub", str(ub)]
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
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
        own = {"kind": NAME, "label": self.label, "version": __version__, "arguments": self.arguments}
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
    wanted.refuse_argument()
    return LabkitServe(
        wanted.model, slots=wanted.slots, context=wanted.context, log=wanted.log, device=wanted.device_index, ub=wanted.ub,
        kv=wanted.kv, label=wanted.label, loading=wanted.loading, **wanted.options(["arithmetic"]),
    )  # fmt: skip
