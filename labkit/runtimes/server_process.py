"""A server started on a loopback port: leashed to this process, waited for, its last words kept, stopped by its own id."""

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labkit.errors import ParameterError, RunError

HOST = "127.0.0.1"
LOAD_S = 900.0  # how long it may take to load a model and build its pipelines
STOP_S = 5.0
LINES, LOG_BYTES = 20, 1 << 16  # of its log, where it is asked why it ended
_TROUBLE = re.compile(r"\b(error|fail|failed|couldn't|could not|cannot|invalid|unable|out of memory)\b", re.IGNORECASE)
_PREFIX = re.compile(r"^\d+(\.\d+){3} [A-Z] ")  # a time and a level
# the server dies with this process, however that ends (Linux: PR_SET_PDEATHSIG, SIGKILL)
_LEASH = "import ctypes,os,sys\nctypes.CDLL(None).prctl(1,9)\nos.execv(sys.argv[1],sys.argv[1:])"


def free_port() -> int:
    """A port of the loopback address that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> int:
    """`port`, if this machine's loopback address has it free. ParameterError otherwise."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as a server would, past connections of a former
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "a port is from 1 to 65535"
        raise ParameterError(
            f"port {port} of {HOST} cannot be taken ({reason.lower()}); give another, or none"
        ) from None
    return port


class ServerProcess:
    """A server that this process started, on `port` of the loopback address, up once GET `health` says 200.

    `arguments`: its command line, the program's path first; its output goes to `log`. `waiting(seconds)` is called while
    it loads. RunError, with the last line it wrote, when it does not come up within `load_s`; ParameterError for a port in
    use, whose server would be taken for this one."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        health: str = "/health",
        load_s: float = LOAD_S,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.name, self.port, self.log, self.health = name, check_port(port), log, health
        self._closed = False
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _LEASH, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,  # a Ctrl-C is for the run, which stops it in its own time
            )
        try:
            self._come_up(load_s, waiting)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def origin(self) -> dict[str, int]:
        """Which process it is, for `run.measure(..., start=...)`."""
        return {"process": self.pid}

    def _come_up(self, load_s: float, waiting: Callable[[float], None]) -> None:
        began = time.monotonic()
        while not self.healthy():
            if self.popen.poll() is not None:
                raise RunError(f"{self.name} ended with code {self.popen.returncode} while loading: {self.complaint()}")
            seconds = time.monotonic() - began
            if seconds > load_s:
                raise RunError(f"{self.name} was not ready after {load_s:.0f} s: {self.last_words()}")
            waiting(seconds)
            time.sleep(0.1)

    def healthy(self, timeout_s: float = 5.0) -> bool:
        """Whether it answers 200 where its health is asked."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            connection.request("GET", self.health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def ended(self, within_s: float = 0.0) -> str | None:
        """How it ended, in one line, if it has or does within so many seconds; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(within_s)
        if self.popen.poll() is None:
            return None
        return f"{self.name} died with code {self.popen.returncode}: {self.last_words()}"

    def last_words(self) -> str:
        """The last line of its log."""
        return (self._last_lines() or ["it wrote nothing"])[-1]

    def complaint(self) -> str:
        """The first of its last lines that tells of an error: what follows one is seldom why. Else its last line."""
        told = [line for line in self._last_lines()[-LINES:] if _TROUBLE.search(line)]
        return told[0] if told else self.last_words()

    def _last_lines(self) -> list[str]:
        """The end of its log, a line each, without what llama.cpp puts before them."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        lines = (" ".join(_PREFIX.sub("", line).split()) for line in text.splitlines())
        return [line[:200] for line in lines if line]

    def close(self) -> None:
        """Stop it: asked first, then killed. Stopping twice is harmless. Secrets, home and host are taken out of its log."""
        if self._closed:
            return
        self._closed = True
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_S)
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        redact_log(self.log)


def redact_log(log: Path) -> None:
    """Take what must not be kept out of a finished log."""
    from labkit.lab.redact import Redactor

    with contextlib.suppress(FileNotFoundError):
        text = log.read_text(encoding="utf-8", errors="replace")
        cleaned = Redactor().text(text)
        if cleaned != text:
            aside = log.with_name(f".{log.name}.aside")
            aside.write_text(cleaned, encoding="utf-8")
            aside.replace(log)
