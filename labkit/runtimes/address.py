"""Where a server is: an address checked once, the bytes of a request to it, and errors of it in one line."""

import json
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from labkit.errors import ParameterError

MOST_SAID = 300  # characters of what a server said that go into an error
MOST_READ = 1 << 14  # of them that are looked at
_HEADER = re.compile(r"[\x21-\x7e]+")  # what may stand in a header without ending it


@dataclass(frozen=True)
class Address:
    """A server: `host`, `port`, the path it starts at (`prefix`, no slash at its end), and how it is spoken to.

    `key` is shown to the server with every request and to nobody else. `tls` is None for plain http."""

    host: str
    port: int
    prefix: str = ""
    key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """As a person writes it, without secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.tls else 80)
        return f"{'https' if self.tls else 'http'}://{host}{'' if usual else f':{self.port}'}{self.prefix}"

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a request whose body has `length` bytes of JSON; the connection is closed behind the answer."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Accept-Encoding: identity",
            "Connection: close",
        ]  # fmt: skip
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """A whole POST of JSON as bytes."""
        content = json.dumps(body).encode()
        return self.head("POST", path, len(content)) + content

    def told(self, text: str) -> str:
        """`text`, which a server may have had a part in, in one line and without the key."""
        words = clean(text)
        if self.key:  # before anything is cut, or a part of it would be left
            for form in {self.key, json.dumps(self.key)[1:-1]}:
                words = words.replace(form, "(key)")
        return cut(words)


def read_url(url: str, *, key: str | None = None, ca_file: str | None = None) -> Address:
    """The address that `url` names. ParameterError for one that cannot be, or that carries a secret itself."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ParameterError("the address cannot be read: give http://HOST:PORT or https://HOST") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ParameterError("an address holds no name, password or ?query: give a key apart, as the key")
    if parts.scheme not in ("http", "https") or not host:
        raise ParameterError(f"{url.strip()[:100]!r} is no address: give http://HOST:PORT or https://HOST")
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", host) or not re.fullmatch(r"[!-~]*", parts.path) or port == 0:
        raise ParameterError(f"{url.strip()[:100]!r} has a host, a port or a path that cannot be")
    if key is not None and not _HEADER.fullmatch(key):
        raise ParameterError("the key has characters other than plain ones: copy it again, without spaces or line ends")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        if ca_file is not None:
            try:
                tls.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ParameterError(f"{ca_file} holds no certificates to trust: {error.strerror or error}") from None
    elif ca_file is not None:
        raise ParameterError("certificates are given for an address that is not https")
    return Address(host, port or (443 if tls else 80), parts.path.rstrip("/"), key, tls)


def why(error: OSError) -> str:
    """An error of a connection in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); give the file of its authority as ca_file"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as expected ({(error.reason or str(error)).lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    return (error.strerror or str(error) or type(error).__name__).lower()


def clean(text: str) -> str:
    """A text in one line that a terminal can show."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:MOST_READ]).split())


def cut(words: str) -> str:
    """At most some 300 characters of a text."""
    return words if len(words) <= MOST_SAID else words[:MOST_SAID] + " ..."


def one_line(text: str) -> str:
    """At most some 300 characters of a text, in one line that a terminal can show."""
    return cut(clean(text))


def said(body: bytes) -> str:
    """What the body of an error says, in one line of any length: its message where it is one of the usual objects."""
    text = body[:MOST_READ].decode(errors="replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return clean(text)
    for name in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(name):
            data = data[name]
    return clean(data if isinstance(data, str) else json.dumps(data))
