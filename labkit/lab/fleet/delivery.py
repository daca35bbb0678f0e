"""Taking in what a worker sent: the archive is the one it packed, of the run that was asked for, or nothing appears."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.lab.importing import import_run
from labkit.lab.lab import StoredRun
from labkit.lab.record import RunRecord, plain_value
from labkit.lab.redact import Redactor


@dataclass(frozen=True)
class Expected:
    """What a point's run must be: its id, its experiment, the hash of its code (None: another is allowed), and the
    values that were set for it."""

    run: str
    experiment: str
    code_sha256: str | None
    values: Mapping[str, Any]

    def check(self, record: RunRecord) -> None:
        """RunError for a record of something else."""
        if record.id != self.run:
            raise RunError(f"the archive holds {record.id} instead of {self.run}; nothing was taken in")
        if record.experiment != self.experiment:
            raise RunError(f"{self.run} is of {record.experiment}, not of {self.experiment}; nothing was taken in")
        if self.code_sha256 is not None and record.notebook_sha256 != self.code_sha256:
            raise RunError(
                f"{self.run} was made by other code than this lab's notebook "
                f"({str(record.notebook_sha256)[:8]}, {self.code_sha256[:8]} here); nothing was taken in"
            )
        for name, value in self.values.items():
            wanted = Redactor().value(plain_value(value))
            if record.parameters.get(name) != wanted:
                raise RunError(
                    f"{self.run} was run with {name}={record.parameters.get(name)!r}, not {wanted!r}; nothing was taken in"
                )


def receive(root: Path, sent: Mapping[str, Any], expected: Expected, came: Mapping[str, Any]) -> StoredRun:
    """Puts the run that a worker sent into the lab at `root`, whole or not at all. `came` is kept in its `import.json`.

    RunError in one line, when the archive is not the one that was packed, is damaged or changed in any part, or is of
    another run, code or values than expected."""
    archive, digest, who = sent.get("archive"), sent.get("sha256"), str(sent.get("worker", "the worker"))
    if not isinstance(archive, bytes) or sent.get("run") != expected.run:
        raise RunError(f"{who} sent {str(sent.get('run'))[:80]!r} instead of {expected.run}; nothing was taken in")
    if hashlib.sha256(archive).hexdigest() != digest:
        raise RunError(
            f"what {who} sent of {expected.run} has not the SHA-256 it had when it was packed; nothing was taken in"
        )
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        path = Path(folder) / f"{expected.run}.zip"
        try:
            path.write_bytes(archive)
            done = import_run(root, path, expected.check, came)
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}; nothing was taken in") from None
        except RunError as error:
            raise RunError(f"{who}: {str(error).replace(f'{folder}/', '')}") from None
    expected.check(done.record)  # also where it was here already, as in a folder that several machines share
    return StoredRun(done.record, done.folder)
