"""A verb of `lab` run from a notebook: a process of its own, its output passed on as it comes, ended by an interrupt."""

import codecs
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from labkit.lab.kernel import with_labkit

POLL_S = 0.2
LINGER_S = 1.0  # how long output is still awaited once the verb has ended: others may hold its pipe
PATIENCE_S = 20.0  # what an interrupted verb has to put its record in order, and again before it is killed
OWN = ("LABKIT_RUN", "LABKIT_NO_WAIT")  # what a notebook is told of its own run


def run_verb(words: Sequence[str], write: Callable[[str], None]) -> int:
    """Runs `lab WORDS` by this labkit on the lab of this process, in its working folder; the exit code.

    `write` is given its output, errors too, as it comes. Its input is empty, so it asks nothing. An interrupt is passed
    on to it and, once it has ended, raised here."""
    environment = {name: value for name, value in with_labkit(os.environ).items() if name not in OWN}
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment | {"PYTHONUNBUFFERED": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        pass_on(process, write)
        return process.wait()
    except BaseException:
        stop(process, write)
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()


def pass_on(process: "subprocess.Popen[bytes]", write: Callable[[str], None], seconds: float | None = None) -> None:
    """Hands over what a process writes until it has ended, or for `seconds`."""
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pipe, ended = process.stdout.fileno(), None
    limit = time.monotonic() + seconds if seconds is not None else None
    while True:
        now = time.monotonic()
        if ended is None and process.poll() is not None:
            ended = now
        if (ended is not None and now - ended > LINGER_S) or (limit is not None and now > limit):
            break
        if not select.select([pipe], [], [], POLL_S)[0]:
            continue
        piece = os.read(pipe, 65536)
        if not piece:
            break
        write(decoder.decode(piece))
    if rest := decoder.decode(b"", final=True):
        write(rest)


def stop(process: "subprocess.Popen[bytes]", write: Callable[[str], None]) -> None:
    """Interrupts a process and waits until it is gone; it is ended, then killed with all it started, if it will not go."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        if process.poll() is not None:
            return
        process.send_signal(sign)
        with contextlib.suppress(
            KeyboardInterrupt, subprocess.TimeoutExpired
        ):  # a second interrupt: the next signal at once
            pass_on(process, write, PATIENCE_S)
            process.wait(POLL_S)
            return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
