"""What a run measured and what it did not: streams, depths, lengths, contents and weights, read from its own files."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from labkit.lab.plan import Plan
from labkit.lab.record import Frozen, RunRecord

STREAMS = ("streams", "width", "concurrency", "batch")  # knobs that count sequences worked on at once
PROMPTS, DEPTHS, OUTPUTS = ("prompt", "prompt_tokens"), ("depth", "depths"), ("tokens", "generate", "max_tokens")
SERVING = re.compile(r"tok|ttft|tpot|itl|e2e|makespan|req|step|prefill")  # metrics of work on requests
NAMED = re.compile(r"(?:^|, )([A-Za-z_][\w.-]*)=")
Range = tuple[int, int]


class Coverage(Frozen):
    """What was measured: numbers of streams; the shortest and longest prompt, output and depth in tokens; how many
    different prompts; bytes of the weights by type. What is empty or None the run does not describe."""

    streams: tuple[int, ...] = ()
    prompt_tokens: Range | None = None
    output_tokens: Range | None = None
    depth: Range | None = None
    contents: int | None = None
    weights: dict[str, int] = Field(default_factory=dict)

    def __or__(self, other: "Coverage") -> "Coverage":
        """What two runs measured together."""
        return Coverage(
            streams=tuple(sorted({*self.streams, *other.streams})),
            prompt_tokens=spanned(filter(None, (self.prompt_tokens, other.prompt_tokens))),
            output_tokens=spanned(filter(None, (self.output_tokens, other.output_tokens))),
            depth=spanned(filter(None, (self.depth, other.depth))),
            contents=max(self.contents or 0, other.contents or 0) or None,
            weights=self.weights or other.weights,
        )


def coverage_of(record: RunRecord, plan: Plan, folder: Path) -> Coverage:
    """What the run in `folder` covered. RunError when its requests cannot be read."""
    from labkit.audit.run_files import read_lines

    weights = (record.model or {}).get("bytes_by_type")
    sizes = weights.items() if isinstance(weights, Mapping) else ()
    counted = {str(name): size for name, size in sizes if is_count(size)}
    seen = requested_coverage(read_lines(folder / "requests.jsonl"))
    known = {name: value for name, value in seen if value} | {"weights": counted}  # counted goes before planned
    return planned_coverage(plan, record.parameters).model_copy(update=known)


def planned_coverage(plan: Plan, parameters: Mapping[str, Any]) -> Coverage:
    """What a plan's cells and a run's parameters say of it: less than its requests do, which not every run has."""
    cells = [*plan.cells, parameters]
    prompts = parameters.get("prompts")
    texts = [text for text in prompts if isinstance(text, str)] if isinstance(prompts, list) else []
    return Coverage(
        streams=tuple(sorted({count for name in STREAMS for count in counts(plan.cells, name)})),
        prompt_tokens=spanned((n, n) for name in PROMPTS for n in counts(cells, name)),
        output_tokens=spanned((n, n) for name in OUTPUTS for n in counts(cells, name)),
        depth=spanned((n, n) for name in DEPTHS for n in counts(cells, name)),
        contents=len(set(texts)) or None,
    )


def requested_coverage(requests: Iterable[Mapping[str, Any]]) -> Coverage:
    """What the requests of a run say of it: the tokens that were read and emitted, counted."""
    prompts: set[int] = set()
    outputs: set[int] = set()
    depths: set[int] = set()
    contents: set[str] = set()
    for request in requests:
        read, emitted = (request.get(name) for name in ("prompt_tokens", "completion_tokens"))
        if isinstance(read, int):
            prompts.add(read)
        if isinstance(emitted, int):
            outputs.add(emitted)
        if isinstance(read, int) and isinstance(emitted, int):
            depths |= {read, read + emitted}
        if request.get("prompt_sha256"):
            contents.add(str(request["prompt_sha256"]))
    return Coverage(
        prompt_tokens=spanned((n, n) for n in prompts),
        output_tokens=spanned((n, n) for n in outputs),
        depth=spanned((n, n) for n in depths),
        contents=len(contents) or None,
    )


def counts(cells: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    """The whole numbers that cells have under a name; lists give each of theirs."""
    values = [value for cell in cells for value in listed(cell.get(name))]
    return [value for value in values if is_count(value) and value > 0]


def listed(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def is_count(value: Any) -> bool:
    """Whether a value is a whole number, true and false left out."""
    return isinstance(value, int) and not isinstance(value, bool)


def spanned(ranges: Iterable[Range]) -> Range | None:
    """The range that holds all of them; None for none."""
    ends = list(ranges)
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def parse_shape(text: str) -> dict[str, Any]:
    """The settings in a scope's shape, `kv=f16, tokens=24`, by name; see `events.shape_words`, which wrote it."""
    found: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    at = NAMED.match(text)
    while at:
        name, start = at[1], at.end()
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            end = -1
        following = NAMED.match(text, end) if end >= 0 else None
        if end != len(text) and not (following and following.start() == end):
            following = NAMED.search(text, start)
            value = text[start : following.start() if following else len(text)]
        found[name], at = value, following
    return found


def range_words(span: Range, noun: str = "tokens") -> str:
    """`4 tokens`, or `3 to 9 tokens`."""
    return f"{span[0]:,} {noun}" if span[0] == span[1] else f"{span[0]:,} to {span[1]:,} {noun}"


def list_words(items: Sequence[Any]) -> str:
    """`1, 2 and 4`."""
    words = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
