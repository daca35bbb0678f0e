"""Parameters: read from a notebook's cell, and set from text and files, typed by the notebook's own defaults."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.lab.parameters import read_parameter_file, read_parameters, set_parameters

CELL = '''
"""What can be changed."""
quick = True  # a look, not a result
sha = "abc"  # of the "#1" driver
path = "a#b"
width: int = 8
rate = 4.0
scale: float = 1
widths = [1, 2, 4]  # batch sizes
shares = [0.5, 1]
names = ["a", "b"]
mixed = [1, "a", None]
empty = []
options = {"depth": 2}
pair = (1, 2)
model: str | None = None
kind: "str | None" = "q4"
limit: Optional[int] = None
anything = None
low = -1
'''
KNOWN = read_parameters(CELL)


def test_every_literal_is_read_with_its_help() -> None:
    assert list(KNOWN) == [
        *("quick", "sha", "path", "width", "rate", "scale", "widths", "shares", "names", "mixed"),
        *("empty", "options", "pair", "model", "kind", "limit", "anything", "low"),
    ]
    assert KNOWN["quick"].help == "a look, not a result"
    assert KNOWN["sha"].help == 'of the "#1" driver'
    assert KNOWN["path"].help == ""
    assert KNOWN["path"].default == "a#b"
    assert KNOWN["low"].default == -1
    assert (KNOWN["scale"].kind, KNOWN["scale"].default) == (float, 1)
    assert [KNOWN[name].optional for name in ("model", "kind", "limit", "anything", "sha")] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sha", "12e4567", "12e4567"),
        ("sha", "007", "007"),
        ("sha", "yes", "yes"),
        ("sha", "None", "None"),
        ("sha", "", ""),
        ("sha", '{"a"\\n}', '{"a"\\n}'),
        ("sha", "naïve 🙂", "naïve 🙂"),
        ("width", "16", 16),
        ("width", "007", 7),
        ("width", "-3", -3),
        ("width", str(2**80), 2**80),
        ("rate", "1e-5", 1e-5),
        ("rate", "3", 3.0),
        ("rate", "-.5", -0.5),
        ("rate", "inf", math.inf),
        ("rate", "-inf", -math.inf),
        ("scale", "1.5", 1.5),
        ("quick", "false", False),
        ("quick", "True", True),
        ("widths", "1,8, 32", [1, 8, 32]),
        ("widths", "[1, 8]", [1, 8]),
        ("widths", "", []),
        ("shares", "1,0.25", [1.0, 0.25]),
        ("shares", "[1, 0.25]", [1.0, 0.25]),
        ("names", "007,yes", ["007", "yes"]),
        ("mixed", "1,x,null", [1, "x", None]),
        ("empty", "1,x", [1, "x"]),
        ("options", '{"depth": 3, "to": [1, {"a": null}]}', {"depth": 3, "to": [1, {"a": None}]}),
        ("pair", "3,4", [3, 4]),
        ("model", "None", None),
        ("model", "12e4567", "12e4567"),
        ("kind", "None", None),
        ("kind", "null", "null"),
        ("limit", "5", 5),
        ("limit", "null", None),
        ("anything", "5", 5),
        ("anything", "None", None),
        ("anything", "[1]", [1]),
        ("anything", "12e4567", "12e4567"),
        ("anything", "NaN", "NaN"),
        ("anything", "007", "007"),
    ],
)
def test_text_means_what_the_default_says(name: str, text: str, value: Any) -> None:
    read = set_parameters(KNOWN, {name: text})[name]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number_can_be_asked_for_by_name() -> None:
    assert math.isnan(set_parameters(KNOWN, {"rate": "nan"})["rate"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("width", "1.5", "width takes a whole number, not '1.5' (its default is 8)"),
        ("width", "1e3", "whole number"),
        ("width", "", "whole number"),
        ("width", "None", "whole number"),
        ("limit", "x", "a whole number or None"),
        ("rate", "fast", "a number"),
        ("rate", "1e999", "a number"),
        ("quick", "yes", "true or false"),
        ("quick", "1", "true or false"),
        ("widths", "1,x", "a whole number"),
        ("widths", "[1, 2.5]", "a whole number"),
        ("widths", "[1, 2", "is not JSON"),
        ("options", "[1]", "a dict"),
        ("options", "depth=1", "is not JSON"),
        ("options", '{"a": NaN}', "is not JSON"),
    ],
)
def test_text_of_another_type_is_refused_with_the_default(name: str, text: str, says: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        set_parameters(KNOWN, {name: text})
    assert says in str(refusal.value)
    assert name in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"unknown parameter 'widht'.*width=8.*model=None"):
        set_parameters(KNOWN, {"widht": "8"})


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("n = 4\ntotal = n * 2", "line 2: total is not a literal"),
        ("import os", "may hold only `name = literal`"),
        ("a = b = 1", "may hold only"),
        ("a, b = 1, 2", "may hold only"),
        ("d = dict(x=1)", "d is not a literal"),
        ("n = 1\nn = 2", "sets n twice"),
        ("n =", "is not Python: line 1"),
        ("s = {1, 2}", "s is a set"),
        ("b = b'x'", "b is a bytes"),
        ("d = {1: 2}", "d is a dict"),
        ("hf_token = 'x'", "hf_token would put a secret into the run's record"),
        ("password = ''", "secret"),
    ],
)
def test_a_cell_that_is_not_literals_is_refused(cell: str, says: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        read_parameters(cell)
    assert says in str(refusal.value)


def test_names_that_only_sound_secret_are_parameters() -> None:
    assert list(read_parameters("tokens = 24\nmax_tokens = 4\ntokens_per_key = 1\nkey = 'width'\nfirst_token = 0")) == [
        *("tokens", "max_tokens", "tokens_per_key", "key", "first_token")
    ]


def test_yaml_scalars_mean_what_they_say(tmp_path: Path) -> None:
    file = tmp_path / "night.yaml"
    file.write_text(
        "sha: 12e4567\npath: 012\nmodel: yes\nkind: 12:30\nwidth: 12\nrate: 1e-5\nquick: false\n"
        "widths: [1, 8]\nnames: [yes, 007]\noptions: {depth: 3, day: 2026-01-01}\nanything: 1\nlimit: null\n"
    )
    assert read_parameter_file(file, KNOWN) == {
        "sha": "12e4567",
        "path": "012",
        "model": "yes",
        "kind": "12:30",
        "width": 12,
        "rate": 1e-5,
        "quick": False,
        "widths": [1, 8],
        "names": ["yes", "007"],
        "options": {"depth": 3, "day": "2026-01-01"},
        "anything": 1,
        "limit": None,
    }


def test_json_files_are_typed_strictly(tmp_path: Path) -> None:
    file = tmp_path / "night.json"
    file.write_text('{"sha": "7", "rate": 3, "widths": [1, 2]}')
    assert read_parameter_file(file, KNOWN) == {"sha": "7", "rate": 3.0, "widths": [1, 2]}
    for text, says in (
        ('{"sha": 7}', "sha takes text, not 7"),
        ('{"width": true}', "a whole number"),
        ("[1]", "pairs"),
    ):
        file.write_text(text)
        with pytest.raises(ParameterError, match=says):
            read_parameter_file(file, KNOWN)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.yaml", "a: [1", "is not YAML"),
        ("a.yaml", "- 1", "`name: value` pairs"),
        ("a.json", "{", "is not JSON"),
        ("a.txt", "a: 1", "must end in .json, .yaml or .yml"),
        ("a.yaml", "unheard: 1", "unknown parameter 'unheard'"),
    ],
)
def test_a_parameter_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, content: str, says: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ParameterError, match=says):
        read_parameter_file(file, KNOWN)


def test_a_missing_parameter_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"cannot read the parameter file .*gone\.json"):
        read_parameter_file(tmp_path / "gone.json", KNOWN)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("path", Path("models/a.gguf"), "models/a.gguf"),
        ("width", np.int64(8), 8),
        ("rate", np.float32(0.5), 0.5),
        ("rate", 3, 3.0),
        ("quick", np.bool_(False), False),
        ("widths", np.array([1, 2]), [1, 2]),
        ("widths", (1, 2), [1, 2]),
        ("pair", (3, 4), [3, 4]),
        ("options", {"a": {"b": [1, None, "é"]}}, {"a": {"b": [1, None, "é"]}}),
        ("anything", [Path("a"), np.int8(1)], ["a", 1]),
        ("options", {1: "a"}, {"1": "a"}),
        ("model", None, None),
    ],
)
def test_values_from_python_become_what_a_record_can_hold(name: str, given: Any, value: Any) -> None:
    found = KNOWN[name].from_value(given)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("sha", datetime(2026, 12, 1, tzinfo=UTC), "parameter sha takes text, not datetime.datetime"),
        (
            "anything",
            datetime(2026, 12, 1, tzinfo=UTC),
            "parameter anything cannot hold datetime.datetime.*give it as text",
        ),
        ("anything", {"a": {1, 2}}, "parameter anything cannot hold"),
        ("width", True, "takes a whole number, not True"),
        ("width", np.float64(8), "takes a whole number, not 8.0"),
        ("empty", [b"bytes"], "parameter empty cannot hold"),
    ],
)
def test_values_that_a_record_cannot_hold_are_refused(name: str, given: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        KNOWN[name].from_value(given)
