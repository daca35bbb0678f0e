"""Takes secrets, home folders, host and user names out of text before it is stored, published or sent."""

import getpass
import os
import re
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SECRET = "<secret>"

# Shapes of well-known tokens; the named group `keep` survives.
TOKEN_SHAPES = re.compile(
    r"""
      \bhf_[A-Za-z0-9]{16,}                                   # Hugging Face
    | \bsk-[A-Za-z0-9_-]{16,}                                 # OpenAI and others
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}     # GitHub
    | \bglpat-[A-Za-z0-9_-]{16,}                              # GitLab
    | \bxox[abprs]-[A-Za-z0-9-]{10,}                          # Slack
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                           # AWS access key id
    | \beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}   # JSON web token
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*?-----END[ A-Z]*PRIVATE\ KEY-----
    """,
    re.VERBOSE | re.DOTALL,
)
BEARER = re.compile(
    r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+|\bbearer\s+)([A-Za-z0-9._~+/=-]{8,})"
)
ASSIGNED = re.compile(
    r"(?i)(\b[a-z0-9_]*(?:api_?key|secret(?:_access)?_?key|access_?token|auth_?token|password|passwd|client_?secret)"
    r"['\"]?\s*[:=]\s*)(?P<quote>['\"]?)([^\s'\",;&]{6,})(?P=quote)"
)
URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)([^\s/@]+)(@)")

SECRET_NAMES = re.compile(r"(?i)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)")
# Names too common to blot out of every text; they identify nobody.
COMMON_NAMES = frozenset(
    {"root", "user", "users", "admin", "ubuntu", "debian", "fedora", "arch", "runner", "jovyan", "vagrant"}
    | {"docker", "nobody", "home", "test", "lab", "localhost"}
)
# Output data that is not text: base64 images and the like stay as they are.
BINARY_TYPES = ("image/png", "image/jpeg", "image/gif", "application/pdf", "bdata")


class Redactor:
    """Redacts text by what this process knows: its environment's secrets, its home, host and user names.

    `environment` defaults to the process's; `host` and `user` to what the system says."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        home: str | None = None,
        host: str | None = None,
        user: str | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self.values = sorted(
            {value for name, value in environment.items() if SECRET_NAMES.search(name) and is_secret_value(value)},
            key=len,
            reverse=True,
        )
        home = str(Path.home()) if home is None else home
        self.home = re.compile(rf"(?<![\w./~-]){re.escape(home.rstrip('/'))}(?=$|[^\w.-])") if len(home) > 2 else None
        host = socket.gethostname() if host is None else host
        self.host = name_pattern(host)
        short = name_pattern(host.split(".")[0])
        self.short_host = short if host.split(".")[0] != host else None
        self.user = name_pattern(current_user() if user is None else user)

    def text(self, text: str) -> str:
        """`text` with every secret as `<secret>`, home as `~`, host as `<host>`, user as `<user>`."""
        for value in self.values:
            text = text.replace(value, SECRET)
        text = TOKEN_SHAPES.sub(SECRET, text)
        text = BEARER.sub(rf"\1{SECRET}", text)
        text = ASSIGNED.sub(rf"\1\g<quote>{SECRET}\g<quote>", text)
        text = URL_PASSWORD.sub(rf"\1{SECRET}\3", text)
        if self.home:
            text = self.home.sub("~", text)
        text = re.sub(r"(?<![\w.])(/home/|/Users/)(?!<user>)[\w.-]+", r"\1<user>", text)
        for pattern, mark in ((self.host, "<host>"), (self.short_host, "<host>"), (self.user, "<user>")):
            if pattern:
                text = pattern.sub(mark, text)
        return text

    def value(self, value: Any) -> Any:
        """`value` with every string in it redacted: dictionaries (keys too), lists and tuples are walked; base64
        image data is left alone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                (self.text(key) if isinstance(key, str) else key): (item if key in BINARY_TYPES else self.value(item))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


class Redaction(NamedTuple):
    """How often something of one `kind` ("secret", "home path", "host name", "user name") was masked in a file."""

    file: str
    kind: str
    times: int


MARKS = {"secret": SECRET, "host name": "<host>", "user name": "<user>"}


class Scrubber(Redactor):
    """A redactor that keeps count. Set `file` to the path of what is being read before giving it text."""

    def __init__(self) -> None:
        super().__init__()
        self.file = ""
        self.hits: Counter[tuple[str, str]] = Counter()

    def text(self, text: str) -> str:
        """`text` without what must not be published; each thing masked is counted under `file`."""
        clean = super().text(text)
        if clean != text:
            for kind, mark in MARKS.items():
                self.hits[self.file, kind] += max(0, clean.count(mark) - text.count(mark))
            if self.home:
                self.hits[self.file, "home path"] += len(self.home.findall(text))
        return clean

    def read(self, file: str, value: Any) -> Any:
        """`value` (text, or JSON) redacted, counted under `file`."""
        self.file = file
        return self.value(value)

    def found(self) -> list[Redaction]:
        """What was masked, by file and kind."""
        return [Redaction(file, kind, count) for (file, kind), count in sorted(self.hits.items()) if count]


def is_secret_value(value: str) -> bool:
    """Whether the value of an environment variable with a secret's name is one: long, not a path and not a number."""
    return len(value) >= 8 and not value.startswith("/") and not value.isdigit()


def is_secret_name(name: str) -> bool:
    """Whether a parameter called `name` must hold a secret: `hf_token`, `api_key`, `password`; not `max_tokens`."""
    parts = name.lower().split("_")
    if {"secret", "secrets", "password", "passwd", "pwd", "credential", "credentials", "apikey", "bearer"} & set(parts):
        return True
    if parts[-1] == "token":
        return len(parts) == 1 or bool({"hf", "api", "auth", "access", "github", "refresh", "bearer"} & set(parts[:-1]))
    return parts[-1] == "key" and bool({"api", "secret", "private", "ssh", "aws", "access", "hf"} & set(parts[:-1]))


def name_pattern(name: str) -> re.Pattern[str] | None:
    """A pattern for the whole word `name`, or None when it is too short or too common to mean anyone."""
    if len(name) < 3 or name.lower() in COMMON_NAMES:
        return None
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")


def current_user() -> str:
    """The login name of this process's user, or an empty string where the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
