"""From a body to what the engine is asked: token ids, sampling settings and lengths, all within the engine's context."""

from dataclasses import dataclass, replace

from labkit.engine.engine import Engine
from labkit.engine.sampling import Sampling
from labkit.errors import ModelError
from labkit.models.tokenizer import Tokenizer
from labkit.serve.errors import ApiError
from labkit.serve.requests import Body, ChatBody, CompletionBody

DEFAULT_COMPLETION = 16  # max_tokens of OpenAI's completions where none is given


@dataclass(frozen=True)
class Ask:
    """One completion as the engine takes it. `logprobs`: most likely tokens a step, None when none were asked for."""

    ids: list[int]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None


def choices(body: Body) -> int:
    """How many completions a body asks for: its prompts times `n`."""
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    return prompts * (body.n or 1)


class Preparation:
    """Turns bodies into what the engine is asked. It takes as long as the tokenizer and the model's chat template do: call
    it beside the loop."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._longest = max(
            len(tokenizer.token_bytes(i, special=True)) for i in range(len(tokenizer))
        )  # bytes of a token

    def asks(self, body: Body) -> list[Ask]:
        """Every completion that `body` asks for, in the order of its choices. ApiError or LabError when one cannot be.

        With `n` above 1, choice i of a prompt draws from `seed` + i.
        """
        sampling = _sampling(body)
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        if isinstance(body, ChatBody):
            prompts: list[str | list[int]] = [self._conversation(body)]
            wanted, top = body.max_completion_tokens or body.max_tokens, body.top
        else:
            assert isinstance(body, CompletionBody)
            prompts, wanted, top = body.prompt, body.max_tokens or DEFAULT_COMPLETION, body.top
        asks = []
        for prompt in prompts:
            ids = self._ids(prompt)
            most = self._most(ids, wanted)
            asks += [
                Ask(ids, _seeded(sampling, i), most, stop, tuple(body.stop_token_ids or ()), bool(body.ignore_eos), top)
                for i in range(body.n or 1)
            ]
        return asks

    def _conversation(self, body: ChatBody) -> str:
        try:
            text: str = self.engine.model.chat([message.plain for message in body.messages])
        except ModelError as error:
            if "no chat template" not in str(error):
                raise
            name = self.engine.model.name
            raise ApiError(400, f"{name} has no chat template: use /v1/completions.", code="unsupported") from None
        return text

    def _ids(self, prompt: str | list[int]) -> list[int]:
        context = self.engine.context
        if isinstance(prompt, str):
            least = len(prompt.encode("utf-8", "replace")) // self._longest  # what it comes to in the longest tokens
            if least > context:
                raise self._too_long(f"at least {least}")
        elif len(prompt) > context:
            raise self._too_long(str(len(prompt)))
        ids = self.engine.encode(prompt)
        if len(ids) > context - 1:
            raise self._too_long(str(len(ids)))
        return ids

    def _too_long(self, tokens: str) -> ApiError:
        return ApiError(
            400,
            f"This server's maximum context length is {self.engine.context} tokens, of which one is for the answer; "
            f"the prompt has {tokens}. Shorten it.",
            param="prompt",
            code="context_length_exceeded",
        )

    def _most(self, ids: list[int], wanted: int | None) -> int:
        """Tokens to generate at most: what is asked for, or what the context leaves."""
        context = self.engine.context
        left = context - len(ids)
        if wanted is not None and wanted > left:
            raise ApiError(
                400,
                f"This server's maximum context length is {context} tokens. However, you requested {len(ids) + wanted} "
                f"tokens ({len(ids)} in the prompt, {wanted} in the completion). Reduce either.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return left if wanted is None else wanted


def _sampling(body: Body) -> Sampling:
    names = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    temperature = 1.0 if body.temperature is None else body.temperature  # OpenAI's default
    return Sampling(temperature=temperature, seed=None if body.seed is None else body.seed % (1 << 64), **given)


def _seeded(sampling: Sampling, choice: int) -> Sampling:
    """The settings of choice `choice` of a prompt."""
    if sampling.seed is None or choice == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % (1 << 64))
