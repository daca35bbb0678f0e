"""The conditions of an entry in words: what was varied, what was held fixed, how far it reached, what was not measured."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from labkit.lab.coverage import (
    DEPTHS,
    OUTPUTS,
    PROMPTS,
    SERVING,
    STREAMS,
    Coverage,
    list_words,
    parse_shape,
    range_words,
)
from labkit.lab.events import Scope
from labkit.lab.events import shape_words as plain_words
from labkit.lab.plan import Plan

# A driver's version as one number, as Vulkan packs it: the driver says it legibly just before.
PACKED_VERSION = re.compile(r" (?:\d{6,}|1)(?= Vulkan |$)")
TEXTS_SHOWN = 2
RULE_ENDS = ("compare", "against")  # parameters that only say which cells the rule compares: the rule says so itself


class Measured(Protocol):
    """What was measured of what: an entry, or a run that is audited."""

    @property
    def plan(self) -> Plan: ...
    @property
    def coverage(self) -> Coverage: ...
    @property
    def scope(self) -> Scope: ...


def driver_words(driver: str) -> str:
    """A scope's driver without its version as a raw number: `NVIDIA 580.159.04 Vulkan 1.4.312`."""
    return PACKED_VERSION.sub("", driver)


def weights_words(coverage: Coverage) -> str:
    """The types of the weights with their share of the bytes: `69 % of the bytes Q4_1, 31 % Q8_0`."""
    total = sum(coverage.weights.values())
    shares = sorted(coverage.weights.items(), key=lambda item: -item[1])
    said = [f"{100 * size / total:.2g} % {name}" for name, size in shares if total and size / total >= 0.005]
    return f"weights {', '.join(said)} by bytes" if said else ""


def varied(plan: Plan) -> list[str]:
    """Each knob with the values it was given: `width 1, 2, 4 and 8`."""
    values: dict[str, list[Any]] = {}
    for cell in plan.cells:
        for name, value in cell.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    return [f"{name} {list_words([setting(value) for value in found])}" for name, found in values.items()]


def held(entry: Measured) -> dict[str, Any]:
    """The settings that stayed as they were, without the knobs and the lists that these took their values from."""
    taken = {name: {setting(cell.get(name)) for cell in entry.plan.cells} for name in entry.plan.knobs}
    return {
        name: value
        for name, value in parse_shape(entry.scope.shape).items()
        if not (isinstance(value, list) and value and {setting(item) for item in value} in taken.values())
        and value is not False
        and value != ""
        and name not in (*RULE_ENDS, *entry.plan.knobs)
    }


def shape_words(shape: Mapping[str, Any]) -> str:
    """Settings as a reader writes them, long lists of texts counted: `kv=f16, prompts=8 texts ("The sea", …)`."""
    return ", ".join(
        f"{name}={short(value)}" if isinstance(value, list) else plain_words({name: value})
        for name, value in sorted(shape.items())
    )


def short(values: list[Any]) -> str:
    """A list as it is where it is short, else counted, with its beginning."""
    shown = [setting(value) for value in values]
    whole = ", ".join(shown)
    if len(whole) <= 40:
        return f"[{whole}]"
    kind = "texts" if all(isinstance(value, str) for value in values) else "values"
    start = ", ".join(f'"{text if len(text) <= 20 else text[:19] + "…"}"' for text in shown[:TEXTS_SHOWN])
    return f"{len(values)} {kind} ({start}, …)"


def setting(value: Any) -> str:
    """A value as a reader writes it."""
    return value if isinstance(value, str) else plain_words({"": value})[1:]


def reached(coverage: Coverage) -> list[str]:
    """How far the work went: lengths, depths and contents."""
    found = []
    if coverage.prompt_tokens:
        found.append(f"prompts of {range_words(coverage.prompt_tokens)}")
    if coverage.output_tokens:
        found.append(f"{range_words(coverage.output_tokens)} out")
    if coverage.depth:
        found.append(f"depths to {coverage.depth[1]:,} tokens")
    if coverage.contents:
        found.append("the same prompt for all" if coverage.contents == 1 else f"{coverage.contents} different prompts")
    return found


def beyond(entry: Measured, elsewhere: bool = False) -> Iterator[str]:
    """All that the evidence does not reach, a sentence each: other cards, other models, and what was not measured of the
    rest. `elsewhere`: entries of other cards are there too."""
    there = ", beyond what the entries linked above found there" if elsewhere else ": one of each was measured"
    yield f"Anything about other cards than {entry.scope.device}, or other drivers or builds{there}"
    weights = ", ".join(entry.coverage.weights)
    own = f" ({weights})" * bool(weights)
    yield f"Other models than {entry.scope.model}, or quantisations other than its own{own}"
    yield from unmeasured(entry)


def unmeasured(entry: Measured) -> Iterator[str]:
    """What was not measured of streams, depths, lengths, contents and settings, a sentence each."""
    coverage, plan = entry.coverage, entry.plan
    knobs = []
    for name in (name for name in plan.knobs if name not in STREAMS):
        values = dict.fromkeys(setting(cell[name]) for cell in plan.cells)
        knobs.append(f"Other values of {name} than {list_words(list(values))}")
    yield from unreached(coverage, knobs)
    if SERVING.search(plan.rule.metric):
        names = {
            "streams": coverage.streams or coverage.contents,
            "depths": coverage.depth,
            "prompt lengths": coverage.prompt_tokens,
            "contents": coverage.contents,
        }
        if unknown := [name for name, known in names.items() if not known]:
            yield f"Any {list_words(unknown).replace(' and ', ' or ')}: the run does not describe its own"
    counted = (*PROMPTS, *DEPTHS, *OUTPUTS, "prompts")  # said above, by what was reached
    if fixed := {name: value for name, value in held(entry).items() if name not in counted}:
        yield f"Other settings than {shape_words(fixed)}"


def unreached(coverage: Coverage, knobs: Iterable[str] = ()) -> Iterator[str]:
    """What a coverage does not reach, a sentence each; `knobs` are the sentences on what was varied beside streams."""
    if coverage.streams:
        yield f"Other numbers of streams than {list_words(coverage.streams)}"
    yield from knobs
    if coverage.depth:
        yield f"Contexts deeper than {coverage.depth[1]:,} tokens"
    if coverage.prompt_tokens:
        yield f"Prompts of other lengths than {range_words(coverage.prompt_tokens)}"
    if coverage.output_tokens:
        yield f"Outputs longer than {coverage.output_tokens[1]:,} tokens"
    if coverage.contents:
        of = "the one prompt that all had" if coverage.contents == 1 else f"the {coverage.contents} prompts measured"
        yield f"Contents unlike {of}: code, prose and repetition can differ"
