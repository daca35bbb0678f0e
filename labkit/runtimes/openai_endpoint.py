"""Any OpenAI-compatible address as a runtime: vLLM, SGLang, LM Studio, llama.cpp, `lab serve`."""

from collections.abc import Sequence
from typing import Any

from labkit.runtimes.load import Load
from labkit.runtimes.runtime import Abilities, Answer, Ask, Progress, Runtime, no_progress

NAME = "openai"
VARIABLE = "LABKIT_ENDPOINT_KEY"


class OpenAiEndpoint(Runtime):
    """A server at `url` (http or https, with or without /v1) that speaks OpenAI's API; it is asked, never started.

    `key`: what it wants to be shown, else the environment's LABKIT_ENDPOINT_KEY; it is in no record, log or error.
    `model`: one of those it lists; without it, the only one. `ca_file`: certificates to trust beside the system's.
    `silence_s`: a server that sends nothing for so long is taken for hung.

    What it can be asked (`can`) is found out at once, by a few requests of two tokens. ParameterError for an address, a
    key or a model that cannot be; RunError when it does not answer."""

    name = NAME

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        ca_file: str | None = None,
        silence_s: float = 300.0,
        label: str | None = None,
    ) -> None:
        self.label = label or NAME
        self.can = Abilities()
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """See `Runtime`."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """See `Runtime`."""
        raise NotImplementedError

    def tokenize(self, text: str) -> list[int]:
        """See `Runtime`."""
        raise NotImplementedError

    def detokenize(self, ids: Sequence[int]) -> str:
        """See `Runtime`."""
        raise NotImplementedError

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`."""
        raise NotImplementedError

    def counters(self) -> dict[str, float]:
        """See `Runtime`."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was started."""
