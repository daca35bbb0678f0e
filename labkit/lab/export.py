"""Exporting a run: one zip of its files, redacted, with a list of what it reveals to whoever gets it."""

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError, RunError
from labkit.lab.archive import MOST_BYTES, PART, Manifest, Packed, write_archive
from labkit.lab.folder import CAME_IN, JUDGED_AGAIN, LIVE_FILES
from labkit.lab.record import SCHEMA, Host, RunRecord, read_record, write_atomic
from labkit.lab.redact import Redaction, Scrubber

OF_THE_LAB = (
    *LIVE_FILES,
    CAME_IN,
    JUDGED_AGAIN,
)  # what a lab puts into a run's folder: never taken from another's word
# What a run may leave; further files are the run's where its record has their hash, else the lab put them there later.
RUN_FILES = frozenset(
    {"plan.json", "measurements.csv", "starts.csv", "requests.jsonl", "telemetry.csv", "warmup.csv"}
    | {"conclusion.json", "figure.json", "notebook.ipynb", "log.txt"}
)
ABSOLUTE = re.compile(r"(?<![\w.~/<>:-])/(?:[\w.+-]+/)+[\w.+-]+")
PATHS_SHOWN = 3


@dataclass(frozen=True)
class Exported:
    """An archive that was written: where, its SHA-256, what was masked in it, and what it reveals, by name."""

    path: Path
    sha256: str
    bytes: int
    files: tuple[str, ...]
    redactions: tuple[Redaction, ...]
    reveals: dict[str, str]


def export_run(folder: Path, out: Path | None = None) -> Exported:
    """Writes the run in `folder` as `out` (default `<run id>.zip` where one is). The same run gives the same bytes.

    RunError when the run is not final; LabError when `out` is there already and is something else."""
    from importlib.metadata import version

    record = read_record(folder)
    if record.state == "running":
        raise RunError(f"{record.id} is still running; export it when it has ended")
    scrubber = Scrubber()
    contents, unmasked = redacted_files(folder, record, scrubber)
    clean = RunRecord.model_validate_json(contents["run.json"])
    manifest = Manifest(
        schema=SCHEMA,
        made_by=f"labkit {version('labkit')}",
        run=record.id,
        files={
            name: Packed(bytes=len(content), sha256=sha256(content), unmasked_sha256=unmasked.get(name))
            for name, content in contents.items()
        },
        reveals=reveals(clean, contents),
    )
    buffer = io.BytesIO()
    write_archive(buffer, manifest, contents)
    archive = buffer.getvalue()
    path = (out or Path(f"{record.id}.zip")).absolute()
    try:
        put_archive(path, record.id, archive)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from None
    found = tuple(scrubber.found())
    return Exported(path, sha256(archive), len(archive), tuple(contents), found, manifest.reveals)


def put_archive(path: Path, run_id: str, archive: bytes) -> None:
    """Writes the archive whole. LabError when the place is a folder, in none, or taken by something else."""
    if path.is_dir():
        raise LabError(f"{path} is a folder; name a file, such as {path / run_id}.zip")
    if not path.parent.is_dir():
        raise LabError(f"there is no folder {path.parent}; make it, or name another file with --out")
    if path.exists() and path.read_bytes() != archive:
        raise LabError(f"{path} is there already and is something else; name another file with --out")
    write_atomic(path, archive)


def redacted_files(folder: Path, record: RunRecord, scrubber: Scrubber) -> tuple[dict[str, bytes], dict[str, str]]:
    """(the run's files by name, redacted; the hash that each masked one had before). `run.json` holds the hashes of the
    files as they are in the archive."""
    contents: dict[str, bytes] = {}
    unmasked: dict[str, str] = {}
    total = 0
    for name in sorted({*RUN_FILES, *record.artefacts} - {*OF_THE_LAB, "run.json"}):
        path = folder / name
        if path.is_symlink():
            raise RunError(f"{path} is a link; a run's archive holds plain files: put the file itself there")
        if not path.is_file():
            if name in record.artefacts:
                raise RunError(f"{path} is gone, which the run's record names; restore it from git")
            continue
        if not all(PART.fullmatch(part) for part in name.split("/")):
            raise RunError(f"{path} cannot go into an archive by that name; use letters, digits, spaces and . _ + -")
        total += path.stat().st_size
        if total > MOST_BYTES:
            raise RunError(f"{folder} has over {MOST_BYTES:,} bytes; take out what is no part of the record")
        original = path.read_bytes()
        contents[name] = masked(f"{record.id}/{name}", original, scrubber)
        if contents[name] != original:
            unmasked[name] = sha256(original)
    original = (folder / "run.json").read_bytes()
    document = scrubber.read(f"{record.id}/run.json", json.loads(original))
    document["artefacts"] = {
        name: sha256(contents[name]) if name in unmasked else known for name, known in record.artefacts.items()
    }
    changed = document != json.loads(original)
    clean = RunRecord.model_validate(document).to_json().encode() if changed else original
    if changed:
        unmasked["run.json"] = sha256(original)
    return {"run.json": clean, **contents}, unmasked


