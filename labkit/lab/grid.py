"""The grid of a sweep: `batch=1,8,32` and `depth=0-4096*2` as typed values of a notebook's parameters, and its points."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.levers import Lever, find_lever
from labkit.lab.parameters import Parameter, element_kind, require

MOST_POINTS = 10_000
RANGE = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?")
OPEN, CLOSE = "[{(", ")}]"


def read_grid(
    texts: Sequence[str], known: Mapping[str, Parameter], levers: Mapping[str, Lever]
) -> dict[str, list[Any]]:
    """The values of each `name=v1,v2,...`, typed by the notebook's own defaults, in order.

    Numbers may be ranges as llama-bench writes them: `1-4`, `0-4096+512`, `1-32*2`. A name that is no parameter may be
    another name of the lever that exactly one parameter sets (`batch` for `widths`). ParameterError otherwise."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        given, equals, values = text.partition("=")
        if not equals or not given.strip() or not values.strip():
            raise ParameterError(f"--grid {text!r} is not NAME=VALUE,VALUE,... such as batch=1,8,32")
        name = parameter_for(given.strip(), known, levers)
        if name in grid:
            raise ParameterError(f"--grid gives {name} twice; put its values in one")
        grid[name] = read_values(require(known, name), values)
    points = 1
    for values_of in grid.values():
        points *= len(values_of)
    if points > MOST_POINTS:
        raise ParameterError(f"the grid has {points:,} points; {MOST_POINTS:,} are the most")
    return grid


def parameter_for(name: str, known: Mapping[str, Parameter], levers: Mapping[str, Lever]) -> str:
    """The parameter a name of the grid means: itself, or the only one that sets the same lever."""
    if name in known or (found := find_lever(name, levers)) is None:
        return name
    setting = [other for other in known if find_lever(other, levers) is found]
    return setting[0] if len(setting) == 1 else name


def read_values(parameter: Parameter, text: str) -> list[Any]:
    """The values of one parameter. ParameterError for one that does not fit, or that is there twice."""
    values: list[Any] = []
    for part in split(text):
        values += [parameter.from_text(item) for item in expand(part, whole_numbers(parameter))]
    if not values:
        raise ParameterError(f"--grid gives {parameter.name} no value")
    shown = [repr(value) for value in values]
    if repeated := next((text for text in shown if shown.count(text) > 1), ""):
        raise ParameterError(f"--grid gives {parameter.name} the value {repeated} twice")
    return values


def whole_numbers(parameter: Parameter) -> bool:
    """Whether a range means something to a parameter: it takes whole numbers, numbers, or a list of these."""
    kind = element_kind(parameter.default)[0] if parameter.kind is list else parameter.kind
    return kind in (int, float)


def split(text: str) -> list[str]:
    """The items between commas; commas inside brackets and quotes do not count, and quotes around an item go."""
    items, depth, quote, start = [], 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and text[place - 1] != "\\" else quote
        elif sign == '"':
            quote = sign
        elif sign in OPEN:
            depth += 1
        elif sign in CLOSE:
            depth -= 1
        elif sign == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    items = [item.strip() for item in [*items, text[start:]]]
    if empty := [place for place, item in enumerate(items, 1) if not item]:
        raise ParameterError(f"--grid value {empty[0]} of {text!r} is empty; two commas stand together or at an end")
    return [unquoted(item) for item in items]


def unquoted(item: str) -> str:
    """`"a,b"` as the text it holds; anything else as it is."""
    if len(item) > 1 and item[0] == item[-1] == '"':
        try:
            return str(json.loads(item))
        except ValueError:
            return item
    return item


def expand(part: str, ranges: bool) -> list[str]:
    """The numbers of a range as text; anything else is one value."""
    found = RANGE.fullmatch(part) if ranges else None
    if found is None:
        return [part]
    first, last, sign, by = int(found[1]), int(found[2]), found[3] or "+", int(found[4] or 1)
    if first > last or by < (2 if sign == "*" else 1) or (sign == "*" and first == 0):
        raise ParameterError(f"--grid range {part!r} has no end: use first-last+step or first-last*factor, growing")
    values = [first]
    while len(values) <= MOST_POINTS:
        following = values[-1] * by if sign == "*" else values[-1] + by
        if following > last:
            return [str(value) for value in values]
        values.append(following)
    raise ParameterError(f"--grid range {part!r} has more than {MOST_POINTS:,} values")


def points_of(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last name the fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
