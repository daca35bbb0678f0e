"""`playground(engine)`: a prompt, how to sample, and the text as it comes, each token with its probability."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError, ParameterError
from labkit.show.pieces import Html, escape, paragraph, size_words, verbatim
from labkit.show.tokens import Shown, legend_html, shown, tokens_html, tokens_table
from labkit.widgets.view import View

if TYPE_CHECKING:
    from labkit.engine.engine import Engine
    from labkit.engine.request import Stream

TOP = 5  # alternatives of a token
MEMORY_S = 0.5  # between two looks at the device's memory
NAMES = ("temperature", "top_p", "top_k", "min_p", "seed")


class Playground(View):
    """One stream of an engine at a time; see `playground`."""

    what = "playground"

    def __init__(self, engine: "Engine", prompt: str, max_tokens: int, chat: bool, settings: dict[str, Any]) -> None:
        super().__init__()
        from labkit.engine.sampling import Sampling

        if unknown := [name for name in settings if name not in NAMES]:
            raise ParameterError(f"{unknown[0]!r} is not a control of the playground; there are {', '.join(NAMES)}")
        Sampling(**settings)
        self.engine, self.prompt, self.max_tokens, self.chat = engine, prompt, max_tokens, chat
        self.settings: dict[str, Any] = settings
        self.tokens: list[Shown] = []
        self.runs = 0
        self.finish = ""
        self.seed: int | None = None  # of the last run that drew
        self.memory: dict[str, int] = {}
        self._times: list[float] = []
        self._asked = 0.0
        self._stream: Stream | None = None
        self._words: dict[int, str] = {}
        self._fields: dict[str, Any] = {}

    # asking

    def run(
        self, prompt: str | None = None, *, max_tokens: int | None = None, chat: bool | None = None, **settings: Any
    ) -> "Playground":
        """Begin a completion; what is left out stays as it was. `wait` waits for its end. ParameterError for a setting out
        of range, or while one is running."""
        from labkit.engine.sampling import Sampling

        if unknown := [name for name in settings if name not in NAMES]:
            raise ParameterError(f"{unknown[0]!r} is not a control of the playground; there are {', '.join(NAMES)}")
        wanted = self.settings | settings
        sampling = Sampling(**wanted).seeded()
        with self._mutex:  # two clicks may come on two threads
            if self.running:
                raise ParameterError("this playground is at work already; stop it first")
            self.settings = wanted
            self.prompt = self.prompt if prompt is None else prompt
            self.max_tokens = self.max_tokens if max_tokens is None else max_tokens
            self.chat = self.chat if chat is None else chat
            text = self.engine.model.chat([{"role": "user", "content": self.prompt}]) if self.chat else self.prompt
            self.tokens, self._times, self.finish, self.seed = [], [], "", sampling.seed
            self._asked = time.perf_counter()
            self.begin(lambda: self._generate(text, sampling))
        return self

    def _generate(self, text: str, sampling: Any) -> None:
        self.runs += 1
        decode, looked = self.engine.tokenizer.decode, 0.0
        with self.engine.stream(text, max_tokens=self.max_tokens, sampling=sampling, logprobs=TOP) as stream:
            self._stream = stream
            if self._halt.is_set():
                stream.close()
            for token in stream:
                for other, _ in token.top:
                    if other not in self._words:
                        self._words[other] = decode([other])
                self.tokens.append(shown(token.id, token.text, token.logprob, token.top, self._words))
                if token.id >= 0:
                    self._times.append(token.time_s)
                if (now := time.monotonic()) - looked > MEMORY_S:
                    looked, self.memory = now, self._memory()
                self.changed()
            self._stream = None
            if stream.completion is not None:
                self.finish = stream.completion.finish
        self.memory = self._memory()

    def _memory(self) -> dict[str, int]:
        free = self.engine.device.memory_free()
        return {"held": sum(self.engine.memory.values())} | ({"free": free} if free is not None else {})

    def stop(self) -> None:
        """Cancel the completion; the engine is free a step later."""
        super().stop()
        if (stream := self._stream) is not None:
            stream.close()

    # showing

    @property
    def tok_s(self) -> float | None:
        """Tokens a second after the first."""
        if len(self._times) < 2 or self._times[-1] <= self._times[0]:
            return None
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(one.text for one in self.tokens)

    def state(self) -> dict[str, Any]:
        """Prompt, settings, text, and each token with its alternatives; rates and memory as shown."""
        return {
            "running": self.running, "closed": self.closed, "error": self.error, "runs": self.runs, "prompt": self.prompt,
            "settings": dict(self.settings), "seed": self.seed, "text": self.text, "finish": self.finish,
            "tokens": [{"id": one.id, "text": one.text, "p": one.p, "alternatives": one.alternatives} for one in
                       self.tokens if one.p is not None],
            "tok_s": self.tok_s, "ttft_s": self._times[0] - self._asked if self._times else None, "memory": self.memory,
        }  # fmt: skip

    def facts(self) -> str:
        """`24 tokens · 5.31 tok/s · first after 210 ms · 143 MiB held, 1.2 GiB free · length`."""
        parts = [f"{len(self._times)} tokens"]
        if self.tok_s is not None:
            parts.append(f"{self.tok_s:.3g} tok/s")
        if self._times:
            parts.append(f"first after {1e3 * (self._times[0] - self._asked):.0f} ms")
        if self.memory:
            free = f", {size_words(self.memory['free'])} free" if "free" in self.memory else ""
            parts.append(f"{size_words(self.memory['held'])} held{free}")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        ended = {"cancelled": "stopped", "length": f"ended at {self.max_tokens} tokens", "stop": "ended by itself"}
        if self.running:
            parts.append("writing" if self._times else "reading the prompt")
        elif self.finish:
            parts.append(ended.get(self.finish, f"ended: {self.finish}"))
        return " · ".join(parts)

    def html(self) -> Html:
        """The prompt, the tinted text, and its facts."""
        if not self.runs:
            return paragraph(f"{self.engine.model.name} on {self.engine.device.name}: nothing was asked yet.")
        asked = Html(f"<p><b>prompt</b> {verbatim(self.prompt)}</p>\n")
        table = tokens_table(self.tokens) if not self.running and self.tokens else Html("")
        return Html(asked + tokens_html(self.tokens) + paragraph(escape(self.facts())) + legend_html() + table)

    def __repr__(self) -> str:
        return f"<playground of {self.engine.model.name}: {self.facts() if self.runs else 'nothing asked yet'}>"

    # the widgets

    def controls(self) -> Sequence[Any]:
        """Prompt, a row of settings, and two buttons."""
        import ipywidgets as widgets

        def narrow(width_em: int) -> dict[str, Any]:
            return {"layout": widgets.Layout(width=f"{width_em}em"), "style": {"description_width": "initial"}}

        prompt = widgets.Textarea(
            self.prompt, placeholder="prompt", rows=3, layout=widgets.Layout(width="100%", max_width="60em")
        )
        self._fields = {
            "prompt": prompt,
            "temperature": widgets.FloatText(
                self.settings.get("temperature", 0.0), step=0.1, description="temperature", **narrow(11)
            ),
            "top_p": widgets.FloatText(self.settings.get("top_p", 1.0), step=0.05, description="top_p", **narrow(8)),
            "top_k": widgets.IntText(self.settings.get("top_k", 0), description="top_k", **narrow(8)),
            "min_p": widgets.FloatText(self.settings.get("min_p", 0.0), step=0.01, description="min_p", **narrow(8)),
            "seed": widgets.Text(
                "" if self.settings.get("seed") is None else str(self.settings["seed"]),
                placeholder="fresh", description="seed", **narrow(9),
            ),
            "max_tokens": widgets.IntText(self.max_tokens, description="max tokens", **narrow(11)),
            "chat": widgets.Checkbox(
                self.chat, description="as a chat", indent=False, layout=widgets.Layout(width="8em")
            ),
            "run": widgets.Button(description="Run", button_style="primary", icon="play"),
            "stop": widgets.Button(description="Stop", icon="stop", disabled=True),
        }  # fmt: skip
        self._fields["run"].on_click(lambda _: self.attempt(self._clicked))
        self._fields["stop"].on_click(lambda _: self.attempt(self.stop))
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
        settings = [self._fields[name] for name in (*NAMES, "max_tokens", "chat")]
        return prompt, widgets.HBox(settings, layout=wrap), widgets.HBox([self._fields["run"], self._fields["stop"]])

    def _clicked(self) -> None:
        values = {name: field.value for name, field in self._fields.items() if hasattr(field, "value")}
        seed = values["seed"].strip()
        if seed and not (seed.isascii() and seed.isdigit()):
            raise ParameterError(f"seed={seed!r} is not a whole number; leave it empty for a fresh one")
        self.run(
            values["prompt"], max_tokens=values["max_tokens"], chat=values["chat"], temperature=values["temperature"],
            top_p=values["top_p"], top_k=values["top_k"], min_p=values["min_p"], seed=int(seed) if seed else None,
        )  # fmt: skip

    def follow_controls(self) -> None:
        """Run when at rest, Stop when at work."""
        if self._fields:
            self._fields["run"].disabled, self._fields["stop"].disabled = self.running, not self.running


def playground(
    engine: "Engine", prompt: str = "Once upon a time", *, max_tokens: int = 64, chat: bool = False, **settings: Any
) -> Playground:
    """A view to write with `engine`: prompt, sampling controls, and the text as it streams, tinted by probability, with
    the five likeliest tokens of each place on hover, tokens a second and memory.

    `chat`: put the prompt into the model's chat template. `settings`: temperature, top_p, top_k, min_p, seed, as for
    `Sampling`. Without a browser: `view.run(prompt)`, `view.wait()`, `view.state()`, `view.stop()`. Stopped or not, the
    engine stays usable. Raises ParameterError for a setting out of range."""
    engine.alive()
    return Playground(engine, prompt, max_tokens, chat, settings)


def main() -> None:
    """`python -m labkit.widgets.playground [MODEL]`: a completion as a page on standard output."""
    import sys

    from labkit.engine.engine import Engine

    try:
        with Engine(sys.argv[1] if sys.argv[1:] else "smollm2-135m", slots=1, context=256) as engine:
            view = playground(engine, max_tokens=24).run()
            view.wait()
            print(view.page(f"Playground: {engine.model.name}"))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
