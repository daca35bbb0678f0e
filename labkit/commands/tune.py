"""`lab tune`: find the fastest cut of each matrix product on this device, and keep it for engines from now on."""

import json as json_module
from dataclasses import asdict

import click


@click.command(name="tune")
@click.argument("model", required=False)
@click.option("--shape", help="A known shape with random weights instead of a model, such as mistral-7b.")
@click.option("--quant", default="f16", show_default=True, help="Weights of the shape; several with commas.")
@click.option("--batch", default="1,2,4,8,16,32", show_default=True, help="Streams that decode together.")
@click.option("--device", help="Index or part of the name of the device.")
@click.option("--no-wait", is_flag=True, help="Refuse instead of waiting when the device is in use by another run.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(
    model: str | None, shape: str | None, quant: str, batch: str, device: str | None, no_wait: bool, as_json: bool
) -> None:
    """Time every cut of the matrix products of MODEL (or of --shape) and keep the fastest for this device and driver."""
    from labkit.engine.engine import default_device
    from labkit.errors import ParameterError
    from labkit.lab.lock import device_lock
    from labkit.measure.tune import tune
    from labkit.models.model import Model
    from labkit.models.shapes import ShapeModel
    from labkit.ops.linear_tuned import path_of

    if (model is None) == (shape is None):
        raise ParameterError("name a model, or give --shape: one of them is tuned for")
    try:
        rows = [int(text) for text in batch.split(",")]
    except ValueError:
        raise ParameterError(f"--batch {batch!r} is not a list of numbers such as 1,8,32") from None
    gpu = default_device(device)
    models = [Model(model)] if model else [ShapeModel(str(shape), each) for each in quant.split(",")]
    found = []
    uuid = str(gpu.info.uuid or gpu.name)
    with device_lock(uuid, "tune", wait=not no_wait, waiting=lambda text: click.echo(text, err=True)):
        for each in models:
            found += tune(each, gpu, rows, say=lambda line: None if as_json else click.echo(line))
    if as_json:
        entries = [asdict(best) | {"kind": type(best.cut).__name__} for best in found]
        click.echo(json_module.dumps({"device": gpu.name, "file": str(path_of(gpu)), "tuned": entries}))
    else:
        click.echo(f"{len(found)} products tuned for {gpu.name}, kept in {path_of(gpu)}")
