"""The reference of files: a JSON Schema of each kind of file that the lab writes or reads, and a page that lists them."""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel, TypeAdapter

from labkit.audit.claims import NUMBERS, OPTIONAL, REQUIRED
from labkit.audit.stored import StoredAudit
from labkit.lab.archive import MANIFEST, Manifest
from labkit.lab.events import AnyEvent
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Plan
from labkit.lab.record import RunRecord
from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, one_line, prose, table
from labkit.lab.request_row import RequestRow
from labkit.lab.starts import Start
from labkit.lab.suite import SuiteFile
from labkit.lab.sweep_file import SweepFile
from labkit.measure.telemetry import Reading

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ABOUT = (
    "What the files of a lab hold. Each has a JSON Schema in [schemas/](schemas/), of a whole file of JSON or of a row; a row "
    "of a CSV is shown with its cells as the numbers and texts they stand for, an empty cell as null."
)
Schema = dict[str, Any]


class File(NamedTuple):
    """One kind of file: its schema's name, where it lies, the schema, and the source it is made of."""

    name: str
    where: str
    schema: Schema
    source: str


def files() -> Iterator[File]:
    """Every kind of file that has a schema."""
    run = "data/runs/RUN"
    yield File("run", f"{run}/run.json", of_model(RunRecord), "labkit/lab/record.py")
    yield File("plan", f"{run}/plan.json", of_model(Plan), "labkit/lab/plan.py")
    yield File("measurements", f"{run}/measurements.csv, warmup.csv", of_row(Measurement), "labkit/lab/measurements.py")
    yield File("requests", f"{run}/requests.jsonl", of_model(RequestRow), "labkit/lab/request_row.py")
    yield File("starts", f"{run}/starts.csv", of_row(Start, first={"order": int}), "labkit/lab/starts.py")
    yield File(
        "telemetry", f"{run}/telemetry.csv", of_row(Reading, first={"time_s": float}), "labkit/measure/telemetry.py"
    )
    yield File("audit", f"{run}/audit.json", of_model(StoredAudit), "labkit/audit/stored.py")
    yield File("sweep", "data/sweeps/SWEEP.json", of_model(SweepFile), "labkit/lab/sweep_file.py")
    yield File("rerun", "data/reruns/RERUN.json", of_model(SuiteFile), "labkit/lab/suite.py")
    yield File("manifest", f"RUN.zip/{MANIFEST}", of_model(Manifest), "labkit/lab/archive.py")
    yield File("event", "data/ledger/EVENT.json", of_events(), "labkit/lab/events.py")
    yield File("claims", "data/claims/*.csv", of_claims(), "labkit/audit/claims.py")


@reference
def schemas() -> Pages:
    """A schema a file, and the page of them all."""
    known = list(files())
    for one in known:
        yield f"schemas/{one.name}.schema.json", json.dumps(one.schema, indent=1, ensure_ascii=False) + "\n"
    rows = (
        (f"[{one.name}](#{one.name})", prose(one.where), f"[schemas/{one.name}.schema.json](schemas/{one.name}.schema.json)",
         f"[{one.source}](../../{one.source})")
        for one in known
    )  # fmt: skip
    yield (
        "schemas.md",
        f"{head('Files and their schemas', 'labkit/lab/reference/schemas.py', ABOUT)}\n"
        f"{table(('what', 'where', 'schema', 'made of'), rows)}\n" + "\n".join(map(section, known)),
    )


def of_model(model: type[BaseModel]) -> Schema:
    """The schema of a pydantic model, as it is read: fields that a file of an earlier version lacks are not required."""
    schema: Schema = tidy(model.model_json_schema())
    return {"$schema": DIALECT} | schema


def of_events() -> Schema:
    """The schema of an event of the ledger, of any kind."""
    adapter: TypeAdapter[Any] = TypeAdapter(AnyEvent)
    about = "One event of the ledger; `kind` says which. The file's name is its time and the start of its hash."
    schema: Schema = tidy(adapter.json_schema())
    return {"$schema": DIALECT, "title": "Event", "description": about} | schema


