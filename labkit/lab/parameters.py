"""The parameters of a notebook: read from its tagged cell, and set from text, each typed by its own default."""

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError
from labkit.lab.record import plain_value
from labkit.lab.redact import is_secret_name

INTEGER = re.compile(r"[+-]?[0-9]+")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NOT_FINITE = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "-infinity": -math.inf,
}
SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict}
SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", dict: "a dict"}


@dataclass(frozen=True)
class Parameter:
    """One name of the parameters cell. `kind` is its type, None when neither default nor annotation tells;
    `optional` when None is one of its values."""

    name: str
    default: Any
    kind: type | None
    optional: bool
    help: str = ""

    def from_text(self, text: str) -> Any:
        """The value that `text`, as typed on a command line, means for this parameter. ParameterError otherwise."""
        if self.optional and self.kind is not str and text in ("None", "null"):
            return None
        if self.optional and self.kind is str and text == "None":
            return None
        return self._read(text, self.kind, self.default)

    def from_value(self, value: Any) -> Any:
        """The value a typed source (JSON, TOML, Python) gives this parameter. ParameterError when the type is another.

        Paths become text and NumPy's numbers Python's; what JSON cannot hold, such as a date, is refused."""
        value = plain_value(value)
        if value is None and (self.optional or self.default is None):
            return None
        fitted = self._fit(value, self.kind, self.default)
        if not storable(fitted):
            raise ParameterError(
                f"parameter {self.name} cannot hold {value!r}; numbers, text, true or false, None, lists and dicts of "
                f"these can be stored: give it as text"
            )
        return fitted

    def _read(self, text: str, kind: type | None, like: Any) -> Any:
        if kind is str:
            return text
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is int and INTEGER.fullmatch(text):
            return int(text)
        if kind is float:
            if text.lower() in NOT_FINITE:
                return NOT_FINITE[text.lower()]
            if FLOAT.fullmatch(text) and math.isfinite(float(text)):
                return float(text)
        if kind is list:
            return self._read_list(text, like)
        if kind is dict:
            return self._fit(self._json(text), dict, like)
        if kind is None:
            return json_or_text(text)
        raise self._refusal(repr(text), kind)

    def _read_list(self, text: str, like: Any) -> list[Any]:
        kind, sample = element_kind(like)
        if text.lstrip().startswith("["):
            return [self._fit(item, kind, sample) for item in self._json(text)]
        if not text.strip():
            return []
        return [self._read(item.strip(), kind, sample) for item in text.split(",")]

    def _json(self, text: str) -> Any:
        try:
            return strict_json(text)
        except ValueError as error:
            raise ParameterError(f"parameter {self.name}: {text!r} is not JSON ({error})") from None

    def _fit(self, value: Any, kind: type | None, like: Any) -> Any:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is float and isinstance(value, str) and value.lower() in NOT_FINITE:  # as records store them
            return NOT_FINITE[value.lower()]
        if kind is list and isinstance(value, list | tuple):
            item_kind, sample = element_kind(like)
            return [self._fit(item, item_kind, sample) for item in value]
        if kind is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
            return value
        raise self._refusal(repr(value), kind)

    def _refusal(self, shown: str, kind: type) -> ParameterError:
        none = " or None" if self.optional else ""
        return ParameterError(
            f"parameter {self.name} takes {SPOKEN[kind]}{none}, not {shown} (its default is {self.default!r})"
        )

    def __str__(self) -> str:
        kind = self.kind.__name__ if self.kind else "JSON or text"
        note = f"  # {self.help}" if self.help else ""
        return f"{self.name} = {self.default!r}  ({kind}{' or None' if self.optional else ''}){note}"


