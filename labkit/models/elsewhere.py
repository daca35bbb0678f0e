"""Model files that other programs already keep on this machine: found by folder and name, read-only."""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.models.gguf import MAGIC, peek_architecture


@dataclass(frozen=True)
class FoundModel:
    """One GGUF file another program keeps. `architecture` is None where the head of the file does not tell."""

    program: str
    name: str
    path: Path
    nbytes: int
    architecture: str | None


Finder = Callable[[], Iterator[tuple[str, Path]]]
FINDERS: dict[str, Finder] = {}  # by the program's name; each yields (name, file)


def _finder(program: str) -> Callable[[Finder], Finder]:
    def register(finder: Finder) -> Finder:
        FINDERS[program] = finder
        return finder

    return register


def _variable(name: str, default: Path) -> Path:
    return Path(os.environ[name]).expanduser() if os.environ.get(name) else default


def _cache() -> Path:
    return _variable("XDG_CACHE_HOME", Path.home() / ".cache")


@_finder("Hugging Face")
def _hugging_face() -> Iterator[tuple[str, Path]]:
    """<hub>/models--OWNER--NAME/snapshots/COMMIT/FILE, links into blobs/."""
    home = _variable("HF_HOME", _cache() / "huggingface")
    for file in _variable("HF_HUB_CACHE", home / "hub").glob("models--*/snapshots/*/**/*.gguf"):
        repository = next(part for part in file.parts if part.startswith("models--"))
        yield f"{repository.removeprefix('models--').replace('--', '/')}/{file.name}", file


@_finder("llama.cpp")
def _llama_cpp() -> Iterator[tuple[str, Path]]:
    for folder in {_variable("LLAMA_CACHE", _cache() / "llama.cpp"), Path.home() / "Library/Caches/llama.cpp"}:
        for file in folder.glob("*.gguf"):
            yield file.stem, file


@_finder("LM Studio")
def _lm_studio() -> Iterator[tuple[str, Path]]:
    for folder in (Path.home() / ".lmstudio" / "models", _cache() / "lm-studio" / "models"):
        for file in folder.glob("**/*.gguf"):
            yield str(file.relative_to(folder).with_suffix("")), file


@_finder("Ollama")
def _ollama() -> Iterator[tuple[str, Path]]:
    """manifests/HOST/NAMESPACE/NAME/TAG names the layers; blobs/sha256-… holds them, without a suffix."""
    for folder in (
        _variable("OLLAMA_MODELS", Path.home() / ".ollama" / "models"),
        Path("/usr/share/ollama/.ollama/models"),
    ):
        for manifest in (folder / "manifests").glob("*/*/*/*"):
            try:
                layers = json.loads(manifest.read_text())["layers"]
                digests = [each["digest"] for each in layers if each["mediaType"].endswith(".image.model")]
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # another program's damaged manifest is not ours to report
            host, namespace, name, tag = manifest.parts[-4:]
            prefix = "" if (host, namespace) == ("registry.ollama.ai", "library") else f"{host}/{namespace}/"
            for digest in digests:
                if re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest)):
                    yield f"{prefix}{name}:{tag}", folder / "blobs" / digest.replace(":", "-")


def find_elsewhere() -> list[FoundModel]:
    """What every finder finds, sorted by program and name; reads 4 KiB of a file, and skips what it may not read."""
    found = {}
    for program, finder in FINDERS.items():
        places = finder()
        while True:
            try:
                name, path = next(places)
                with path.open("rb") as file:
                    head = file.read(4096)
                if head[:4] == MAGIC:
                    found[path] = FoundModel(program, name, path, path.stat().st_size, peek_architecture(head))
            except StopIteration:
                break
            except OSError:
                continue
    return sorted(found.values(), key=lambda each: (each.program, each.name, str(each.path)))
