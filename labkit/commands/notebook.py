"""`lab notebook`: open JupyterLab on the lab's notebooks, with a kernel that is this very Python."""

import click


@click.command(name="notebook", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on (the next free one if it is taken).")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[EXPERIMENT] [OPTIONS OF JUPYTERLAB]...")
def command(no_browser: bool, port: int | None, extra: tuple[str, ...]) -> None:
    """Open JupyterLab at notebooks/, or at the notebook of EXPERIMENT. What follows is passed on to it.

    Its kernel is this Python with `%lab` and `%%glsl` loaded (elsewhere: `%load_ext labkit`).
    """
    from labkit.lab.jupyter import open_lab
    from labkit.lab.lab import find_root

    experiment = extra[0] if extra and not extra[0].startswith("-") else None
    rest = extra[1:] if experiment else extra
    open_lab(find_root(None), browser=not no_browser, port=port, extra=rest, experiment=experiment)
