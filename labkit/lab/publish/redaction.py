"""Takes secrets, home paths and names out of all that is published, and counts what it took out of which file."""

from collections import Counter
from typing import Any, NamedTuple

from labkit.lab.redact import SECRET, Redactor


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
