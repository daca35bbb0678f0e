"""Files over HTTP with the standard library: resumed where they broke off, with progress, credentials kept private."""

import base64
import hashlib
import html.parser
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from labkit.errors import ModelError
from labkit.models.progress import progress

_TIMEOUT_S = 30
_ATTEMPTS = 4
_SIMPLE = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class _Stay(urllib.request.HTTPRedirectHandler):
    """Answers with the redirect itself, whose headers the next server does not repeat."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    authority = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    context = ssl.create_default_context(cafile=authority if authority and os.path.isfile(authority) else None)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), *handlers)


def _request(url: str, token: str | None = None, method: str = "GET", **headers: str) -> urllib.request.Request:
    """A request whose credentials go to this host alone, never to where it redirects."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ModelError(f"{shown(url)} is not an http or https address")
    if parts.username is not None:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        authorization = "Basic " + base64.b64encode(secret.encode()).decode()
    else:
        authorization = f"Bearer {token}" if token else ""
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "labkit", **headers})
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    return request


def shown(url: str) -> str:
    """`url` without user name, password and query, fit for a message."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _failure(url: str, error: Exception) -> ModelError:
    if isinstance(error, urllib.error.HTTPError):
        why = {401: "it wants a token (HF_TOKEN)", 403: "access is refused", 404: "there is no such file"}
        return ModelError(f"{shown(url)}: {why.get(error.code, f'HTTP {error.code} {error.reason}')}")
    reason = getattr(error, "reason", None) or error
    return ModelError(f"{shown(url)} cannot be reached: {reason}; is there a network?")


def head(url: str, token: str | None = None) -> Mapping[str, str]:
    """The headers of `url` itself, lower-case, any redirect not followed. Raises ModelError."""
    try:
        with _opener(_Stay()).open(_request(url, token, "HEAD"), timeout=_TIMEOUT_S) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        if error.code in (301, 302, 303, 307, 308):
            return {name.lower(): value for name, value in error.headers.items()}
        raise _failure(url, error) from None
    except (OSError, http.client.HTTPException) as error:
        raise _failure(url, error) from None


def download(url: str, out: Path, label: str, token: str | None = None, version: str | None = None) -> str:
    """Fetch `url` into `out` and return its SHA-256.

    What an earlier attempt left in `out` is continued where `version` (such as an ETag) is what it was then, else begun
    again. A broken connection is retried. Raises ModelError.
    """
    note = out.with_name(out.name + ".version")
    if version is None or not note.is_file() or note.read_text() != version:
        out.unlink(missing_ok=True)
    if version is not None:
        note.write_text(version)
    for attempt in range(_ATTEMPTS):
        before = out.stat().st_size if out.exists() else 0
        try:
            _continue(url, out, label, token)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing is left to fetch
                break
            raise _failure(url, error) from None
        except (OSError, http.client.HTTPException) as error:
            gained = out.exists() and out.stat().st_size > before
            if attempt == _ATTEMPTS - 1 or not gained:
                raise _failure(url, error) from None
            time.sleep(0.5 * 2**attempt)
    note.unlink(missing_ok=True)
    with out.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _continue(url: str, out: Path, label: str, token: str | None) -> None:
    start = out.stat().st_size if out.exists() else 0
    ranged = {"Range": f"bytes={start}-"} if start else {}
    with _opener().open(_request(url, token, **ranged), timeout=_TIMEOUT_S) as answer:
        if start and answer.status != 206:  # the server sends the whole file again
            start = 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        with out.open("ab" if start else "wb") as file, progress(label, total) as bar:
            bar.update(start)
            while chunk := answer.read1(1 << 18):
                file.write(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and out.stat().st_size < total:
        raise http.client.IncompleteRead(b"", total - out.stat().st_size)


class _Links(html.parser.HTMLParser):
    """File name → address of every link of a simple index page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
            self.found[name] = address


def package_file_url(package: str, file: str) -> str:
    """The address of `file` on the index pip or uv is configured with by environment, else PyPI (PEP 503 and 691)."""
    named = (os.environ.get(name) for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"))
    index = next((each for each in named if each), "https://pypi.org/simple")
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    try:
        with _opener().open(_request(page, Accept=_SIMPLE), timeout=_TIMEOUT_S) as answer:
            body, base = answer.read(), answer.url
            is_json = "json" in answer.headers.get("Content-Type", "")
    except (OSError, http.client.HTTPException) as error:
        raise _failure(page, error) from None
    if is_json:
        found = {each["filename"]: each["url"] for each in json.loads(body)["files"]}
    else:
        links = _Links()
        links.feed(body.decode("utf-8", "replace"))
        found = links.found
    if file not in found:
        raise ModelError(f"{shown(page)} does not list {file}")
    address: str = urllib.parse.urljoin(base, found[file])
    credentials, _, _ = urllib.parse.urlsplit(index).netloc.rpartition("@")
    parts, home = urllib.parse.urlsplit(address), urllib.parse.urlsplit(index)
    if credentials and "@" not in parts.netloc and parts.netloc == home.netloc.rpartition("@")[2]:
        address = parts._replace(netloc=f"{credentials}@{parts.netloc}").geturl()
    return address
