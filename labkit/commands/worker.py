"""`lab worker`: makes this machine's lab, with one of its GPUs, a worker of a sweep over several machines."""

import os
import sys
from pathlib import Path

import click

from labkit.lab.fleet.wire import tls_options


@click.command()
@click.argument("address")
@click.option(
    "--device", "-d", metavar="NAME", help="Its GPU: index or part of the name; sets LABKIT_DEVICE for its runs."
)
@click.option(
    "--lab", "root", type=click.Path(path_type=Path), metavar="DIR", help="Its lab (default: that of this folder)."
)
@click.option("--name", help="What it is called in records (default: the device and four digits).")
@click.option("--host", help="Address that the scheduler reaches it at; default: this machine alone.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port that it listens on (default: any that is free)."
)
@click.option(
    "--trust-network", is_flag=True, help="Listen at --host without TLS: whoever reaches it can run any code as you."
)
@tls_options
def command(
    address: str, device: str | None, root: Path | None, name: str | None, host: str | None, port: int, trust_network: bool,
    tls_ca_file: Path | None, tls_cert: Path | None, tls_key: Path | None,
) -> None:  # fmt: skip
    """Work for the scheduler at ADDRESS (`lab scheduler`) until Ctrl-C: one run at a time, one worker a GPU.

    Each run is made in this lab, with its notebooks and its labkit, which must be the same as the home lab's; it stays
    here too. No ledger is written. Without TLS dask runs whatever anybody sends who reaches the port: it listens on this
    machine alone unless told otherwise, and other machines come in through ssh or TLS.

    \b
      lab worker 127.0.0.1:8786 --device 1
      lab worker gpu-box:8786 --host 10.0.0.7 --tls-ca-file ca.pem --tls-cert me.pem --tls-key me.key
    """
    import secrets

    from labkit.errors import ParameterError
    from labkit.lab.driver import require_jupyter
    from labkit.lab.fleet.wire import Tls, check_reach, host_of, is_loopback, need_distributed, read_address

    tls = Tls(tls_ca_file, tls_cert, tls_key)
    scheduler = read_address(address, tls)
    need_distributed()
    require_jupyter()
    if host is None and not is_loopback(host_of(scheduler)):
        raise ParameterError(
            f"the scheduler at {address} is on another machine and must reach this worker: give --host and TLS, or bring "
            f"its port here through ssh"
        )
    check_reach(host or "127.0.0.1", tls, trust_network)

    from labkit.lab.fleet.worker import work
    from labkit.lab.fleet.workplace import Workplace
    from labkit.lab.lab import Lab

    lab = Lab(root)
    if device is not None:
        os.environ["LABKIT_DEVICE"] = device
    os.environ["LABKIT_LAB"] = str(lab.root)
    chosen = os.environ.get("LABKIT_DEVICE") or None
    called = name or f"gpu{chosen if chosen and chosen.isalnum() else ''}-{secrets.token_hex(2)}"
    workplace = Workplace(lab, called, chosen)
    if not work(scheduler, workplace, host or "127.0.0.1", port, tls, lambda text: click.echo(text, err=True)):
        click.echo(f"lab: the scheduler at {address} has this worker no more; start it again", err=True)
        sys.exit(1)
