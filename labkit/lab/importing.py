"""Importing a run from another machine: its archive is checked whole before it appears here; this lab judges it."""

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.errors import LabError, RunError
from labkit.lab.archive import Archive, open_archive
from labkit.lab.capture import sha256_file
from labkit.lab.export import OF_THE_LAB
from labkit.lab.folder import CAME_IN, NEW, PARTIAL, runs_folder
from labkit.lab.lab import EXPERIMENT_NAME
from labkit.lab.record import RunRecord, read_record, utc_now, write_atomic
from labkit.lab.verdict import Verdict, judge_folder


@dataclass(frozen=True)
class Imported:
    """A run that came in, or was here already (`new` is false). `verdict` is this lab's, None without a plan to judge
    by; what the record says of its own may differ."""

    record: RunRecord
    folder: Path
    new: bool
    verdict: Verdict | None

    @property
    def disagreement(self) -> str:
        """What the record claims that its samples do not give; nothing where both agree."""
        claimed, judged = (self.record.verdict or {}).get("outcome"), self.verdict.outcome if self.verdict else None
        return f"its record says {claimed}; by its samples it is {judged}" if claimed and claimed != judged else ""


def imported(folder: Path, new: bool) -> Imported:
    """A run that is here, judged."""
    verdict = judge_folder(folder) if (folder / "plan.json").exists() else None
    return Imported(read_record(folder), folder, new, verdict)


def import_run(
    root: Path,
    path: Path,
    check: Callable[[RunRecord], None] = lambda record: None,
    came: Mapping[str, Any] = MappingProxyType({}),
) -> Imported:
    """Unpacks a run's archive into the lab at `root`. The run appears whole or not at all.

    RunError, in one line, for an archive that is not in order in any way, a run that could not be judged here, or one
    that is here and is another; then nothing is changed. Importing again what is here changes nothing either. `check` is
    given the record before the run appears, and may refuse it too; `came` is kept of how it came."""
    with open_archive(path) as archive:
        try:
            return take_in(root, path, archive, check, came)
        except OSError as error:
            raise RunError(f"{runs_folder(root)} cannot be written: {error.strerror}; nothing was imported") from None


def take_in(
    root: Path, path: Path, archive: Archive, check: Callable[[RunRecord], None], told: Mapping[str, Any]
) -> Imported:
    """Unpacks aside, checks, and renames into place; see `import_run`."""
    run_id = archive.manifest.run
    final = runs_folder(root) / run_id
    if final.exists():
        return here_already(archive, final)
    if final.with_name(f"{PARTIAL}{run_id}").exists():
        raise RunError(f"{run_id} is being run in this lab; nothing was imported")
    aside = final.with_name(f"{NEW}{run_id}-{secrets.token_hex(4)}")
    made = [folder for folder in (root / "data", runs_folder(root)) if not folder.exists()]
    try:
        aside.mkdir(parents=True)
        for name in archive.manifest.files:
            archive.unpack(name, aside / name)
        check_run(archive, aside)
        check(read_record(aside))
        came = {**told, "archive_sha256": sha256_file(path), "made_by": archive.manifest.made_by, "utc": utc_now()}
        write_atomic(aside / CAME_IN, json.dumps(came, indent=1) + "\n")
        try:
            aside.rename(final)
        except OSError:  # another process has imported it since
            return here_already(archive, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        for folder in reversed(made):  # of a refused archive nothing stays
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    return imported(final, True)


def check_run(archive: Archive, folder: Path) -> None:
    """RunError unless an unpacked run is one, with all its files, which this lab can judge."""
    from labkit.lab.ledger import entry_event
    from labkit.lab.measurements import read_rows

    where, run_id = archive.path, archive.manifest.run
    try:
        record = read_record(folder)
        if record.id != run_id:
            raise RunError(f"run.json is of the run {record.id}, the manifest of {run_id}")
        if not EXPERIMENT_NAME.fullmatch(record.experiment) or record.experiment != run_id[17:-9]:
            raise RunError(f"{record.experiment[:80]!r} is not the experiment that the run's id names")
        if record.notebook and (record.notebook.startswith("/") or ".." in record.notebook.split("/")):
            raise RunError(f"its notebook is said to be {record.notebook[:80]!r}, which is no place in a lab")
        if record.state == "running":
            raise RunError("the run has not ended")
        check_artefacts(archive, record)
        read_rows(folder / "measurements.csv")
        if record.state == "completed" and (folder / "plan.json").exists():
            entry = entry_event(record, folder)
            if entry.plan_hash != record.plan_hash:
                raise RunError("plan.json was changed after it was declared: its hash is not the record's")
    except LabError as error:
        text = str(error).replace(f"{folder}/", "").replace(str(folder), run_id)
        raise RunError(f"{where}: {text}; nothing was imported") from None


def check_artefacts(archive: Archive, record: RunRecord) -> None:
    """RunError when a file the record names is missing, or is not the one it names."""
    files = archive.manifest.files
    if foreign := sorted({*OF_THE_LAB} & {*files}):
        raise RunError(f"it holds {foreign[0]}, which only the lab that has the run may write")
    for name, known in record.artefacts.items():
        if name in OF_THE_LAB:
            continue
        if name not in files:
            raise RunError(f"{name} is missing, which run.json names")
        if files[name].sha256 != known:
            raise RunError(f"{name} was changed: its SHA-256 is not the one in run.json")


def here_already(archive: Archive, folder: Path) -> Imported:
    """The run that is here, when it is the archive's. RunError names the file that differs, from the archive's own
    manifest or from the run that is here."""
    for name in archive.manifest.files:
        archive.check(name)
    for name, packed in archive.manifest.files.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) not in (packed.sha256, packed.unmasked_sha256):
            raise RunError(
                f"{archive.path} holds another {archive.manifest.run} than the one in this lab: {name} differs; "
                "nothing was imported"
            )
    return imported(folder, False)
