"""A file of another tool as a run of this lab: one folder, whole or not at all, the same one for the same file."""

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.capture import sha256_file
from labkit.lab.folder import NEW, hash_artefacts, runs_folder
from labkit.lab.importers.document import Document, read_document
from labkit.lab.importers.registry import Contents, Importer, importer_of
from labkit.lab.importers.times import moment
from labkit.lab.measurements import Measurement, append_rows, append_text, checked_value
from labkit.lab.record import IMPORTED, Host, RunRecord, canonical_cell, read_record, write_atomic
from labkit.lab.redact import Redactor, is_secret_name

UNKNOWN = "unknown"
ORIGINAL = {"json": "original.json", "lines": "original.jsonl", "text": "original.txt"}
NOBODY_KNOWS = datetime(1970, 1, 1, tzinfo=UTC)  # when a file was measured that does not say
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
OWN = ("format",)
ELSEWHERE = {"device": "--device", "model": "--model"}
# What a person may tell of any file: what the audit and a comparison read, and a remark.
CONDITIONS = (
    "active_params", "cache", "depth", "draft", "generate", "note", "phase", "power_cap_w", "prompt", "quant", "runtime",
    "slots", "started", "streams",
)  # fmt: skip
COUNTS = ("streams", "prompt", "depth", "generate", "slots", "draft", "active_params", "power_cap_w")
MOST_SAMPLES = 1_000_000
MOST_REQUESTS = 500_000
SET_TEXT = 200
ROUNDED = 1.05  # a number of parameters told by hand is rounded, as 8.2e9


