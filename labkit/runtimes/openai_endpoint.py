"""Any OpenAI-compatible address as a runtime: vLLM, SGLang, LM Studio, llama.cpp, `lab serve`."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.runtimes import bodies
from labkit.runtimes.address import one_line, read_url, said
from labkit.runtimes.answers import count, openai, read_answer
from labkit.runtimes.client import Limits, Post, exchange
from labkit.runtimes.load import Load
from labkit.runtimes.probe import CHAT, COMPLETIONS, Probe
from labkit.runtimes.prometheus import our_counters, read_metrics
from labkit.runtimes.props import read_settings
from labkit.runtimes.questions import fetch, fetch_json
from labkit.runtimes.runtime import Abilities, Answer, Ask, Progress, Runtime, check_asks, no_progress

NAME = "openai"
VARIABLE = "LABKIT_ENDPOINT_KEY"
OWN_SETTINGS = ("slots", "context", "ub", "kv", "arithmetic", "quant", "draft")
MOST_NAMES = 12  # of models that an error lists
LOOK_S = 10.0  # what a server may have beside the API is waited for so long


class OpenAiEndpoint(Runtime):
    """A server at `url` (http or https, with or without /v1) that speaks OpenAI's API; it is asked, never started.

    `key`: what it wants to be shown, else the environment's LABKIT_ENDPOINT_KEY; it is in no record, log or error.
    `model`: one of those it lists; without it, the only one. `ca_file`: certificates to trust beside the system's.
    `silence_s`: a server that sends nothing for so long is taken for hung. Proxies of the environment are not used.

    What it can be asked (`can`) is found out at once, by a few requests of two tokens: see `labkit.runtimes.probe`. How
    tokens are counted where an event brings several is told in `labkit.runtimes.answers`. ParameterError for an address, a
    key or a model that cannot be; RunError when it does not answer."""

    name = NAME

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        silence_s: float = 300.0,
        label: str | None = None,
    ) -> None:
        self.label = label or NAME
        self.limits = Limits(silence_s=silence_s)
        shown = (key or os.environ.get(VARIABLE, "")).strip() or None
        given = read_url(url, key=shown, ca_file=None if ca_file is None else os.fspath(ca_file))
        self.root = dataclasses.replace(given, prefix=given.prefix.removesuffix("/v1"))
        self.address = dataclasses.replace(given, prefix=self.root.prefix + "/v1")
        self._listed = self._choose(model)
        self.found = Probe(self.address, self.model, self.limits).run()
        self._tokenizer = self._find_tokenizer()
        counters = self.counters()
        self.can = Abilities(
            token_prompts=self.found.token_prompts,
            fixed_length=self.found.fixed is not None,
            token_count=self.found.running,
            cached_tokens=self.found.cached,
            drafts="drafted" in counters and self.settings().get("draft") != "none",
            own_timings=self.found.timings,
            tokenizer=self._tokenizer is not None,
            counters=bool(counters),
            images=self.found.images,
        )

    def _choose(self, wanted: str | None) -> Mapping[str, Any]:
        """What the server says of the model that is to be asked, whose name is set."""
        status, content = fetch(self.address, "/models")
        if status in (401, 403):
            raise ParameterError(
                f"{self.root.url} answered {status}: {self.address.told(said(content))}; give its key, or set {VARIABLE}"
            )
        try:
            listed = json.loads(content)["data"] if status == 200 else None
            models: dict[str, dict[str, Any]] = {str(each["id"]): each for each in listed or ()}
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RunError(
                f"{self.address.url}/models is no list of models: {self.address.told(said(content))}"
            ) from None
        if listed is None:
            if wanted is None:
                raise ParameterError(
                    f"{self.address.url}/models answered {status}: it lists no models; give the model, or another address"
                )
            self.model = wanted
            return {}
        there = ", ".join(one_line(each)[:80] for each in list(models)[:MOST_NAMES])
        there += f" and {len(models) - MOST_NAMES} more" if len(models) > MOST_NAMES else ""
        if wanted is None:
            if len(models) != 1:
                raise ParameterError(f"{self.root.url} has {len(models)} models, name one: {there or 'none is loaded'}")
            wanted = next(iter(models))
        chosen = models.get(wanted) or next((each for each in models.values() if _has_alias(each, wanted)), None)
        if chosen is None:
            raise ParameterError(f"{self.root.url} has no model {wanted[:80]!r}; it has {there or 'none'}")
        self.model = wanted
        return chosen

    def describe(self) -> dict[str, Any]:
        """See `Runtime`."""
        owner, version = self._listed.get("owned_by"), self._beside("/version")
        told = version.get("version") if isinstance(version, dict) else None
        return {
            "kind": self.name,
            "label": self.label,
            "server": one_line(owner)[:40] if isinstance(owner, str) else None,
            "version": one_line(told)[:80] if isinstance(told, str) else None,
            "address": self.address.url,
            "model": Path(self.model).name if self.model.startswith("/") else self.model,
            "asked": {**self.found.fields, **(self.found.fixed or {})},
            "can": dataclasses.asdict(self.can),
            "settings": self.settings(),
        }

    def _beside(self, path: str) -> Any:
        """The JSON at a path that is not of the API; None where there is none."""
        with contextlib.suppress(RunError):
            return fetch_json(self.root, path, within_s=LOOK_S)
        return None

    def settings(self) -> dict[str, Any]:
        """See `Runtime`: of /v1/models, and of what llama.cpp, `lab serve` and vLLM have beside it."""
        meta = self._listed.get("meta")
        told: dict[str, Any] = {"model": Path(self.model).name if self.model.startswith("/") else self.model}
        for place, name in ((self._listed, "max_model_len"), (meta if isinstance(meta, dict) else {}, "n_ctx")):
            if count(place.get(name)) is not None:
                told["context"] = place[name]
        if isinstance(props := self._beside("/props"), dict):
            told |= {
                name: value for name, value in read_settings(props, self._beside("/slots")).items() if name != "model"
            }
        own = self._listed.get("settings")  # of `lab serve`
        own = own if isinstance(own, dict) else {}
        return told | {name: own[name] for name in OWN_SETTINGS if isinstance(own.get(name), int | str)}

    def _find_tokenizer(self) -> str | None:
        """Whose way of tokenising the server has: `vllm` (SGLang's too), `llama`, or none."""
        for way in ("vllm", "llama"):
            if self._ids("Hello", way):
                return way
        return None

    def _ids(self, text: str, way: str) -> list[int] | None:
        body: dict[str, Any] = {"content": text, "add_special": False}
        if way == "vllm":
            body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        told = None
        with contextlib.suppress(RunError):
            told = fetch_json(self.root, "/tokenize", body, within_s=LOOK_S)
        ids = told.get("tokens") if isinstance(told, dict) else None
        return ids if isinstance(ids, list) and ids and all(type(each) is int for each in ids) else None

    def tokenize(self, text: str) -> list[int]:
        """See `Runtime`."""
        if self._tokenizer is None:
            raise ParameterError(f"{self.root.url} has no /tokenize")
        ids = self._ids(text, self._tokenizer) if text else []
        if ids is None:
            raise RunError(f"{self.root.url}/tokenize did not answer with token ids")
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """See `Runtime`."""
        if self._tokenizer is None:
            raise ParameterError(f"{self.root.url} has no /tokenize")
        body: dict[str, Any] = {"tokens": [int(each) for each in ids]}
        if self._tokenizer == "vllm":
            body["model"] = self.model
        told = fetch_json(self.root, "/detokenize", body)
        told = told if isinstance(told, dict) else {}
        text = next((told[name] for name in ("prompt", "text", "content") if isinstance(told.get(name), str)), None)
        if text is None:  # vLLM, SGLang and llama.cpp each have a name of their own
            raise RunError(f"{self.root.url}/detokenize did not answer with a text")
        return str(text)

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`. Prompts go to /v1/completions, chat and images to /v1/chat/completions."""
        check_asks(asks, self.can, self.name)
        posts = [self._post(ask) for ask in asks]
        replies = exchange(self.address, posts, load, self.limits, progress)
        return [read_answer(ask, reply, openai, self.address) for ask, reply in zip(asks, replies, strict=True)]

    def _post(self, ask: Ask) -> Post:
        more = {**self.found.fields, **((self.found.fixed or {}) if ask.fixed else {})}
        if ask.chat or ask.images:
            return bodies.post(self.address, CHAT, bodies.chat(ask, self.model, more), ask.tokens)
        if not self.found.completions:
            raise ParameterError(f"{self.address.url} has no /completions; ask with chat=True")
        return bodies.post(self.address, COMPLETIONS, bodies.completion(ask, self.model, more), ask.tokens)

    def _metrics(self) -> dict[str, float]:
        with contextlib.suppress(RunError):
            status, content = fetch(self.root, "/metrics", within_s=LOOK_S)
            if status == 200:
                return read_metrics(content.decode(errors="replace"))
        return {}

    def counters(self) -> dict[str, float]:
        """See `Runtime`; of GET /metrics where there is one."""
        return our_counters(self._metrics())

    def close(self) -> None:
        """Nothing was started."""


def _has_alias(listed: Mapping[str, Any], name: str) -> bool:
    aliases = listed.get("aliases")
    return isinstance(aliases, list) and name in aliases
