"""The process of a worker: one thread for one GPU, no nanny that starts things again, runs finished whoever leaves."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

from labkit.errors import RunError
from labkit.lab.fleet.wire import Tls, need_distributed, reach, settings
from labkit.lab.fleet.workplace import Workplace, take_place

RESOURCE = "gpu"
FIND_S = 30.0  # for the scheduler to answer
LEAVE_S = 5.0  # for a stopped run to be fetched before the worker leaves


def work(address: str, workplace: Workplace, host: str, port: int, tls: Tls, say: Callable[[str], None]) -> bool:
    """Works for the scheduler at `address` until it is asked to end (true) or the scheduler is gone (false); a run under
    way is ended first. RunError when there is no scheduler or it cannot be reached from `host`."""
    need_distributed()
    reach(address)
    take_place(workplace)
    with settings():
        return asyncio.run(stay(address, workplace, host, port, tls, say))


async def stay(address: str, workplace: Workplace, host: str, port: int, tls: Tls, say: Callable[[str], None]) -> bool:
    """The worker's life; see `work`."""
    import distributed

    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    with tempfile.TemporaryDirectory(prefix="lab-worker-") as scratch:
        try:
            worker = distributed.Worker(
                address, nthreads=1, name=workplace.name, resources={RESOURCE: 1}, memory_limit=0, host=host, port=port,
                dashboard=False, dashboard_address="127.0.0.1:0", security=tls.security(), local_directory=scratch,
                death_timeout=FIND_S,
            )  # fmt: skip
            await asyncio.wait_for(worker, 2 * FIND_S)
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise RunError(f"no work for {workplace.name}: {address}: {last_line(error)}") from None
        closed = note_reason(worker)
        say(f"worker {workplace.name} at {worker.address} for {address}. Ctrl-C ends it.")
        gone, end = asyncio.ensure_future(worker.finished()), asyncio.ensure_future(asked.wait())
        await asyncio.wait({gone, end}, return_when=asyncio.FIRST_COMPLETED)
        if asked.is_set():
            await leave(worker, workplace, say)
        else:
            say(f"the scheduler is gone, or has dropped this worker ({closed[0] if closed else 'unknown'})")
            await finish(workplace, asked, say)
        end.cancel()
        await worker.close(executor_wait=False)
    return asked.is_set()


async def leave(worker: object, workplace: Workplace, say: Callable[[str], None]) -> None:
    """Stops what runs, and waits a moment for the home lab to have it."""
    if not workplace.busy:
        return
    say("stopping the run; its record is closed and handed over")
    workplace.stop()
    while workplace.busy:
        await asyncio.sleep(0.1)
    until = time.monotonic() + LEAVE_S
    while getattr(worker, "data", None) and time.monotonic() < until:
        await asyncio.sleep(0.1)


async def finish(workplace: Workplace, asked: asyncio.Event, say: Callable[[str], None]) -> None:
    """No scheduler is left: what runs is ended and stays here, until a home lab comes for it."""
    if workplace.busy:
        say(f"{workplace.busy[0]} is run to its end and kept here. Ctrl-C stops it.")
    while workplace.busy:
        if asked.is_set():
            workplace.stop()
        await asyncio.sleep(0.1)


def note_reason(worker: Any) -> list[str]:
    """Why the worker closed, filled as it does: dask tells it to its log alone."""
    reasons: list[str] = []
    close = worker.close

    async def noted(*arguments: Any, reason: str = "asked", **named: Any) -> Any:
        reasons.append(reason)
        return await close(*arguments, reason=reason, **named)

    worker.close = noted
    return reasons


def last_line(error: BaseException) -> str:
    """The last thing that an error says, or what caused it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