@dataclass(frozen=True)
class Told:
    """What a person says of a file that it does not say itself: the device, the model, further settings, and when it
    was measured. ParameterError for a name or a value that cannot be one."""

    device: str | None = None
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, text in (("--device", self.device), ("--model", self.model)):
            if text is not None and (not text.strip() or not text.isprintable() or len(text) > SET_TEXT):
                raise ParameterError(f"{option} is {text[:60]!r}; give a name of at most {SET_TEXT} characters")
        for name, value in self.settings.items():
            check_setting(name, value)
        _ = self.started  # checked where it is made

    @property
    def started(self) -> datetime | None:
        """When it was measured, as `started` among the settings says."""
        text = self.settings.get("started")
        if text is None:
            return None
        found = moment(str(text))
        if found is None:
            raise ParameterError(f"started is {str(text)[:60]!r}; give a time such as 2026-12-01T10:00:00Z")
        return found

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings but for when it was measured."""
        return {name: value for name, value in self.settings.items() if name != "started"}


@dataclass(frozen=True)
class Taken:
    """A file that came in as a run, or had before (`new` is false); `same_file` are other runs made of it."""

    record: RunRecord
    folder: Path
    new: bool
    same_file: tuple[str, ...]


def parse_setting(text: str) -> tuple[str, Any]:
    """`streams=8` as name and value: a number, true or false, else a text. ParameterError for what has no name."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"--set {text[:60]!r} has no value; write --set name=value, as streams=8")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = value
    return name.strip(), value if isinstance(found, dict | list) or found is None else found


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Each `name=value`, by name. ParameterError for a name that is given twice."""
    found: dict[str, Any] = {}
    for name, value in map(parse_setting, texts):
        if name in found:
            raise ParameterError(f"--set gives {name} twice")
        found[name] = value
    return found


def check_setting(name: str, value: Any) -> None:
    """ParameterError for a setting that cannot be kept."""
    if name in ELSEWHERE:
        raise ParameterError(f"--set cannot give the {name}; use {ELSEWHERE[name]}")
    if not NAME.fullmatch(name) or name in OWN:
        raise ParameterError(
            f"{name[:60]!r} cannot be set; use small letters, digits and _, other than {', '.join(OWN)}"
        )
    if is_secret_name(name):
        raise ParameterError(f"{name} is the name of a secret, and a run keeps none")
    if isinstance(value, str) and (not value.isprintable() or not value or len(value) > SET_TEXT):
        raise ParameterError(f"{name} is {value[:60]!r}; give a text of 1 to {SET_TEXT} characters")
    if isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) < 1e18:
        raise ParameterError(f"{name} is {str(value)[:40]}, which is no setting")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in COUNTS and (not number or value < (0 if name in ("depth", "draft") else 1e-9)):
        raise ParameterError(f"{name} is {value!r}; give a number above 0")


def take_file(root: Path, path: Path, told: Told | None = None) -> Taken:
    """Takes a file of another tool into the lab at `root` as a completed, exploratory run. The same file with the same
    settings gives the same run, and importing it again changes nothing.

    RunError, in one line with file and place, for a file that is of no known format or is not in order; ParameterError
    where what is told contradicts the file. Then nothing is changed."""
    told = told or Told()
    document = read_document(path)
    reader = importer_of(document)
    contents = reader.read(document)
    check_told(root, document, contents, told)
    record, rows, requests = record_of(document, reader, contents, told)
    try:
        return put(root, document, record, rows, requests)
    except OSError as error:
        raise RunError(f"{runs_folder(root)} cannot be written: {error.strerror}; nothing was imported") from None


def check_told(root: Path, document: Document, contents: Contents, told: Told) -> None:
    """ParameterError for what the file gives itself with another value, and for a setting that nothing reads."""
    for name, value in told.conditions.items():
        given = [contents.settings[name]] if name in contents.settings else []
        given += [one.knobs[name] for one in contents.measured if name in one.knobs]
        given += [row.value[name] for row in document.records() if row.has(name) and is_scalar(row.value[name])]
        for own in given:
            if own != value:
                raise ParameterError(f"the file says that {name} is {own!r}, so --set cannot make it {value!r}")
        if not given and name not in CONDITIONS:
            raise ParameterError(f"--set does not know {name}; it knows {', '.join(CONDITIONS)}")
    weights, active = (contents.model or {}).get("parameters"), told.conditions.get("active_params")
    if weights and active is not None and active > ROUNDED * weights:
        raise ParameterError(f"the file's model has {weights:,} parameters, so active_params cannot be {active:,.0f}")
    own = (contents.device or {}).get("name")
    if told.device is not None and own and not same_device(root, told.device, str(own)):
        raise ParameterError(f"the file says that the device is {own!r}, so --device cannot make it {told.device!r}")


def is_scalar(value: Any) -> bool:
    """Whether a value of a file can be a setting."""
    return isinstance(value, bool | int | float | str)


def same_device(root: Path, one: str, other: str) -> bool:
    """Whether two names are of one device: a known one alike, or the shorter stands in the longer."""
    from labkit.audit.devices import find_device, read_devices

    known = read_devices(root)
    found = [find_device(name, known) for name in (one, other)]
    if found[0] is not None and found[1] is not None:
        return (found[0].key, found[0].count) == (found[1].key, found[1].count)
    short, long = sorted((" ".join(one.casefold().split()), " ".join(other.casefold().split())), key=len)
    return short in long


def record_of(
    document: Document, reader: Importer, contents: Contents, told: Told
) -> tuple[RunRecord, list[Measurement], str]:
    """(the record but for its artefacts, the samples, the text of requests.jsonl)."""
    redactor = Redactor()
    started = told.started or contents.started or NOBODY_KNOWS
    rows, requests = samples_of(document, contents, started if started != NOBODY_KNOWS else None, redactor)
    notes = list(contents.notes)
    if started == NOBODY_KNOWS:
        notes.append(
            "times: the file does not say when it was measured; 1970-01-01 stands for that (--set started=...)"
        )
    notes += [f"{name}: {text}" for name, text in by_hand(contents, told)]
    ended = started + timedelta(seconds=min(contents.seconds or 0.0, 1e9))
    device = dict(contents.device or {}) | ({"name": told.device} if told.device else {})
    model = dict(contents.model or {}) | ({"name": told.model} if told.model else {})
    record = RunRecord(
        schema=1,
        id=run_id(started, reader, document, told),
        experiment=IMPORTED,
        name=redactor.text(document.path.name),
        state="completed",
        reason=f"imported from {reader.name}",
        started=stamp(started),
        ended=stamp(ended),
        parameters=redactor.value({"format": reader.name, **contents.settings, **told.conditions}),
        device=redactor.value(device) or None,
        host=Host(cpu=contents.processor or UNKNOWN, cores=0, ram_bytes=0, os=UNKNOWN),
        model=redactor.value(model) or None,
        packages={name: redactor.text(version) for name, version in contents.packages.items()},
        notes=tuple(redactor.text(note) for note in notes),
    )
    return record, rows, requests


def by_hand(contents: Contents, told: Told) -> Iterator[tuple[str, str]]:
    """What was told by hand, and what the file had instead."""
    for name, said, own in (("device", told.device, contents.device), ("model", told.model, contents.model)):
        if said is not None:
            before = (own or {}).get("name")
            yield name, "told by hand" + (f"; the file says {before}" if before and before != said else "")
    if told.settings:
        yield "settings", f"told by hand: {', '.join(sorted(told.settings))}"


def run_id(started: datetime, reader: Importer, document: Document, told: Told) -> str:
    """The id that this file with these settings has wherever it is imported."""
    known = [reader.name, document.sha256, told.device, told.model, dict(sorted(told.settings.items()))]
    digest = hashlib.sha256(json.dumps(known, ensure_ascii=False).encode()).hexdigest()
    return f"{started:%Y%m%dT%H%M%SZ}-{IMPORTED}-{digest[:8]}"


def samples_of(
    document: Document, contents: Contents, started: datetime | None, redactor: Redactor
) -> tuple[list[Measurement], str]:
    """The rows of measurements.csv and of requests.jsonl; a cell measured again has another block."""
    if not contents.measured:
        raise document.fault("holds no measurement")
    if sum(len(one.metrics) for one in contents.measured) > MOST_SAMPLES:
        raise document.fault(f"holds over {MOST_SAMPLES:,} samples")
    if (count := sum(len(one.requests) for one in contents.measured)) > MOST_REQUESTS:
        raise document.fault(f"holds {count:,} requests, of {MOST_REQUESTS:,} at the most")
    rows: list[Measurement] = []
    lines: list[str] = []
    blocks: dict[str, int] = {}
    for order, one in enumerate(contents.measured):
        cell = canonical_cell(redactor.value(one.knobs))
        block = blocks[cell] = blocks.get(cell, -1) + 1
        when = one.utc or started
        utc = stamp(when) if when else ""
        for name, value in one.metrics.items():
            rows.append(Measurement(block, order, cell, name, checked_value(name, value), utc))
        for request in one.requests:
            row = {"block": block, "cell": json.loads(cell), **request}
            if "error" in row:
                row["error"] = redactor.text(row["error"])
            lines.append(json.dumps(row, ensure_ascii=True, allow_nan=False))
    return rows, "".join(f"{line}\n" for line in lines)


def put(root: Path, document: Document, record: RunRecord, rows: Sequence[Measurement], requests: str) -> Taken:
    """Writes the run aside and renames it into place; see `take_file`."""
    runs = runs_folder(root)
    final, name = runs / record.id, ORIGINAL[document.kind]
    same = tuple(other for other in runs_of(root, document.sha256) if other != record.id)
    if final.exists():
        return here_already(final, name, document, same)
    aside = final.with_name(f"{NEW}{record.id}-{secrets.token_hex(4)}")
    made = [folder for folder in (root / "data", runs) if not folder.exists()]
    try:
        aside.mkdir(parents=True)
        write_atomic(aside / name, document.content)
        append_rows(aside / "measurements.csv", rows)
        if requests:
            append_text(aside / "requests.jsonl", requests)
        whole = record.model_copy(update={"artefacts": hash_artefacts(aside)})
        write_atomic(aside / "run.json", whole.to_json())
        try:
            aside.rename(final)
        except OSError:  # another process has imported it since
            return here_already(final, name, document, same)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        for folder in reversed(made):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    return Taken(read_record(final), final, True, same)


def here_already(folder: Path, name: str, document: Document, same: tuple[str, ...]) -> Taken:
    """The run that is here, when it is this file's. RunError when it is another's."""
    original = folder / name
    record = read_record(folder)
    if record.artefacts.get(name) != document.sha256 or not original.is_file():
        raise RunError(f"{folder} is there already and is not of {document.path}; nothing was imported")
    if sha256_file(original) != document.sha256:
        raise RunError(f"{original} was changed since it was imported: its SHA-256 is not that of {document.path}")
    return Taken(record, folder, False, same)


def runs_of(root: Path, digest: str) -> Iterator[str]:
    """The runs that were made of a file, by its SHA-256."""
    for folder in sorted(runs_folder(root).glob(f"[0-9]*-{IMPORTED}-*")):
        try:
            record = read_record(folder)
        except RunError:
            continue  # `lab runs` says what is wrong with it
        if digest in (record.artefacts.get(name) for name in ORIGINAL.values()):
            yield record.id


def stamp(moment: datetime) -> str:
    """A moment as records have it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
