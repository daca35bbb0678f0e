"""Locks that a process holds and that fall free when it dies: one for each live run, one for each device."""

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.lab.record import utc_now

SESSIONS = Path("/run/user")  # where systemd keeps each user's runtime folder


class ProcessLock:
    """An exclusive lock on a file. The kernel frees it when the holder ends, however it ends, so no pid is guessed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: int | None = None

    def acquire(self) -> bool:
        """Takes the lock without waiting; False when another holder has it."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        try:
            same = os.fstat(handle).st_ino == os.stat(self.path).st_ino
        except OSError:
            os.close(handle)
            raise
        if not same:  # the holder removed the file as it ended, and another has begun
            os.close(handle)
            return False
        self.handle = handle
        return True

    def write(self, text: str) -> None:
        """Puts `text` in the lock's file, for whoever waits to read."""
        if self.handle is None:
            raise RunError(f"{self.path} is not held by this process")
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, text.encode(), 0)

    def release(self) -> None:
        """Frees the lock; nothing happens when it is not held."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def device_lock_path(device_uuid: str) -> Path:
    """The lock file of a device, in the user's runtime folder: two checkouts of a lab share one card.

    A job started by cron or over ssh may lack XDG_RUNTIME_DIR; it must still find the lock of a desktop session."""
    base = os.environ.get("XDG_RUNTIME_DIR") or (str(path) if (path := SESSIONS / str(os.getuid())).is_dir() else "")
    folder = Path(base) / "labkit" if base else Path(tempfile.gettempdir()) / f"labkit-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"device-{re.sub(r'[^0-9A-Za-z-]', '-', device_uuid)}.lock"


def read_holder(path: Path) -> dict[str, Any]:
    """Who holds a device's lock: `pid`, `label`, `since` (UTC); empty when the holder has not yet signed."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def describe_holder(holder: dict[str, Any]) -> str:
    """One phrase that names the holder: `batch-decode (process 4242, since 2026-12-01T00:16:26Z)`."""
    if not holder:
        return "another run"
    return f"{holder.get('label')} (process {holder.get('pid')}, since {holder.get('since')})"


_held: dict[str, tuple[ProcessLock, int]] = {}  # device uuid → this process's lock and how many times it was taken


def take_device(
    device_uuid: str, label: str, wait: bool = True, waiting: Callable[[str], None] | None = None, every_s: float = 0.2
) -> None:
    """Takes the device for this process; a second time in one process only counts.

    While another process holds it, `waiting` is told once by whom; with `wait=False` RunError names the holder."""
    if device_uuid in _held:
        lock, count = _held[device_uuid]
        _held[device_uuid] = (lock, count + 1)
        return
    lock = ProcessLock(device_lock_path(device_uuid))
    told = ""
    while not lock.acquire():
        who = describe_holder(read_holder(lock.path))
        if not wait:
            raise RunError(f"the device is in use by {who}; wait for it to end, or run without --no-wait")
        if waiting and who != told:
            waiting(f"waiting for the device: in use by {who}")
            told = who
        time.sleep(every_s)
    lock.write(json.dumps({"pid": os.getpid(), "label": label, "since": utc_now()}))
    _held[device_uuid] = (lock, 1)


def held_here() -> str:
    """What this process holds a device for, "" when it holds none."""
    return ", ".join(str(read_holder(lock.path).get("label")) for lock, _ in _held.values())


def free_device(device_uuid: str) -> None:
    """Gives the device back once as many times as it was taken."""
    if device_uuid not in _held:
        return
    lock, count = _held[device_uuid]
    if count > 1:
        _held[device_uuid] = (lock, count - 1)
        return
    del _held[device_uuid]
    lock.write("")
    lock.release()


@contextmanager
def device_lock(
    device_uuid: str, label: str, wait: bool = True, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Holds a device for a timed run: one at a time on a machine. See `take_device` for `wait` and `waiting`."""
    take_device(device_uuid, label, wait=wait, waiting=waiting)
    try:
        yield
    finally:
        free_device(device_uuid)
