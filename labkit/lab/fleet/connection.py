"""The home lab's end of a fleet: which workers are there, what they are asked, and when the scheduler is gone."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from labkit.errors import LabError, RunError
from labkit.lab.fleet import workplace
from labkit.lab.fleet.code import Code, other_code
from labkit.lab.fleet.wire import Tls, need_distributed, reach, read_address, settings
from labkit.lab.fleet.workplace import Task

ANSWER_S = 60.0  # for a worker to say something
FETCH_S = 600.0  # for an archive to come over


class SchedulerLost(RunError):
    """The scheduler ended, or no connection to it is left."""


class WorkerLost(RunError):
    """A worker ended, or answers no more."""


@dataclass(frozen=True)
class Worker:
    """A worker that is there: dask's address of it, its own name, its device, and its code of the experiment."""

    address: str
    name: str
    device: str | None
    code: Code


class Fleet:
    """The workers of one scheduler, as one experiment sees them. Made by `connected`."""

    def __init__(self, client: Any, address: str, experiment: str, notebook: str, code: Code, allow: bool) -> None:
        self.client, self.address = client, address
        self.experiment, self.notebook, self.code, self.allow = experiment, notebook, code, allow
        self._known: dict[str, Worker | str] = {}  # by address; a text says why one is not used
        self._told: set[str] = set()

    def workers(self) -> dict[str, Worker]:
        """The workers that can be used now, by address; a new one is asked who it is. SchedulerLost without a scheduler."""
        self._check()
        try:
            told = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
            found = told["workers"]
        except (OSError, KeyError, TimeoutError, RuntimeError, CancelledError):
            raise self._lost() from None
        for address in found:
            if address not in self._known:
                with contextlib.suppress(WorkerLost):  # it came and went, or is asked again at the next look
                    self._known[address] = self._describe(address)
        known = {address: self._known[address] for address in found if address in self._known}
        return {address: worker for address, worker in known.items() if isinstance(worker, Worker)}

    def refused(self) -> list[str]:
        """Why workers that are there are not used, each told once."""
        texts = {text for text in self._known.values() if isinstance(text, str)} - self._told
        self._told |= texts
        return sorted(texts)

    def _describe(self, address: str) -> Worker | str:
        """A worker that came, or why it is not used."""
        try:
            told = self.ask(address, workplace.describe, self.experiment, self.notebook)
            worker = Worker(address, str(told["name"]), told["device"], Code.model_validate(told["code"]))
        except (SchedulerLost, WorkerLost):
            raise
        except ValidationError:
            return f"the worker at {address} has another version of labkit; update it"
        except LabError as error:
            return f"the worker at {address} cannot be used: {error}"
        differs = other_code(self.code, worker.code)
        if differs and not self.allow:
            return (
                f"worker {worker.name} has other code: {'; '.join(differs)}. Bring both to one commit, or say "
                f"--allow-difference: each record then tells what differs"
            )
        return worker

    def ask(self, address: str, what: Callable[..., Any], *arguments: Any, within_s: float = ANSWER_S) -> Any:
        """A worker's answer to one of `workplace`'s functions. RunError with what it says is wrong; WorkerLost when it
        does not answer."""
        self._check()
        try:
            told = self.client.sync(
                self.client._run, what, *arguments, workers=[address], on_error="return", callback_timeout=within_s
            )
        except (OSError, TimeoutError, RuntimeError, CancelledError):
            self._check()
            raise WorkerLost(f"the worker at {address} does not answer") from None
        answer = told.get(address)
        if not isinstance(answer, dict):
            if isinstance(answer, OSError) or answer is None:
                raise WorkerLost(f"the worker at {address} does not answer")
            raise RunError(f"it has another version of labkit ({type(answer).__name__}: {one_line(answer)})")
        return answer_of(answer)

    def begin(self, worker: Worker, task: Task) -> Any:
        """Hands a point to one worker, never to another: the future of `result`."""
        self._check()
        return self.client.submit(
            workplace.perform, task.model_dump(), key=f"lab-{task.run}-{secrets.token_hex(4)}", pure=False, retries=0,
            workers=[worker.address], allow_other_workers=False, resources={"gpu": 1},
        )  # fmt: skip

    def result(self, future: Any, within_s: float) -> dict[str, Any]:
        """What a point that is done sent. RunError with what the worker says is wrong; WorkerLost when it is gone."""
        self._check()
        try:
            told = future.result(timeout=within_s)
        except Exception as error:
            self._check()
            if type(error).__name__ in ("KilledWorker", "CancelledError", "FutureCancelledError", "TimeoutError"):
                raise WorkerLost(type(error).__name__) from None
            raise RunError(f"its worker failed: {type(error).__name__}: {one_line(error)}") from None
        finally:
            with contextlib.suppress(Exception):
                future.release()
        sent = answer_of(told) if isinstance(told, dict) else None
        if not isinstance(sent, dict):
            raise RunError("its worker sent something that is no run")
        return sent

    def _check(self) -> None:
        if self.client.status != "running":
            raise self._lost()

    def _lost(self) -> SchedulerLost:
        return SchedulerLost(
            f"the scheduler at {self.address} is gone or out of reach; workers end what they run and keep it. With it and "
            f"them back, --resume fetches that"
        )


def answer_of(told: dict[str, Any]) -> Any:
    """What a worker answers. RunError with its error."""
    if "answer" not in told:
        raise RunError(str(told.get("error", "it gave no answer")))
    return told["answer"]


@contextlib.contextmanager
def connected(text: str, tls: Tls, experiment: str, notebook: str, code: Code, allow: bool) -> Iterator[Fleet]:
    """The fleet behind a scheduler's address, while inside. ParameterError for what is no address, RunError when no
    scheduler answers there."""
    address = read_address(text, tls)
    distributed = need_distributed()
    reach(address)
    with settings():
        try:
            client = distributed.Client(address, security=tls.security(), set_as_default=False, timeout="10s")
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise RunError(
                f"no scheduler answers at {text} ({one_line(error)}); start one with `lab scheduler`"
            ) from None
        try:
            yield Fleet(client, address, experiment, notebook, code, allow)
        finally:
            with contextlib.suppress(Exception):
                client.close(timeout=2)


def one_line(error: BaseException) -> str:
    """The last line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
