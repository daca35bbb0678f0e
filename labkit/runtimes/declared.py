"""The declared configuration of a runtime beside what the running process reports of its settings."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from labkit.errors import RunError
from labkit.lab.levers import find_lever
from labkit.lab.redact import Redactor
from labkit.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from labkit.lab.run import Run

SETTINGS = ("slots", "context", "ub", "kv", "arithmetic", "model", "quant", "draft")
COLUMN = "settings"  # of requests.jsonl: what the process that answered reports; it may witness a lever
_TYPE = re.compile(r"iq\d_[a-z]+|q\d_[01k]|mxfp4|nvfp4|tq\d_\d|bf16|f16|f32")
_OFF = (None, False, 0, "", "0", "none", "off", "false")


@dataclass(frozen=True)
class Difference:
    """One setting that is not reported as it was declared; `reported` is None where the process does not tell it.

    `stops`: it is a knob of the plan, so what was measured would not be what the plan says. `why` adds what is known."""

    name: str
    declared: Any
    reported: Any
    stops: bool
    why: str = ""

    @property
    def words(self) -> str:
        """`ub: declared 64, reported 32`."""
        told = "not told by the process" if self.reported is None else f"reported {self.reported}"
        return f"{self.name}: declared {self.declared}, {told}{f' ({self.why})' if self.why else ''}"


def compare_settings(
    declared: Mapping[str, Any], reported: Mapping[str, Any], knobs: Collection[str] = ()
) -> list[Difference]:
    """What of `declared` (parameters and a cell, by any name a lever has) the process reports otherwise, or not at all.

    `knobs`: the names a plan varies; a difference in one of them stops the run. A value that is written otherwise is the
    same ("F16" and "f16", a path and the name of its file), what is declared as None is the runtime's own to choose, and
    what says nothing of a process (prompts, lengths, loads) is passed over. `context` is positions of one slot: where a
    process has more of them, because it rounds up or reports all slots together, that is said and stops nothing."""
    ours = {own_name(name): value for name, value in declared.items()}
    varied = {own_name(name) for name in knobs}
    found = []
    for name, value in ours.items():
        if isinstance(value, list | tuple):
            if len(value) != 1:  # of several it is the cell that says which
                continue
            value = value[0]
        own_choice = value is None and not (name == "draft" and name in varied)
        if own_choice or (name not in SETTINGS and name not in reported):
            continue
        told = reported.get(name)
        if told is None:
            if not (name == "draft" and plain("draft", value) == 0):  # nothing is drafted where nothing drafts
                found.append(Difference(name, value, None, stops=False))
        elif not alike(name, value, told):
            why = more_context(value, told, reported.get("slots") or ours.get("slots")) if name == "context" else ""
            found.append(Difference(name, value, told, stops=name in varied and not why, why=why))
    return found


def require_settings(
    name: str, declared: Mapping[str, Any], reported: Mapping[str, Any], knobs: Collection[str] = ()
) -> list[Difference]:
    """The differences that stop nothing, for the record (see `note_settings`). `name` is the runtime's label.

    RunError, naming knob, declared and reported, for the first that does."""
    found = compare_settings(declared, reported, knobs)
    for each in found:
        if each.stops:
            raise RunError(
                f"{name}: the plan varies {each.name}, declared {each.declared} here, and the running process reports "
                f"{each.reported}: what it would measure is not what was declared"
            )
    return found


def note_settings(run: "Run", name: str, reported: Mapping[str, Any], differences: Collection[Difference]) -> None:
    """Keeps in the record's notes what a runtime reports of its settings, and each difference from what was declared.
    Said again, by another start of the same, it is kept once."""
    told = ", ".join(f"{key} {value}" for key, value in reported.items())
    keep_notes(
        run,
        {
            f"{name} reports": told or "nothing of its settings",
            f"{name} differs": "; ".join(each.words for each in differences),
        },
    )


def note_runtime(run: "Run", runtime: Runtime) -> None:
    """Keeps in the record's notes what a runtime is: kind, version, and its command line but for the port. Said again, by
    another start of the same, it is kept once."""
    told = runtime.describe()
    versions = [str(told[name]) for name in ("kind", "server", "version", "build") if told.get(name)]
    words = [str(word) for word in told.get("arguments") or ()]
    words = ["PORT" if before == "--port" else word for before, word in zip(["", *words], words, strict=False)]
    keep_notes(run, {f"{runtime.label} is": ", ".join(versions) + (f": {shlex.join(words)}" if words else "")})


def keep_notes(run: "Run", notes: Mapping[str, str]) -> None:
    """Adds notes to a record, those that say something and are not there yet."""
    known, redacted = set(run.record.notes), Redactor()
    fresh = {name: text for name, text in notes.items() if text and f"{name}: {redacted.text(text)}" not in known}
    if fresh:
        run.describe(None, None, None, None, **fresh)


def own_name(name: str) -> str:
    """The lever's own name of a setting, where a lever has it."""
    found = find_lever(name)
    return found.name if found is not None and not name.isupper() else name


def alike(name: str, one: Any, other: Any) -> bool:
    """Whether two values of a setting mean the same."""
    first, second = plain(name, one), plain(name, other)
    if name == "draft" and (
        isinstance(first, str) or isinstance(second, str)
    ):  # how it drafts, where no number is told
        return bool((first == 0) == (second == 0))
    if name == "quant" and first != second:  # q4_k where it is not said whether _m or _s
        types = [_TYPE.search(str(value)) for value in (first, second)]
        short = [value for value, kind in zip((first, second), types, strict=True) if kind and kind[0] == value]
        return bool(short) and None not in types and types[0][0] == types[1][0]  # type: ignore[index]
    return bool(first == second)


def plain(name: str, value: Any) -> Any:
    """A value of a setting in the one way it is compared."""
    if name == "draft" and value in _OFF:
        return 0
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip().casefold()
    if name == "model":
        return model_name(str(value).strip())
    try:
        return float(text)
    except ValueError:
        pass
    if name == "quant":  # "Q4_K - Medium", "all F32 (guessed)"
        text = re.sub(r" - (\w)\w*", r"_\1", text)
        found = re.search(rf"(?:{_TYPE.pattern})(?:_[a-z]+)?", text)
        return found[0] if found else text
    return re.sub(r"[\s-]+", "_", text)


def model_name(text: str) -> str:
    """A model by the name of its file, without folder and suffix; a catalogue name is its file's."""
    from labkit.models.catalogue import CATALOGUE

    entry = CATALOGUE.get(text)
    name = PurePath((entry.file if entry else text).replace("\\", "/")).name
    return name.removesuffix(".gguf").casefold()


def more_context(declared: Any, reported: Any, slots: Any) -> str:
    """Why a context other than declared stops nothing; empty where the process has fewer positions than declared."""
    first, second = plain("context", declared), plain("context", reported)
    if not (isinstance(first, float) and isinstance(second, float)) or second < first:
        return ""
    several = isinstance(slots, int | float) and slots > 1
    return f"that of all {slots} slots together" if several and second == first * slots else "more than asked for"
