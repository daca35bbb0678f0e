"""`lab bench`: decode and prefill rates of a model or a shape, beside the device's ceilings and a peer's."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.errors import ParameterError

if TYPE_CHECKING:
    from labkit.lab.bench_course import Outcome
    from labkit.vulkan.device import Device

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C
# what is measured where nothing is said: on a GPU, and on the CPU, which takes two minutes for a small model
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "batch": ((1, 4, 8, 16, 32), (1, 4, 8)), "prompt": ((512, 2048, 4096), (64, 256)), "generate": (128, 32),
    "repetitions": (5, 3), "rows": ((1, 4, 8, 16, 32, 512, 2048), (1, 4, 8)),
}  # fmt: skip


class Numbers(click.ParamType):
    """Whole numbers with commas, `1,4,8`; `none` for no number at all."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if str(value).strip().lower() in ("", "none", "-"):
            return ()
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not whole numbers with commas, such as 1,4,8, or none", param, ctx)


class BenchCommand(click.Command):
    """`lab bench`; `lab bench ops ...` measures single operations, `lab bench figure ...` draws stored benches."""

    @property
    def beneath(self) -> dict[str, click.Command]:
        """The commands that begin with this one's name, by their second word."""
        return {"ops": ops_command, "figure": figure_command}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and (command := self.beneath.get(args[0])):
            return command.make_context(f"bench {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@click.option("--shape", default=None, help="Instead of a model: a known shape with random weights, for speed only.")
@click.option("--quant", default=None, help="Weight types of a shape, with commas: f16,q8_0,q4_0.  [default: f16]")
@click.option("--batch", type=Numbers(), help="Streams that decode at once.  [default: 1,4,8,16,32; CPU 1,4,8]")
@click.option("--prompt", type=Numbers(), help="Prompt lengths to prefill.  [default: 512,2048,4096; CPU 64,256]")
@click.option(
    "--depth", type=Numbers(), default="0", show_default=True, help="Tokens in each stream's cache before decoding."
)
@click.option(
    "--ub", type=int, default=None, help="Rows of a prompt chunk; default: the engine's own, 2048 for a peer."
)
@click.option("--generate", type=int, help="Tokens each stream decodes.  [default: 128; CPU 32]")
@click.option("--repetitions", "-r", type=int, help="Blocks; each measures every cell.  [default: 5; CPU 3]")
@click.option(
    "--against", type=click.Choice(["llama-server"]), default=None, help="Measure a peer in turns with labkit."
)
@click.option("--llama-server", "binary", default=None, metavar="PATH", help="Else LABKIT_LLAMA_SERVER, else the PATH.")
@click.option("--slots", type=int, default=None, help="Slots of the decoding engine; default: the most of --batch.")
@click.option("--context", type=int, default=None, help="Positions a slot holds; default: what the cells need.")
@click.option("--kv", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Type of the KV cache.")
@click.option("--arithmetic", type=click.Choice(["exact", "fast"]), default="fast", show_default=True)
@click.option("--device", "-d", default=None, help="Index, part of the name, cpu or gpu; default: the best.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and of the order within blocks.")
@click.option("--name", default=None, help="A label kept in the record.")
@click.option("--no-record", is_flag=True, help="Measure and show, but keep nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON on stdout.")
def command(**o: Any) -> None:
    """Measure decode and prefill rates of MODEL (a catalogue name, a .gguf file, a folder) or of a --shape.

    Every rate comes with its interval, GPU and host time a step, achieved GB/s or TFLOP/s, the share of this device's
    own measured read bandwidth or matrix rate, and what the card says of its power, clocks and heat. The run is kept in
    data/runs like any other. `lab bench ops` measures single operations and checks their results.

    \b
      lab bench smollm2-135m
      lab bench --shape mistral-7b --quant f16,q8_0 --against llama-server
      lab bench ops --shape mistral-7b --quant q4_0
      lab bench figure RUN RUN --out figures/bench.png
    """
    try:
        with terminating():
            whole = bench(o)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if not whole:
        sys.exit(1)


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP interrupt as Ctrl-C does, so that records are closed and peers stopped."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def models_of(model: str | None, shape: str | None, quants: str | None) -> list[tuple[str, Any]]:
    """(label of the quantisation, what makes the model), checked before anything is loaded. ParameterError."""
    from labkit.models.model import Model
    from labkit.models.shapes import ShapeModel

    if (model is None) == (shape is None):
        raise ParameterError("give a model or a --shape: `lab models` lists models, --shape mistral-7b needs no file")
    if shape is not None:
        names = [name.strip() for name in ("f16" if quants is None else quants).split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise ParameterError(f"--quant {quants!r} is not a list of different weight types")
        return [(name, ShapeModel(shape, name)) for name in names]
    if quants is not None:
        raise ParameterError(f"--quant {quants} goes with a --shape: the file {model} has its own weight types")
    opened = Model(str(model))
    return [(max(opened.bytes_by_type, key=lambda kind: opened.bytes_by_type[kind]).lower(), opened)]


def with_defaults(o: dict[str, Any], device: "Device") -> dict[str, Any]:
    """The options, with what was left out as it is for this kind of device."""
    return {
        name: DEFAULTS[name][device.is_cpu] if value is None and name in DEFAULTS else value
        for name, value in o.items()
    }


def bench(o: dict[str, Any]) -> bool:
    """Checks what is asked for, measures it and shows the result; False when a peer failed on the way."""
    from labkit.engine.engine import default_device
    from labkit.lab.bench_course import run_bench
    from labkit.measure.bench.settings import Settings
    from labkit.runtimes.llama_binary import find_binary

    device = default_device(o["device"])
    o = with_defaults(o, device)
    settings = Settings(**{field.name: o[field.name] for field in fields(Settings)})
    models = models_of(o["model"], o["shape"], o["quant"])
    if o["binary"] and not o["against"]:
        raise ParameterError("--llama-server names a peer that is not asked for: add --against llama-server")
    peer = find_binary(o["binary"]) if o["against"] else None
    return shown(o, run_bench(settings, models, device, peer, **record_of(o)))


def record_of(o: dict[str, Any]) -> dict[str, Any]:
    """What a course needs for its record: the parameters as stored, a label, and whether to keep one."""
    parameters = {key: value for key, value in o.items() if key not in ("as_json", "no_record", "name", "binary")}
    return {"parameters": parameters, "name": o["name"], "keep": not o["no_record"]}


def shown(o: dict[str, Any], outcome: "Outcome") -> bool:
    """Prints an outcome, as JSON or with a headline, and what the audit of its record warns of; whether it was whole.
    Ends with 3 when it was and the audit fails it."""
    from labkit.lab.record import WITHHELD, audit_fails
    from labkit.lab.settle import audit_lines

    if o["as_json"]:
        click.echo(json.dumps(outcome.document, indent=2, ensure_ascii=False))
    else:
        what = o["model"] if o["shape"] is None else f"{o['shape']}, random weights (for speed only)"
        click.echo(f"{what} on {outcome.text}")
    for line in audit_lines(outcome.folder) if outcome.folder else ():
        click.echo(line, err=True)
    if outcome.whole and outcome.folder and audit_fails(outcome.folder):
        sys.exit(WITHHELD)
    return outcome.whole


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@click.option("--shape", default=None, help="Instead of a model: a known shape, with random weights.")
@click.option("--quant", default=None, help="Weight types of a shape, with commas: f16,q8_0,q4_0.  [default: f16]")
@click.option("--op", "names", multiple=True, help="An operation, may be repeated; default: all of them.")
@click.option("--rows", type=Numbers(), default=None, help="Rows at once.  [default: 1,4,8,16,32,512,2048; CPU 1,4,8]")
@click.option("--depth", type=Numbers(), default="128,1024,4096", show_default=True, help="Positions attention sees.")
@click.option("--repetitions", "-r", type=int, default=7, show_default=True)
@click.option("--arithmetic", type=click.Choice(["exact", "fast"]), default="fast", show_default=True)
@click.option("--device", "-d", default=None, help="Index, part of the name, cpu or gpu; default: the best.")
@click.option("--name", default=None, help="A label kept in the record.")
@click.option("--no-record", is_flag=True, help="Measure and show, but keep nothing.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON on stdout.")
def ops_command(**o: Any) -> None:
    """Measure single operations at the shapes of MODEL or a --shape, each checked against NumPy in the same call.

    An operation goes through more buffers than the caches hold, each run waiting for the one before as in a model. It
    ends with 1 when a result was wrong; a wrong operation has no time.
    """
    try:
        with terminating():
            right = bench_ops(o)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if not right:
        sys.exit(1)


def bench_ops(o: dict[str, Any]) -> bool:
    """Checks what is asked for, measures it and shows the result; False when a result was wrong."""
    from labkit.engine.engine import default_device
    from labkit.lab.bench_course import run_ops
    from labkit.measure.ops_bench.cases import chosen

    device = default_device(o["device"])
    o = with_defaults(o, device)
    if not 1 <= o["repetitions"] <= 1000:
        raise ParameterError(f"--repetitions {o['repetitions']} is not a whole number from 1 to 1000")
    for option in ("rows", "depth"):
        if wrong := [value for value in o[option] if not 1 <= value <= 1 << 16]:
            raise ParameterError(f"--{option} {wrong[0]} is not a whole number from 1 to {1 << 16}")
    names = chosen(o["names"])
    models = models_of(o["model"], o["shape"], o["quant"])
    return shown(o, run_ops(names, models, device, **record_of(o)))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", nargs=-1, required=True)
@click.option("--phase", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True)
@click.option("--title", default=None, help="The claim that the picture shows.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .png to write.")
def figure_command(runs: tuple[str, ...], phase: str, title: str | None, out: Path) -> None:
    """Draw the rates of stored benches of one device in one picture: a line a runtime and quantisation."""
    import tempfile

    from labkit.lab.figures import write_png
    from labkit.lab.lab import Lab
    from labkit.lab.pictures.bench import figure_of_runs

    lab = Lab()
    made = figure_of_runs([lab.find_run(run) for run in runs], phase, title=title)
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "figure.json"
        stored.write_text(made.to_json(), encoding="utf-8")
        if not write_png(stored, out):
            raise ParameterError(f"{out} could not be drawn: `lab doctor` says what pictures need")
    click.echo(str(out))