def of_row(row: type, first: Mapping[str, type] | None = None) -> Schema:
    """The schema of a row of a CSV whose columns are the fields of a class, after those of `first`; one with a default may
    be absent, as it is from files of earlier versions."""
    hints = dict(first or {}) | get_type_hints(row)
    columns = {name: tidy(TypeAdapter(kind).json_schema()) for name, kind in hints.items()}
    optional = {name for name in columns if hasattr(row, name) and name not in getattr(row, "_fields", ())}
    optional |= set(getattr(row, "_field_defaults", ()))
    needed = [name for name in columns if name not in optional]
    return of_columns(row.__name__, one_line(inspect.cleandoc(row.__doc__ or "")), columns, needed)


def of_claims() -> Schema:
    """The schema of a row of claims."""
    columns = {}
    for name, about in (OPTIONAL | REQUIRED).items():
        kind = ["number", "null"] if name in NUMBERS else "number" if name == "value" else ["string", "null"]
        units = f"; a number may be followed by {', '.join(NUMBERS[name])}" if NUMBERS.get(name) else ""
        columns[name] = {"type": kind, "description": about + units}
    about = "One published number with its conditions. A cell is empty where the source does not say."
    return of_columns("Claim", about, columns, list(REQUIRED))


def of_columns(title: str, about: str, columns: Mapping[str, Schema], required: list[str]) -> Schema:
    """The schema of a row."""
    return {
        "$schema": DIALECT, "title": title, "description": about, "type": "object", "properties": dict(columns),
        "required": required,
    }  # fmt: skip


def tidy(schema: Any) -> Any:
    """A schema with each description in one line a paragraph, and without the titles that only repeat a field's name."""
    if isinstance(schema, list):
        return [tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: Schema = {}
    for key, value in schema.items():
        if key == "description" and isinstance(value, str):
            found[key] = "\n\n".join(one_line(part) for part in value.split("\n\n"))
        elif key in ("properties", "$defs") and isinstance(value, dict):
            found[key] = {name: tidy({k: v for k, v in each.items() if k != "title" or key == "$defs"})
                          for name, each in value.items()}  # fmt: skip
        else:
            found[key] = tidy(value)
    return found


def section(one: File) -> str:
    """A file's fields, those of what it is made of beneath it."""
    parts = [f"## {one.name}\n\n`{one.where.partition(',')[0]}`\n", fields_text(one.schema)]
    for name, inner in sorted(one.schema.get("$defs", {}).items()):
        if "properties" in inner:
            parts.append(f"### {name} of {one.name}\n\n{fields_text(inner)}")
    return "\n".join(parts)


def fields_text(schema: Schema) -> str:
    """A schema's description and the table of its fields."""
    needed = schema.get("required", ())
    rows = (
        (code(name), prose(words(each)), "" if name in needed else default_of(each), prose(each.get("description", "")))
        for name, each in schema.get("properties", {}).items()
    )
    about = prose(schema.get("description", ""))
    columns = ["field", "type", "left out means", "what it says"]
    shown = table(*without_empty(columns, list(rows))) if schema.get("properties") else ""
    return f"{about}\n\n{shown}" if about else shown


def without_empty(columns: list[str], rows: list[tuple[str, ...]]) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which nothing stands."""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def default_of(schema: Schema) -> str:
    """A default as code; nothing where there is none to tell."""
    value = schema.get("default")
    return "" if value in (None, "", [], {}) else code(json.dumps(value, ensure_ascii=False))


def words(schema: Any) -> str:
    """A schema's type in words: `integer or null`, `list of Check`."""
    if schema is True or not schema:
        return "anything"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(words, choices)))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        inner = schema.get("items")
        return (
            f"list of {words(inner)}"
            if inner
            else f"list of {len(schema.get('prefixItems', ()))}"
            if schema.get("prefixItems")
            else "list"
        )
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {words(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(kind or "anything")
