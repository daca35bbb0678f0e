"""The site as a folder: made aside, swapped in whole, never over a folder that is something else."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import LabError

MARKER = ".labkit-site"
MARKER_TEXT = "This folder was made by `lab publish`, which replaces all of it each time.\n"


def check_target(out: Path, root: Path) -> None:
    """LabError unless `out` is free, empty, or a site made here: publishing replaces the whole folder."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise LabError(f"{out} is not a folder; name another with --out")
    if root == out or out in root.parents:
        raise LabError(f"{out} holds the lab itself; name another folder with --out")
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise LabError(f"{out} has files that lab publish did not make; name another folder with --out")


@contextmanager
def site_lock(out: Path) -> Iterator[None]:
    """One writer at a time for the site at `out`; the lock falls free when its holder dies."""
    from filelock import FileLock

    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.with_name(f".{out.name}.lock")):
        for stale in out.parent.glob(f".{out.name}-new-*"):
            shutil.rmtree(stale, ignore_errors=True)
        leftover = out.with_name(f".{out.name}-old")
        if leftover.exists() and not out.exists():  # a publish died between its two renames
            leftover.rename(out)
        shutil.rmtree(leftover, ignore_errors=True)
        yield


@contextmanager
def staged(out: Path, keep: bool = True) -> Iterator[Path]:
    """A folder to make the new site in, swapped in for `out` at the end; on an error, or without `keep`, `out` stays as it
    was."""
    aside = out.with_name(f".{out.name}-new-{os.getpid()}")
    try:
        aside.mkdir()
        put(aside / MARKER, MARKER_TEXT.encode())
        yield aside
        if keep:
            swap(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def swap(aside: Path, out: Path) -> None:
    """Puts `aside` in the place of `out`."""
    old = out.with_name(f".{out.name}-old")
    if out.exists():
        out.rename(old)
    try:
        aside.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def put(path: Path, content: bytes) -> None:
    """Writes a file anew: an old one of the name is unlinked, since the live site may share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def link_files(old: Path, new: Path, names: Iterable[str]) -> None:
    """Files of the old site in their place in the new one: hard links, or copies where the file system has none. Replace
    them, never write into them."""
    new.mkdir(parents=True)
    for name in names:
        link_or_copy(old / name, new / name)


def link_or_copy(old: Path, new: Path) -> None:
    """A file of the old site in its place in the new one: a hard link, or a copy where the file system has none."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copy2(old, new)