def read_parameters(source: str, where: str = "the parameters cell") -> dict[str, Parameter]:
    """The parameters a cell's source assigns, by name, in order. Annotations and trailing comments are understood.

    ParameterError for anything but assignments of literals: a value worked out from another keeps its old result
    when that other is overridden."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ParameterError(f"{where} is not Python: line {error.lineno}: {error.msg}") from None
    comments = trailing_comments(source)
    found: dict[str, Parameter] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        shown = (ast.get_source_segment(source, statement) or "").splitlines()[0]
        annotation = None
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            target, value, annotation = statement.target, statement.value, statement.annotation
        elif (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            target, value = statement.targets[0], statement.value
        else:
            raise ParameterError(
                f"{where} may hold only `name = literal`, one a line; line {statement.lineno}: {shown}"
            )
        try:
            default = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError):
            raise ParameterError(
                f"{where}, line {statement.lineno}: {target.id} is not a literal ({shown}); "
                f"work it out in a later cell, so it follows when a parameter is changed"
            ) from None
        name = target.id
        if not storable(default):
            raise ParameterError(
                f"{where}: {name} is a {type(default).__name__} or holds what JSON cannot; "
                f"parameters are numbers, text, true or false, None, lists and dicts of these"
            )
        if name in found:
            raise ParameterError(f"{where} sets {name} twice (line {statement.lineno}); keep one")
        if is_secret_name(name):
            raise ParameterError(
                f"{where}: {name} would put a secret into the run's record; read it from the environment in a cell"
            )
        kind, optional = declared_kind(annotation, default)
        found[name] = Parameter(name, default, kind, optional, comments.get(statement.end_lineno or 0, ""))
    return found


def storable(value: Any) -> bool:
    """Whether a default survives being stored in a record: no bytes, sets or complex numbers, dict keys are text."""
    if isinstance(value, list | tuple):
        return all(storable(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and storable(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def declared_kind(annotation: ast.expr | None, default: Any) -> tuple[type | None, bool]:
    """The type of a parameter and whether it may be None: by the annotation if understood, else the default."""
    names = annotation_names(annotation)
    optional = default is None or "None" in names or "Optional" in names
    kinds = [SCALARS[name] for name in names if name in SCALARS]
    if len(kinds) == 1 and (default is None or kinds[0] is float):
        return kinds[0], optional
    if default is None:
        return None, True
    return (list if isinstance(default, tuple) else type(default)), optional


def annotation_names(annotation: ast.expr | None) -> list[str]:
    """The outermost type names of an annotation: `int | None`, `Optional[int]`, `"str | None"`, `list[int]`."""
    if annotation is None:
        return []
    if isinstance(annotation, ast.Constant):
        if isinstance(annotation.value, str):
            try:
                return annotation_names(ast.parse(annotation.value, mode="eval").body)
            except SyntaxError:
                return []
        return [str(annotation.value)]
    if isinstance(annotation, ast.Name):
        return [annotation.id]
    if isinstance(annotation, ast.Attribute):
        return [annotation.attr]
    if isinstance(annotation, ast.BinOp):
        return annotation_names(annotation.left) + annotation_names(annotation.right)
    if isinstance(annotation, ast.Subscript):
        outer = annotation_names(annotation.value)
        if outer in (["Optional"], ["Union"]):
            inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            return outer + [name for part in inner for name in annotation_names(part)]
        return outer
    return []


def trailing_comments(source: str) -> dict[int, str]:
    """The comment at the end of each line that has code before it, by line number; a `#` inside a string is text."""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            comments[token.start[0]] = token.string.lstrip("# ").strip()
    return comments


def element_kind(like: Any) -> tuple[type | None, Any]:
    """The type the items of a list parameter have, by its default's items: one type, numbers mixed → float."""
    items = list(like) if isinstance(like, list | tuple) else []
    kinds = {type(item) for item in items}
    if kinds == {int, float}:
        return float, 0.0
    if len(kinds) != 1 or kinds == {type(None)}:
        return None, None
    kind = kinds.pop()
    return (list if kind is tuple else kind), items[0]


def strict_json(text: str) -> Any:
    """JSON without its extensions: `NaN` and numbers too large to hold are refused. ValueError otherwise."""

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits} is too large")
        return float(digits)

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_float=number, parse_constant=refuse)


def json_or_text(text: str) -> Any:
    """JSON when it is, else the text itself: `4` is a number, `12e4567` and `007` stay as written."""
    try:
        return strict_json(text)
    except ValueError:
        return text


def set_parameters(
    known: Mapping[str, Parameter], given: Mapping[str, str], values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The overrides to inject: `values` from a typed source first, then `given` as typed on the command line.

    ParameterError lists the known parameters when a name is not among them."""
    overrides = {name: require(known, name).from_value(value) for name, value in (values or {}).items()}
    return overrides | {name: require(known, name).from_text(text) for name, text in given.items()}


def require(known: Mapping[str, Parameter], name: str) -> Parameter:
    """The parameter called `name`. ParameterError with the list of those there are."""
    if name not in known:
        listed = ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in known.values()) or "none"
        raise ParameterError(f"unknown parameter {name!r}; this experiment takes: {listed}")
    return known[name]


def read_parameter_file(path: Path, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Overrides from a JSON or YAML file (by its ending), typed by the notebook's defaults.

    YAML scalars are taken as written, so `sha: 12e4567`, `id: 007` and `on: yes` mean what they say."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"cannot read the parameter file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ParameterError(f"the parameter file {path} is not UTF-8 text") from None
    if path.suffix.lower() == ".json":
        try:
            document = strict_json(text)
        except ValueError as error:
            raise ParameterError(f"the parameter file {path} is not JSON: {error}") from None
        require_mapping(path, document)
        return set_parameters(known, {}, document)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ParameterError(f"the parameter file {path} must end in .json, .yaml or .yml")
    import yaml  # type: ignore[import-untyped]

    try:
        document = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ParameterError(f"the parameter file {path} is not YAML: {' '.join(str(error).split())}") from None
    require_mapping(path, document)
    return {name: from_yaml(require(known, name), value) for name, value in document.items()}


def require_mapping(path: Path, document: Any) -> None:
    """ParameterError unless the file holds names and values."""
    if not isinstance(document, dict):
        raise ParameterError(f"the parameter file {path} must hold `name: value` pairs")


def from_yaml(parameter: Parameter, value: Any) -> Any:
    """A value of a YAML file whose scalars are all text: scalars as on the command line, lists item by item."""
    if isinstance(value, str):
        return parameter.from_text(value)
    if isinstance(value, list) and parameter.kind is list:
        kind, sample = element_kind(parameter.default)
        item = Parameter(parameter.name, sample, kind, optional=False)
        return [from_yaml(item, entry) for entry in value]
    return parameter.from_value(retype(value))


def retype(value: Any) -> Any:
    """The scalars inside a YAML list or mapping read as JSON where they are."""
    if isinstance(value, dict):
        return {key: retype(item) for key, item in value.items()}
    if isinstance(value, list):
        return [retype(item) for item in value]
    return json_or_text(value)
