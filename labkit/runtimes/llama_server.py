"""llama-server (llama.cpp) as a runtime: started on one device, asked over HTTP, and stopped whatever happens."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.runtimes import bodies
from labkit.runtimes.address import Address, one_line
from labkit.runtimes.answers import native, openai, read_answer
from labkit.runtimes.client import Limits, Post, exchange
from labkit.runtimes.llama_binary import CHUNK, NAME, Binary, environment, find_binary
from labkit.runtimes.llama_log import read_settings as read_log
from labkit.runtimes.load import Load
from labkit.runtimes.prometheus import our_counters, read_metrics
from labkit.runtimes.props import read_settings
from labkit.runtimes.pulse import Beat, Pulse, explained
from labkit.runtimes.questions import fetch, fetch_json
from labkit.runtimes.registry import Wanted, opener, unless
from labkit.runtimes.runtime import Abilities, Answer, Ask, Progress, Runtime, check_asks, no_progress
from labkit.runtimes.server_process import HOST, ServerProcess, free_port


class LlamaServer(Runtime):
    """A running llama-server. `device_index`: the Vulkan device it may see, as the loader counts.

    `slots` streams of `context` positions each; its output goes to `log`. `flags` are a person's own, behind ours.
    `cache`: whether a prompt's known beginning may come from its cache; what did is in each answer. RunError, with the last
    line it wrote, when it does not come up; ParameterError for a port in use or a flag it does not know."""

    name = NAME

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
        flags: Sequence[str] = (),
        label: str | None = None,
        port: int | None = None,
        cache: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.binary, self.log, self.label = binary, log, label or self.name
        self.cache, self.limits = cache, limits or Limits()
        self.port = free_port() if port is None else port
        self.arguments = binary.command(
            model, port=self.port, slots=slots, context=context, ub=ub, kv=kv, flags=flags
        )  # fmt: skip
        self.address = Address(HOST, self.port)
        self.beats: list[Beat] = []  # of the last requests
        self.process = ServerProcess(
            self.name,
            self.arguments,
            port=self.port,
            log=log,
            environment=environment(binary.path, device_index),
            waiting=waiting,
        )
        try:
            self._look(model)
        except BaseException:
            self.close()
            raise

    def _look(self, model: Path) -> None:
        """What it says of itself, once."""
        props = self._told("/props")
        self._props: dict[str, Any] = props if isinstance(props, dict) else {}
        alias = self._props.get("model_alias")
        self.model = Path(alias).name if isinstance(alias, str) and alias else model.name
        modalities = self._props.get("modalities")
        drafts = self.settings().get("draft")
        self.can = Abilities(
            token_prompts=True,
            fixed_length=True,
            token_count=True,
            cached_tokens=True,
            drafts=drafts not in (None, "none"),
            own_timings=True,
            tokenizer=True,
            counters=bool(self.counters()),
            images=isinstance(modalities, dict) and modalities.get("vision") is True,
            own_process=True,
        )

    def _told(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at a path; None where this build has none."""
        try:
            return fetch_json(self.address, path, body)
        except RunError as error:
            raise RunError(self.process.ended(0.5) or f"{self.name}: {error}") from None

    @property
    def origin(self) -> dict[str, int]:
        """Which process it is, for `run.measure(..., start=server)`."""
        return self.process.origin

    def describe(self) -> dict[str, Any]:
        """See `Runtime`."""
        build = self._props.get("build_info")
        return {
            "kind": self.name,
            "label": self.label,
            "version": self.binary.version,
            "build": build if isinstance(build, str) else None,
            "address": self.address.url,
            "arguments": self.arguments,
            "model": self.model,
            "cache": self.cache,
            "settings": self.settings(),
        }

    def settings(self) -> dict[str, Any]:
        """See `Runtime`; ub and kv only where its log says them."""
        return read_log(self.log) | read_settings(self._props, self._told("/slots"))

    def tokenize(self, text: str) -> list[int]:
        """See `Runtime`."""
        told = self._told("/tokenize", {"content": text, "add_special": False})
        ids = told.get("tokens") if isinstance(told, dict) else None
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise RunError(f"{self.name} does not tokenise: it answered {one_line(str(told))[:80]}")
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """See `Runtime`."""
        told = self._told("/detokenize", {"tokens": [int(each) for each in ids]})
        text = told.get("content") if isinstance(told, dict) else None
        if not isinstance(text, str):
            raise RunError(f"{self.name} does not detokenise: it answered {one_line(str(told))[:80]}")
        return text

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`. Prompts go to /completion, chat and images to /v1/chat/completions."""
        check_asks(asks, self.can, self.name)
        posts = [self._post(ask) for ask in asks]
        with Pulse(self.process) as pulse:
            self.beats = pulse.beats
            replies = exchange(self.address, posts, load, self.limits, progress)
        answers = [
            read_answer(ask, reply, openai if _chats(ask) else native, self.address)
            for ask, reply in zip(asks, replies, strict=True)
        ]
        return explained(answers, self.process, self.beats)

    def _post(self, ask: Ask) -> Post:
        own = {**bodies.sampling(ask), "ignore_eos": ask.fixed, "cache_prompt": self.cache}
        if _chats(ask):
            more = {**own, "stream_options": {"include_usage": True}, "timings_per_token": True}
            return bodies.post(self.address, "/v1/chat/completions", bodies.chat(ask, self.model, more), ask.tokens)
        prompt = ask.prompt if isinstance(ask.prompt, str) else [int(each) for each in ask.prompt]
        body = {"prompt": prompt, "n_predict": ask.tokens, "stream": True, "return_tokens": True, **own}
        return bodies.post(self.address, "/completion", body, ask.tokens)

    def counters(self) -> dict[str, float]:
        """See `Runtime`; from /metrics, which it has when its build knows --metrics."""
        with contextlib.suppress(RunError):
            status, content = fetch(self.address, "/metrics")
            if status == 200:
                return our_counters(read_metrics(content.decode(errors="replace")))
        return {}

    def close(self) -> None:
        """Stop it. Stopping twice is harmless."""
        self.process.close()


def _chats(ask: Ask) -> bool:
    return ask.chat or bool(ask.images)


@opener(NAME, missing=lambda path: unless(lambda: find_binary(path or None)))
def open_llama_server(wanted: Wanted) -> Runtime:
    """llama-server of llama.cpp on the same device: the one on the PATH, of LABKIT_LLAMA_SERVER, or llama-server:PATH."""
    if wanted.draft:
        raise ParameterError(f"draft={wanted.draft}: say with flags how {NAME} is to draft, as its --help has it")
    return LlamaServer(
        find_binary(wanted.argument or None), wanted.model, slots=wanted.slots, context=wanted.context, log=wanted.log,
        ub=wanted.ub or CHUNK, kv=wanted.kv, device_index=wanted.device_index, waiting=wanted.loading, flags=wanted.flags,
        label=wanted.label,
    )  # fmt: skip
