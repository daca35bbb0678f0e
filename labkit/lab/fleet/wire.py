"""Addresses, TLS and the package dask.distributed itself: what scheduler, workers and the home lab agree on."""

import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from labkit.errors import ParameterError, RunError

PORT = 8786
REACH_S = 10.0  # for a scheduler to accept a connection
ANYBODY = "whoever reaches the port without TLS can run any code as you"


@dataclass(frozen=True)
class Tls:
    """The files of TLS: all three or none. With them each side shows a certificate of the authority in `ca`."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        named = {"--tls-ca-file": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        missing = [name for name, path in named.items() if path is None]
        if missing and len(missing) < len(named):
            raise ParameterError(f"TLS needs all of its three files: {' and '.join(missing)} too")
        for name, path in named.items():
            if path is not None and not path.is_file():
                raise ParameterError(f"{name}: there is no file {path}")

    @property
    def used(self) -> bool:
        """Whether the connections are encrypted."""
        return self.ca is not None

    def security(self) -> Any:
        """What dask takes, for any of the three roles. ParameterError for files that are no certificates."""
        import ssl

        security = need_distributed().Security
        if not self.used:
            return security()
        names = [f"tls_{role}_{what}" for role in ("scheduler", "worker", "client") for what in ("cert", "key")]
        files = {name: str(self.cert if name.endswith("cert") else self.key) for name in names}
        made = security(require_encryption=True, tls_ca_file=str(self.ca), **files)
        try:
            made.get_connection_args("client")
        except (ssl.SSLError, OSError) as error:
            raise ParameterError(f"the files of TLS cannot be used: {error}") from None
        return made


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """The three options of TLS on a verb."""
    where = click.Path(path_type=Path, dir_okay=False)
    for name, what in (
        ("--tls-key", "The private key of that certificate (PEM)."),
        ("--tls-cert", "This side's certificate, signed by the authority (PEM)."),
        ("--tls-ca-file", "The authority that signed every side's certificate (PEM)."),
    ):
        command = click.option(name, type=where, metavar="FILE", help=what)(command)
    return command


def need_distributed() -> Any:
    """The module `distributed`, its log silenced. ParameterError with the pip command where it is not installed."""
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise ParameterError(
            f"{error.name} is not installed, which a sweep over several machines needs: pip install 'distributed>=2026.8'"
        ) from None
    for name in ("distributed", "tornado", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is said in a line of our own
    return distributed


@contextmanager
def settings() -> Iterator[None]:
    """While inside, dask repeats nothing, moves nothing from worker to worker, and leaves NVML to labkit."""
    import dask

    with dask.config.set(
        {
            "distributed.comm.retry.count": 0,
            "distributed.scheduler.allowed-failures": 0,
            "distributed.scheduler.work-stealing": False,
            "distributed.diagnostics.nvml": False,
        }
    ):
        yield


def read_address(text: str, tls: Tls) -> str:
    """`tcp://HOST:PORT`, or `tls://` where TLS is used, of `HOST`, `HOST:PORT` or either with its scheme. ParameterError
    otherwise."""
    scheme = "tls" if tls.used else "tcp"
    found = re.fullmatch(r"(?:(tcp|tls)://)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", text.strip())
    if found is None or int(found[3] or PORT) > 65535:
        raise ParameterError(f"{text!r} is not the address of a scheduler, such as 127.0.0.1:{PORT}")
    if found[1] not in (None, scheme):
        raise ParameterError(
            f"{text} is an address {'with' if found[1] == 'tls' else 'without'} TLS: "
            + ("give --tls-ca-file, --tls-cert and --tls-key" if found[1] == "tls" else "leave the files of TLS out")
        )
    return f"{scheme}://{found[2]}:{found[3] or PORT}"


def host_of(address: str) -> str:
    """The host of an address made by `read_address`."""
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def reach(address: str) -> None:
    """RunError when nobody listens at an address made by `read_address`: dask itself would go on trying."""
    try:
        socket.create_connection((host_of(address), int(address.rpartition(":")[2])), timeout=REACH_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError(f"no scheduler answers at {address} ({why}); start one with `lab scheduler`") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_reach(host: str, tls: Tls, trusted: bool) -> None:
    """ParameterError for an address that others reach, without TLS, unless a person trusts the network."""
    if not (is_loopback(host) or tls.used or trusted):
        raise ParameterError(
            f"--host {host} can be reached from other machines, and {ANYBODY}: give --tls-ca-file, --tls-cert and "
            f"--tls-key, tunnel it through ssh, or say --trust-network"
        )
