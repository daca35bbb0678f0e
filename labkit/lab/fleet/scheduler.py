"""The process of a scheduler: dask's own, on this machine alone by default, that never repeats a task whose worker died."""

import asyncio
import signal
from collections.abc import Callable

from labkit.errors import RunError
from labkit.lab.fleet.wire import Tls, need_distributed, settings


def schedule(host: str, port: int, tls: Tls, say: Callable[[str], None]) -> None:
    """Runs a scheduler until it is asked to end. RunError when it cannot listen there."""
    need_distributed()
    with settings():
        asyncio.run(stay(host, port, tls, say))


async def stay(host: str, port: int, tls: Tls, say: Callable[[str], None]) -> None:
    """The scheduler's life; see `schedule`."""
    import distributed

    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    try:
        scheduler = distributed.Scheduler(
            host=host, port=port, protocol="tls" if tls.used else "tcp", security=tls.security(), dashboard=False,
            dashboard_address="127.0.0.1:0", allowed_failures=0,
        )  # fmt: skip
        await scheduler
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(f"cannot listen at {host}:{port}: {' '.join(str(error).split())}") from None
    say(f"scheduler at {scheduler.address}. On each machine: lab worker {scheduler.address}. Ctrl-C ends it.")
    await asked.wait()
    await scheduler.close()
