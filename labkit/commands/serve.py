"""`lab serve`: the engine behind the OpenAI API, on this machine alone unless a key is set."""

import click

from labkit.errors import ParameterError

KEY_VARIABLE = "LABKIT_API_KEY"
DEFAULT_CONTEXT = 4096
LEAST_KEY = 16  # characters of a key


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="smollm2-135m")
@click.option("--device", "-d", default=None, help="Index, part of the name, cpu or gpu; default: the best.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a key.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any that is free."
)
@click.option(
    "--api-key",
    envvar=KEY_VARIABLE,
    default=None,
    help=f"What clients must show; better in {KEY_VARIABLE}, for ps shows it.",
)
@click.option("--slots", type=int, default=16, show_default=True, help="Completions that decode together.")
@click.option(
    "--context", type=int, default=None, help=f"Positions of a slot; default: the model's, {DEFAULT_CONTEXT} at most."
)
@click.option("--queue", type=int, default=64, show_default=True, help="Completions that may wait; more get 429.")
@click.option("--kv", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Type of the KV cache.")
@click.option("--arithmetic", type=click.Choice(["exact", "fast"]), default="fast", show_default=True)
@click.option("--ub", type=int, default=None, help="Rows of prompts read in one step.")
def command(
    model: str, device: str | None, host: str, port: int, api_key: str | None, slots: int, context: int | None, queue: int,
    kv: str, arithmetic: str, ub: int | None,
) -> None:  # fmt: skip
    """Serve MODEL over the OpenAI API until Ctrl-C: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics."""
    try:
        from labkit.serve.app import App
        from labkit.serve.server import Server, address_of, bind, is_loopback
    except ModuleNotFoundError as error:
        raise ParameterError(
            f"{error.name} is not installed, which lab serve needs: pip install 'starlette>=1.0' 'uvicorn>=0.40'"
        ) from None
    from labkit.engine.engine import Engine
    from labkit.models.model import Model
    from labkit.serve.limits import Limits

    if api_key is None and not is_loopback(host):
        raise ParameterError(
            f"--host {host} can be reached from other machines, so clients need a key: set {KEY_VARIABLE} or --api-key"
        )
    if api_key is not None and (len(api_key) < LEAST_KEY or not api_key.isascii() or not api_key.isprintable()):
        raise ParameterError(
            f"the API key has {len(api_key)} characters: give {LEAST_KEY} or more, printable ASCII ones"
        )
    with bind(host, port) as bound, Model(model) as opened:
        positions = context if context is not None else min(opened.config.context, DEFAULT_CONTEXT)
        limits = Limits.for_engine(slots, positions, queue)
        with Engine(opened, device, slots=slots, context=positions, kv=kv, arithmetic=arithmetic, ub=ub) as engine:
            said = (
                f"{opened.name} on {engine.device.name} at {address_of(bound)}/v1: {slots} slots of {positions} positions, "
                f"{queue} may wait{', with a key' if api_key else ', this machine alone'}. Ctrl-C ends it."
            )
            Server(App(engine, limits, api_key), lambda: click.echo(said, err=True)).serve_on(bound)
