"""What a site was made from, kept beside it (never in it), so that only what changed since is made again."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import labkit
from labkit.audit.devices import OWN, SHIPPED
from labkit.lab.levers import OWN_FILE
from labkit.lab.publish.made import Made
from labkit.lab.record import write_atomic
from labkit.lab.redact import Redactor

SCHEMA = 1
SOURCES = (".py", ".j2", ".toml", ".json")
LIBRARIES = ("mistune", "bleach", "beautifulsoup4", "pygments", "nbconvert", "jinja2", "numpy", "scipy")
LIMITS = (SHIPPED, OWN, OWN_FILE)  # files of the lab that an audit reads


@dataclass
class State:
    """What was made of each run by its id, of each sweep's event by its name (key, faults), and of the documentation."""

    runs: dict[str, Made] = field(default_factory=dict)
    sweeps: dict[str, tuple[str, list[list[str]]]] = field(default_factory=dict)
    docs: str = ""  # the key of its pages


def state_file(out: Path) -> Path:
    """Where the state of the site at `out` is kept."""
    return out.with_name(f".{out.name}.state.json")


def read_state(out: Path) -> State:
    """The state of the site at `out`; an empty one, from which all is made anew, where none can be read."""
    try:
        document = json.loads(state_file(out).read_bytes())
        if document["schema"] != SCHEMA:
            return State()
        sweeps = {name: (key, faults) for name, (key, faults) in document["sweeps"].items()}
        made = {name: Made(**made) for name, made in document["runs"].items()}
        return State(made, sweeps, str(document.get("docs", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return State()


def write_state(out: Path, state: State) -> None:
    """Keeps the state of the site at `out`."""
    document = {
        "schema": SCHEMA,
        "runs": {name: asdict(made) for name, made in sorted(state.runs.items())},
        "sweeps": dict(sorted(state.sweeps.items())),
        "docs": state.docs,
    }
    write_atomic(state_file(out), json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


@cache
def code_key() -> str:
    """A hash of the code that pages and verdicts are made by: the package's sources, Python, and the libraries."""
    total = hashlib.sha256(sys.version.encode())
    for name in LIBRARIES:
        try:
            total.update(f"|{name} {version(name)}".encode())
        except PackageNotFoundError:
            total.update(f"|{name}".encode())
    home = Path(labkit.__file__).parent
    for path in sorted(path for path in home.rglob("*") if path.suffix in SOURCES):
        total.update(f"|{path.relative_to(home)}|".encode() + path.read_bytes())
    return total.hexdigest()


def folder_key(folder: Path) -> str:
    """A hash of every file in a run's folder, by name and content."""
    total = hashlib.sha256()
    with os.scandir(folder) as found:
        names = sorted(item.name for item in found if item.is_file() and not item.name.startswith("."))
    for name in names:
        total.update(f"|{name}|{file_hash(folder / name)}".encode())
    return total.hexdigest()


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, nothing for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def shared_key(root: Path) -> str:
    """A hash of what every page depends on beside its run: what is masked here, and the lab's limits and levers."""
    private = Redactor()
    masked = [private.values, private.home, private.host, private.short_host, private.user]
    return key_of({"masked": repr(masked), "limits": {str(name): file_hash(root / name) for name in LIMITS}})


def key_of(facts: Mapping[str, Any]) -> str:
    """A hash of plain facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def is_whole(folder: Path, made: Made) -> bool:
    """Whether a folder of the site holds the very files that were made."""
    return all(file_hash(folder / name) == known for name, known in made.files.items())
