"""The archive a run travels in: one zip with a manifest and the run's files; read with nothing in it trusted."""

import hashlib
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import Field, ValidationError

from labkit.errors import RunError
from labkit.lab.record import SCHEMA, Frozen, refuse_newer

MANIFEST = "lab-export.json"
INSIDE = "run/"  # before the name of each file of the run
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[a-z0-9]+(-[a-z0-9]+)*-[0-9a-f]{8}")
PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+. -]*")
WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say: equal files make equal archives
MOST_FILES = 1000
MOST_BYTES = 1 << 30  # of all files, unpacked
MOST_PACKED = 512 << 20
MOST_MANIFEST = 1 << 20
MOST_RATIO = 200  # a file is packed at most so much smaller, unless it is small
SMALL = 1 << 20
PIECE = 1 << 20


class Packed(Frozen):
    """A file of the archive: its size and SHA-256, and the SHA-256 it had before something in it was masked."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    unmasked_sha256: str | None = None


class Manifest(Frozen):
    """What an archive says of itself: the run, its files by name, and what it reveals."""

    schema_version: int = Field(SCHEMA, alias="schema", ge=1, le=SCHEMA)
    made_by: str
    run: str
    files: dict[str, Packed]
    reveals: dict[str, str] = Field(default_factory=dict)

    def to_json(self) -> bytes:
        """The manifest's text in the archive."""
        return (
            json.dumps(self.model_dump(by_alias=True), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        ).encode()


def write_archive(file: IO[bytes], manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    """Writes an archive; the same manifest and contents give the same bytes."""
    named = {MANIFEST: manifest.to_json()} | {INSIDE + name: contents[name] for name in sorted(contents)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in named.items():
            info = zipfile.ZipInfo(name, WHEN)
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)


class Archive:
    """An archive, checked before anything of it is unpacked. Made by `open_archive`."""

    def __init__(self, path: Path, zipped: zipfile.ZipFile) -> None:
        self.path = path
        self._zip = zipped
        self._entries = {info.filename: info for info in checked_entries(path, zipped.infolist())}
        self.manifest = self._read_manifest()
        listed = {INSIDE + name for name in self.manifest.files} | {MANIFEST}
        if missing := sorted(listed - set(self._entries)):
            raise RunError(f"{path} lacks {missing[0]}, which its manifest lists; export the run again")
        if extra := sorted(set(self._entries) - listed):
            raise RunError(f"{path} holds {extra[0]!r}, which its manifest does not list; export the run again")
        for name, packed in self.manifest.files.items():
            if self._entries[INSIDE + name].file_size != packed.bytes:
                raise RunError(f"{path}: {name} has not the size its manifest says; export the run again")

    def unpack(self, name: str, target: Path) -> None:
        """Writes a file of the run to `target`. RunError when its bytes are not those the manifest has the hash of."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            for piece in self._pieces(name):
                file.write(piece)

    def check(self, name: str) -> None:
        """RunError when a file's bytes are not those the manifest has the hash of; nothing is written."""
        for _ in self._pieces(name):
            pass

    def _pieces(self, name: str) -> Iterator[bytes]:
        """A file of the run, piece by piece; RunError at its end at the latest, when it is not the manifest's."""
        packed, digest, left = self.manifest.files[name], hashlib.sha256(), self.manifest.files[name].bytes
        with self._open(INSIDE + name) as source:
            while piece := source.read(PIECE):
                left -= len(piece)
                if left < 0:
                    raise RunError(f"{self.path}: {name} unpacks to more than it says; it was not made by lab export")
                digest.update(piece)
                yield piece
        if left or digest.hexdigest() != packed.sha256:
            raise RunError(f"{self.path}: {name} was changed: its SHA-256 is not the manifest's; get the archive again")

    def _read_manifest(self) -> Manifest:
        info = self._entries.get(MANIFEST)
        if info is None:
            raise RunError(f"{self.path} has no {MANIFEST}: it was not made by lab export")
        if info.file_size > MOST_MANIFEST:
            raise RunError(f"{self.path}: its {MANIFEST} has {info.file_size:,} bytes; it was not made by lab export")
        with self._open(MANIFEST) as source:
            content = source.read(MOST_MANIFEST + 1)
        refuse_newer(content, self.path / MANIFEST)
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"])) or "the whole"
            raise RunError(f"{self.path}: its {MANIFEST} is not one: {place}: {fault['msg']}") from None
        if not RUN_ID.fullmatch(manifest.run):
            raise RunError(f"{self.path}: {manifest.run[:80]!r} is not the id of a run")
        return manifest

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the archive; damage of any kind met while it is read is a RunError."""
        try:
            with self._zip.open(self._entries[name]) as source:
                yield source
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error) as error:
            raise RunError(f"{self.path}: {name} is damaged ({error}); get the archive again") from None
        except OSError as error:
            raise RunError(f"{self.path}: {name} cannot be unpacked: {error.strerror}") from None


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """The archive at `path`. RunError, in one line, for what is none, climbs out of its folder, holds links, names a
    file twice, unpacks to too much, is of a newer version, or is damaged."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise RunError(f"{path} is not a file")
        if size > MOST_PACKED:
            raise RunError(f"{path} has {size:,} bytes; a run's archive has at most {MOST_PACKED:,}")
        check_directory(path, size)
        zipped = zipfile.ZipFile(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
        raise RunError(f"{path} is not a zip that can be read ({error}); get the archive again") from None
    with zipped:
        yield Archive(path, zipped)


def check_directory(path: Path, size: int) -> None:
    """RunError when the list of files at the end of a zip is absent or too long to be read at all."""
    with path.open("rb") as file:
        file.seek(max(0, size - 65_557))  # its end record with the longest comment
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise RunError(f"{path} is not a zip, or only a part of one; get the archive again")
    entries, length = struct.unpack_from("<HI", tail, at + 10)
    if entries > MOST_FILES or length > MOST_FILES * 1000:
        raise RunError(f"{path} lists {entries:,} files; a run's archive has at most {MOST_FILES:,}")


def checked_entries(path: Path, entries: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """The entries, when each is a plain file inside the archive's own folders. RunError names the first that is not."""
    if len(entries) > MOST_FILES:
        raise RunError(f"{path} lists {len(entries):,} files; a run's archive has at most {MOST_FILES:,}")
    seen: set[str] = set()
    total = 0
    for info in entries:
        name, mode = info.orig_filename, info.external_attr >> 16
        shown = repr(name[:80])
        parts = name.split("/")
        if name.startswith(("/", "\\")) or re.match("[A-Za-z]:", name):
            raise RunError(f"{path} holds the absolute path {shown}; it was not made by lab export")
        if ".." in re.split(r"[/\\]", name):
            raise RunError(f"{path} holds {shown}, which climbs out of its folder; it was not made by lab export")
        if mode and not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "no plain file"
            raise RunError(f"{path} holds {shown}, which is {what}; it was not made by lab export")
        if info.is_dir() or len(name) > 200 or len(parts) > 5 or not all(PART.fullmatch(part) for part in parts):
            raise RunError(f"{path} holds {shown}, which names no file of a run; it was not made by lab export")
        if name.lower() in seen:
            raise RunError(f"{path} holds {shown} twice; it was not made by lab export")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RunError(f"{path}: {shown} is encrypted or packed in another way than lab export does")
        if info.file_size > SMALL and info.file_size > MOST_RATIO * max(1, info.compress_size):
            raise RunError(f"{path}: {shown} unpacks to {info.file_size:,} bytes from {info.compress_size:,}: refused")
        seen.add(name.lower())
        total += info.file_size
    if total > MOST_BYTES:
        raise RunError(f"{path} unpacks to {total:,} bytes; a run has at most {MOST_BYTES:,}")
    return entries
