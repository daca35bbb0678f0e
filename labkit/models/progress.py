"""Progress of a transfer on stderr."""

import os
from pathlib import Path
from typing import Any, Protocol


class Readable(Protocol):
    """An open binary file, or what reads like one."""

    def read(self, size: int = ..., /) -> bytes: ...


def progress(label: str, total: int | None) -> Any:
    """A tqdm bar in bytes on stderr, to be used with `with`; a line every five seconds where that is no terminal."""
    from tqdm import tqdm

    bar = tqdm(total=total, desc=label, unit="B", unit_scale=True, unit_divisor=1000, leave=False)
    if not bar.fp.isatty():
        bar.mininterval = 5.0
    return bar


def copy_stream(source: Readable, out: Path, label: str, total: int) -> None:
    """Copy `source`, of `total` bytes, to `out` with progress, down to the disk."""
    with out.open("wb") as target, progress(label, total) as bar:
        while chunk := source.read(1 << 20):
            target.write(chunk)
            bar.update(len(chunk))
        target.flush()
        os.fsync(target.fileno())
