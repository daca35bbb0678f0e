"""`lab generate`: complete one prompt with the engine, streaming, or as JSON with log-probabilities and timings."""

import json
import math
import sys
from typing import Any

import click

from labkit.errors import ParameterError

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


def _prompt(text: str) -> str:
    """The prompt as text; "-" reads standard input, which must be UTF-8."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(f"standard input is not UTF-8 text ({error.reason} at byte {error.start})") from None


def _bias(items: tuple[str, ...]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for item in items:
        token, _, value = item.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise ParameterError(f"--logit-bias {item!r} is not TOKEN_ID=VALUE, such as 42=-5") from None
    return bias


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("prompt")
@click.option(
    "--model",
    "-m",
    default="smollm2-135m",
    show_default=True,
    help="Catalogue name, path of a .gguf file, or of a folder.",
)
@click.option("--device", "-d", default=None, help="Index, part of the name, cpu or gpu; default: the best.")
@click.option("-n", "--max-tokens", type=int, default=128, show_default=True, help="Tokens to generate at most.")
@click.option("--context", type=int, default=None, help="Positions of the slot; default: what prompt and -n need.")
@click.option("--kv", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Type of the KV cache.")
@click.option("--arithmetic", type=click.Choice(["exact", "fast"]), default="fast", show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0 keeps every token.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--min-p", type=float, default=0.0, show_default=True)
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True)
@click.option("--presence-penalty", type=float, default=0.0, show_default=True)
@click.option("--frequency-penalty", type=float, default=0.0, show_default=True)
@click.option("--logit-bias", multiple=True, metavar="ID=VALUE", help="Add VALUE to a token's logit; may be repeated.")
@click.option("--seed", type=int, default=None, help="Same seed, same text.")
@click.option("--stop", multiple=True, help="Stop before this text; may be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the end token, without banning it.")
@click.option("--raw", is_flag=True, help="No chat template: the text itself, with special tokens parsed.")
@click.option("--system", default=None, help="A system message before the prompt (with the chat template).")
@click.option("--logprobs", type=int, default=5, show_default=True, help="Most likely tokens a step in the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming text.")
def command(prompt: str, as_json: bool, raw: bool, system: str | None, **o: Any) -> None:
    """Complete PROMPT ("-" reads standard input) and print the text as it comes. An interrupt ends it with code 130."""
    try:
        _complete(prompt, as_json=as_json, raw=raw, system=system, o=o)
    except KeyboardInterrupt:
        click.echo(err=True)
        sys.exit(INTERRUPTED)


def _complete(prompt: str, *, as_json: bool, raw: bool, system: str | None, o: dict[str, Any]) -> None:
    from labkit.engine.engine import Engine
    from labkit.engine.sampling import Sampling
    from labkit.models.model import Model

    text = _prompt(prompt)
    sampling = Sampling(
        temperature=o["temperature"], top_k=o["top_k"], top_p=o["top_p"], min_p=o["min_p"],
        repetition_penalty=o["repetition_penalty"], presence_penalty=o["presence_penalty"],
        frequency_penalty=o["frequency_penalty"], logit_bias=_bias(o["logit_bias"]), seed=o["seed"],
    )  # fmt: skip
    if raw and system is not None:
        raise ParameterError("--system needs the chat template; leave out --raw")
    if not text or (not raw and not text.strip()):
        raise ParameterError("the prompt is empty: give some text, or - for standard input")
    if o["logprobs"] < 0:
        raise ParameterError(f"logprobs={o['logprobs']} is not a number of tokens from 0")
    if o["max_tokens"] < 1:
        raise ParameterError(f"-n {o['max_tokens']} is not a positive number of tokens")
    with Model(o["model"]) as model:
        if not raw:
            messages = [{"role": "system", "content": system}] if system is not None else []
            text = model.chat([*messages, {"role": "user", "content": text}])
        bos = model.tokenizer.add_bos and raw
        ids = model.tokenizer.encode(text, special=True, bos=bos)
        context = (
            o["context"] if o["context"] is not None else min(model.config.context, max(64, len(ids) + o["max_tokens"]))
        )
        with Engine(model, o["device"], slots=1, context=context, kv=o["kv"], arithmetic=o["arithmetic"]) as engine:
            options = {
                "max_tokens": o["max_tokens"], "sampling": sampling, "stop": o["stop"], "ignore_eos": o["ignore_eos"],
            }  # fmt: skip
            if as_json:
                done = engine.generate([ids], logprobs=o["logprobs"], **options)[0]
                click.echo(json.dumps(_report(engine, done, o), ensure_ascii=False))
                return
            if len(ids) > 256 and sys.stderr.isatty():
                click.echo(f"reading {len(ids)} tokens of prompt ...", err=True)
            first = last = None
            count = 0
            for token in engine.stream(ids, **options):
                click.echo(token.text, nl=False)
                sys.stdout.flush()
                if token.id >= 0:
                    first, last, count = first or token.time_s, token.time_s, count + 1
            click.echo()
            if first is not None and last is not None and count > 1 and sys.stderr.isatty():
                click.echo(
                    f"{count} tokens, {(count - 1) / (last - first):.1f} tok/s on {engine.device.name}", err=True
                )


def _report(engine: Any, done: Any, options: dict[str, Any]) -> dict[str, Any]:
    tokens = len(done.token_ids)
    decode = None
    if done.tpot_s:
        decode = 1 / done.tpot_s
    return {
        "model": engine.model.name,
        "device": engine.device.name,
        "kv": options["kv"],
        "arithmetic": options["arithmetic"],
        "prompt_ids": list(done.prompt_ids),
        "token_ids": list(done.token_ids),
        "text": done.text,
        "finish": done.finish,
        "logprobs": [round(v, 6) for v in done.logprobs],
        "top_logprobs": [
            [[i, round(v, 6) if math.isfinite(v) else None] for i, v in step] for step in done.top_logprobs
        ],
        "timings": {
            "prompt_tokens": len(done.prompt_ids),
            "completion_tokens": tokens,
            "ttft_s": done.ttft_s,
            "tpot_s": done.tpot_s,
            "prefill_tok_s": len(done.prompt_ids) / done.ttft_s if done.ttft_s else None,
            "decode_tok_s": decode,
        },
    }
