"""`lab scheduler`: the place where a sweep's home lab and its workers meet."""

from pathlib import Path

import click

from labkit.lab.fleet.wire import PORT, tls_options


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need TLS.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any that is free."
)
@click.option(
    "--trust-network", is_flag=True, help="Listen at --host without TLS: whoever reaches it can run any code as you."
)
@tls_options
def command(
    host: str, port: int, trust_network: bool, tls_ca_file: Path | None, tls_cert: Path | None, tls_key: Path | None
) -> None:
    """Run a dask scheduler until Ctrl-C, for `lab sweep --scheduler` and its workers (`lab worker`).

    It passes runs on and keeps nothing; a run whose worker dies is never repeated by itself. Without TLS dask runs
    whatever anybody sends who reaches the port, so it listens on this machine alone unless told otherwise.
    """
    from labkit.lab.fleet.scheduler import schedule
    from labkit.lab.fleet.wire import Tls, check_reach

    tls = Tls(tls_ca_file, tls_cert, tls_key)
    check_reach(host, tls, trust_network)
    schedule(host, port, tls, lambda text: click.echo(text, err=True))