def masked(file: str, content: bytes, scrubber: Scrubber) -> bytes:
    """A file's bytes with secrets, home paths and names masked; what is no text stays as it is."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return content
    if file.endswith((".json", ".ipynb")):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return str(scrubber.read(file, text)).encode()
        clean = scrubber.read(file, document)
        return content if clean == document else (json.dumps(clean, indent=1, ensure_ascii=False) + "\n").encode()
    return str(scrubber.read(file, text)).encode()


def reveals(record: RunRecord, contents: Mapping[str, bytes]) -> dict[str, str]:
    """What whoever gets the archive learns, by name; what the run does not hold is left out."""
    device, model, host, git = record.device or {}, record.model or {}, record.host, record.git
    driver = [str(device[name]) for name in ("driver_name", "driver_info") if device.get(name)]
    texts = sum(len(text_values(value)) for name, value in record.parameters.items() if "prompt" in name)
    requests = contents.get("requests.jsonl", b"").count(b"\n")
    prompts = [f"{texts} texts among the parameters"] if texts else []
    prompts += [f"hashes, lengths and times of {requests} requests"] if requests else []
    paths = sorted({match for content in contents.values() for match in ABSOLUTE.findall(readable(content))})
    others = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    dirty = {True: ", with uncommitted changes (their hash alone)", False: "", None: ", changes unknown"}
    found = {
        "device": ", ".join(filter(None, [str(device.get("name") or ""), f"UUID {device.get('uuid', 'unknown')}"]))
        if device
        else "",
        "driver": " ".join(driver),
        "other programs": others_on_device(record),
        "machine": machine_words(host),
        "model": f"{model.get('name', 'unnamed')} (SHA-256 {str(model.get('sha256') or 'unknown')[:12]})"
        if model
        else "",
        "prompts": "; ".join(prompts),
        "parameters": ", ".join(record.parameters),
        "git": f"commit {git.commit[:12]}{dirty[git.dirty]}" if git else "",
        "packages": f"names and versions of {len(record.packages)}" if record.packages else "",
        "notebook": "its code and what it printed" if "notebook.ipynb" in contents else "",
        "logs": ", ".join(name for name in contents if name.endswith((".log", ".txt")) and contents[name]),
        "paths": ", ".join(paths[:PATHS_SHOWN]) + others,
        "times": f"{record.started} to {record.ended or 'unknown'}",
    }
    return {name: text for name, text in found.items() if text}


def machine_words(host: Host) -> str:
    """What is told of the machine; nothing where nothing is."""
    words = {
        "cpu": host.cpu, "cores": f"{host.cores} cores", "ram_bytes": f"{host.ram_bytes / 2**30:.0f} GiB", "os": host.os,
        "boot_id": f"boot {host.boot_id}",
    }  # fmt: skip
    return ", ".join(text for name, text in words.items() if name in host.known)


def others_on_device(record: RunRecord) -> str:
    """The names of other programs that were seen on the device."""
    seen = record.neighbours.processes if record.neighbours else ()
    return ", ".join(sorted({process.name for process in seen}))


def text_values(value: Any) -> list[str]:
    """The texts in a parameter's value."""
    if isinstance(value, str):
        return [value] if value else []
    return [text for item in value for text in text_values(item)] if isinstance(value, list) else []


def readable(content: bytes) -> str:
    """A file as text; one that is no text as none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def sha256(content: bytes) -> str:
    """The SHA-256 of bytes, as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()
