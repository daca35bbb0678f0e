"""llama-batched-bench: a table, or JSON lines, of prompts read and tokens emitted by several sequences at once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.lab.importers.document import Document, Node
from labkit.lab.importers.llama_bench import NAME
from labkit.lab.importers.registry import Contents, Measured, importer
from labkit.lab.importers.shared import split

# The table's columns by the names its JSON lines have for them.
COLUMNS = {
    "PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "S_PP t/s": "speed_pp", "T_TG s": "t_tg",
    "S_TG t/s": "speed_tg", "T s": "t", "S t/s": "speed",
}  # fmt: skip
NEEDED = ("pp", "tg", "pl", "t_pp", "t_tg", "t")
SAID = re.compile(r"\b(n_kv_max|n_batch|n_ubatch|flash_attn|is_pp_shared|n_gpu_layers|n_threads(?:_batch)?) = (-?\d+)")
MOST_SEQUENCES = 1e6


def is_batched_bench(document: Document) -> bool:
    """Whether the first record has its names, or a line is the head of its table."""
    if document.kind == "text":
        return any(tuple(cells_of(line)) == tuple(COLUMNS) for line in document.text.splitlines())
    records = document.records() if isinstance(document.rows[0].value, dict | list) else ()
    return bool(records) and records[0].has(*NEEDED)


@importer("llama-batched-bench", "its table, or --output-format jsonl", is_batched_bench)
def read(document: Document) -> Contents:
    """Each row is two cells: the prompts of all sequences read, then all sequences decoding behind them."""
    rows, said = table_of(document) if document.kind == "text" else (list(document.records()), {})
    if not rows:
        raise document.fault("is the head of a table without a row")
    settings = [said | settings_of(row) for row in rows]
    shared, varied = split(settings)
    measured = [
        one
        for row, apart, own in zip(rows, varied, settings, strict=True)
        for one in phases(row, apart, own.get("is_pp_shared"))
    ]
    if not measured:
        raise document.fault("has no row in which anything was read or emitted")
    return Contents(measured=measured, settings={"draft": 0, **shared})  # it has no speculation


def phases(row: Node, apart: Mapping[str, Any], shared_prompt: Any) -> Iterator[Measured]:
    """The prefill and the decode of one row."""
    prompt, generate = (row.at(name).whole(0, 1e9) or 0 for name in ("pp", "tg"))
    streams = int(row.at("pl").needed(1, MOST_SEQUENCES))
    cache = row.at("n_kv").whole()
    if shared_prompt is None and cache is not None and streams > 1 and prompt:
        shared_prompt = cache == prompt + streams * generate
    base: dict[str, Any] = {"runtime": NAME, "streams": streams}
    if prompt and (streams == 1 or shared_prompt is not None):
        seconds = row.at("t_pp").needed(1e-9)
        read = prompt if shared_prompt else prompt * streams
        told = {"shared_prompt": True} if shared_prompt and streams > 1 else {}
        knobs = base | {"phase": "prefill", "prompt": prompt, "depth": 0} | told | dict(apart)
        yield Measured(knobs, {"prefill_tok_s": read / seconds})
    if generate:
        seconds, whole = row.at("t_tg").needed(1e-9), row.at("t").needed(1e-9)
        knobs = base | {"phase": "decode", "depth": prompt, "generate": generate} | dict(apart)
        emitted = streams * generate
        metrics = {"decode_tok_s": emitted / seconds, "step_ms": 1e3 * seconds / generate}
        yield Measured(knobs, metrics | {"total_tok_s": emitted / whole, "makespan_s": whole})


def settings_of(row: Node) -> dict[str, Any]:
    """What was set for a row of JSON, in its own names."""
    if not isinstance(row.value, dict):
        raise row.fault("is no object, where a row of llama-batched-bench is expected")
    names = [name for name in row.value if name not in COLUMNS.values()]
    return {name: row.at(name).scalar() for name in names if not isinstance(row.value[name], list | dict)}


def table_of(document: Document) -> tuple[list[Node], dict[str, int]]:
    """(the rows of a table with their lines, what the lines above it say was set)."""
    rows: list[Node] = []
    said: dict[str, int] = {}
    head = False
    for number, line in enumerate(document.text.splitlines(), 1):
        cells = cells_of(line)
        if tuple(cells) == tuple(COLUMNS):
            head = True
        elif not head:
            said |= {name: int(value) for name, value in SAID.findall(line)}
        elif cells and not all(set(cell) <= {"-", ":"} for cell in cells):
            rows.append(row_of(Node(document.path, f"line {number}", None), cells))
    return rows, said


def row_of(place: Node, cells: Sequence[str]) -> Node:
    """A row of the table as its JSON line would be. RunError names the column that is no number."""
    if len(cells) != len(COLUMNS):
        raise place.fault(f"has {len(cells)} columns, where the table has {len(COLUMNS)}: it is cut short")
    found: dict[str, float] = {}
    for (column, name), cell in zip(COLUMNS.items(), cells, strict=True):
        try:
            found[name] = float(cell)
        except ValueError:
            raise place.fault(f"has {cell[:40]!r} under {column}, where a number is expected") from None
    return Node(place.file, place.place, found)


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table; none of any other line."""
    text = line.strip()
    return [cell.strip() for cell in text.strip("|").split("|")] if text.startswith("|") else []
