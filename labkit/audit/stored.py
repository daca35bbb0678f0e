"""The audit of a run: kept as `audit.json` in its folder, and judged again when a detector, a limit or the run changes."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from labkit.audit.devices import OWN, SHIPPED, shipped_file
from labkit.audit.registry import stamps
from labkit.audit.report import Audit, audit
from labkit.audit.run_evidence import read_run
from labkit.lab.levers import OWN_FILE
from labkit.lab.record import Frozen, read_record, write_atomic

AUDIT = "audit.json"
READ = ("plan.json", "measurements.csv", "requests.jsonl", "telemetry.csv", "ops.jsonl", "conclusion.json")
DECIDED = {"state", "reason", "ended", "verdict", "artefacts", "cells", "resumed"}  # of run.json, what comes after
MOST_BYTES = 64 << 20
MOST_MADE = 8
_made: dict[str, Audit] = {}  # the last audits that this process made, by all that they were made from


class StoredAudit(Frozen):
    """What `audit.json` holds: the audit, and a hash of all it was made from."""

    schema_version: int = 1
    inputs: str
    audit: Audit


def run_audit(folder: Path, *, store: bool = True) -> Audit:
    """The audit of the run in `folder`: the one kept there while nothing has changed since, else made now and, with
    `store`, kept. RunError when the folder holds no readable run."""
    root = lab_of(folder)
    inputs = inputs_of(folder, root)
    kept = read_kept(folder)
    if kept is not None and kept.inputs == inputs and kept.audit.stamps == stamps():
        return kept.audit
    made_from = inputs + repr(stamps())
    found = _made.get(made_from) or audit(read_run(folder, root))
    _made[made_from] = found
    while len(_made) > MOST_MADE:
        del _made[next(iter(_made))]
    if store:
        write_atomic(folder / AUDIT, StoredAudit(inputs=inputs, audit=found).model_dump_json(indent=1) + "\n")
    return found


def read_kept(folder: Path) -> StoredAudit | None:
    """What is kept in a folder; None where there is nothing, or nothing that can be read: it is made again."""
    path = folder / AUDIT
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return StoredAudit.model_validate_json(path.read_bytes())
    except (OSError, ValidationError, ValueError):
        return None


def inputs_of(folder: Path, root: Path | None) -> str:
    """A hash of what the audit of a run depends on: its files, its record but for what is decided at its end, and the
    lab's files of devices' limits and of levers."""
    total = hashlib.sha256(read_record(folder).model_dump_json(exclude=DECIDED).encode())
    paths = [folder / name for name in READ]
    paths += [shipped_file(), *([root / SHIPPED, root / OWN, root / OWN_FILE] if root else ())]
    for path in paths:
        total.update(b"|")
        if path.is_file():
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def lab_of(folder: Path) -> Path | None:
    """The lab a run's folder lies in, None for one that lies elsewhere."""
    runs = folder.resolve().parent
    return runs.parents[1] if runs.name == "runs" and runs.parent.name == "data" else None


def withheld_reason(found: Audit) -> str:
    """Why an audit withholds a finding, or nothing: the first fail, and how many detectors say so."""
    if not found.failed:
        return ""
    first = next(notice for notice in found.troubles() if notice.outcome == "fail")
    more = len(found.failed) - 1
    others = f", and {more} more detector{'s' if more > 1 else ''} fail{'' if more > 1 else 's'}" if more else ""
    return f"the audit withholds it ({first.detector}): {first.text}{others}"


def waived(root: Path, run: str, failed: Iterable[str]) -> dict[str, str]:
    """The failed detectors that a person waived for a run, with the reasons."""
    from labkit.lab.events import Waiver, read_events

    known = set(failed)
    return {one.fault: one.reason for one in read_events(root).of(Waiver) if one.run == run and one.fault in known}
