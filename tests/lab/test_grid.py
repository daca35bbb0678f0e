"""The grid of a sweep: what its text means, typed by the notebook, and what is refused before anything starts."""

from typing import Any

import pytest

from labkit.errors import ParameterError
from labkit.lab.grid import points_of, read_grid
from labkit.lab.levers import LEVERS
from labkit.lab.parameters import read_parameters
from labkit.lab.series import read_duration

KNOWN = read_parameters(
    'batch = 1\nkv: str = "f16"\nwidths: list = [1, 2]\nrate = 1.5\nplanned = False\nnames = ["a"]\nlimit: int | None = None\n'
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch=1,8,32", [1, 8, 32]),
        ("batch=1-4", [1, 2, 3, 4]),
        ("batch=0-4096+2048", [0, 2048, 4096]),
        ("batch=1-32*2", [1, 2, 4, 8, 16, 32]),
        ("batch=1-30*2", [1, 2, 4, 8, 16]),
        ("batch=5-5", [5]),
        ("batch=1,4-8+2,100", [1, 4, 6, 8, 100]),
        ("kv=f16,f32", ["f16", "f32"]),
        ("kv=1-4", ["1-4"]),  # text stays text
        ('kv="a,b",c', ["a,b", "c"]),
        ("widths=1,8", [[1], [8]]),
        ("widths=[1,8],[2]", [[1, 8], [2]]),
        ("widths=1-4*2", [[1], [2], [4]]),
        ("rate=1-3,0.5", [1.0, 2.0, 3.0, 0.5]),
        ("planned=true,false", [True, False]),
        ('names=["a,b"],["c"]', [["a,b"], ["c"]]),
        ("limit=None,3", [None, 3]),
    ],
)
def test_values_and_ranges_are_typed_by_the_notebook(text: str, values: list[Any]) -> None:
    (found,) = read_grid([text], KNOWN, LEVERS).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["batch"], r"--grid 'batch' is not NAME=VALUE"),
        (["batch="], "is not NAME=VALUE"),
        (["=1,2"], "is not NAME=VALUE"),
        (["batch=1,,2"], "value 2 of '1,,2' is empty"),
        (["batch=1,2,"], "is empty"),
        (["batch=1,1"], "gives batch the value 1 twice"),
        (["batch=1-4,3"], "gives batch the value 3 twice"),
        (["batch=8-1"], "range '8-1' has no end"),
        (["batch=0-8*2"], "range '0-8\\*2' has no end"),
        (["batch=1-8*1"], "has no end"),
        (["batch=1-8+0"], "has no end"),
        (["batch=1-99999999"], "more than 10,000 values"),
        (["batch=1-9999", "rate=1-9999"], "the grid has 99,980,001 points"),
        (["batch=x"], "parameter batch takes a whole number, not 'x'"),
        (["batch=1.5"], "takes a whole number"),
        (["flux=1,2"], "unknown parameter 'flux'; this experiment takes: batch=1"),
        (["batch=1", "batch=2"], "gives batch twice"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_value(texts: list[str], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        read_grid(texts, KNOWN, LEVERS)


def test_another_name_of_a_lever_means_the_one_parameter_that_sets_it() -> None:
    only_widths = {name: parameter for name, parameter in KNOWN.items() if name != "batch"}
    assert read_grid(["batch=1,8"], only_widths, LEVERS) == {"widths": [[1], [8]]}
    assert read_grid(["batch=1,8"], KNOWN, LEVERS) == {"batch": [1, 8]}
    with pytest.raises(ParameterError, match="unknown parameter 'streams'"):  # batch and widths both set it
        read_grid(["streams=1,8"], KNOWN, LEVERS)


def test_the_points_are_every_combination_the_last_name_the_fastest() -> None:
    assert points_of({"batch": [1, 8], "kv": ["f16", "f32"]}) == [
        {"batch": 1, "kv": "f16"}, {"batch": 1, "kv": "f32"}, {"batch": 8, "kv": "f16"}, {"batch": 8, "kv": "f32"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("90m", 5400), ("90min", 5400), ("1h30m", 5400), ("45s", 45), ("10", 10), ("0.5h", 1800)],
)
def test_a_budget_is_read_as_a_person_writes_it(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "h", "-1h", "1x", "six hours", "1e9h", "nan"])
def test_a_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="--budget"):
        read_duration(text)
