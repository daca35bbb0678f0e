"""The picture of several backends shows every start, the laws, and a star at each champion."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.pictures.backends import Reading, Writing, backends, lengths_of_curve

pytestmark = pytest.mark.quick
READ = [
    Reading("a", "ub 16", {16: [0.1, 0.11], 64: [0.3, 0.32]}, {n: n / 200 for n in lengths_of_curve(16, 64)}),
    Reading("b", "ub 64", {16: [0.2, 0.21]}, {}),
]
WRITE = [Writing("b", "ub 64", {"1 at 16": [40.0, 41.0]})]


def test_every_start_is_a_point_of_its_backend_on_the_side_of_its_question() -> None:
    figure = backends(READ, WRITE, title="a reads faster", champions={16: "a, ub 16", "1 at 16": "b, ub 64"})
    raw = [
        trace
        for trace in figure.data
        if trace.mode == "markers" and not trace.error_y.array and trace.name != "champion"
    ]
    assert [(trace.legendgroup, len(trace.y), trace.xaxis) for trace in raw] == [
        ("a, ub 16", 4, "x"),
        ("b, ub 64", 2, "x"),
        ("b, ub 64", 2, "x2"),
    ]
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert named == ["a, ub 16", "b, ub 64", "champion"]
    assert list(figure.layout.xaxis.ticktext) == ["16", "64"]
    assert list(figure.layout.xaxis2.ticktext) == ["1 at 16"]


def test_the_star_stands_under_the_fastest_reader_and_over_the_fastest_writer() -> None:
    figure = backends(READ, WRITE, title="", champions={16: "a, ub 16", "1 at 16": "b, ub 64"})
    left, right = (trace for trace in figure.data if trace.name == "champion")
    assert left.y[0] < 0.1
    assert right.y[0] > 41
    assert not [trace for trace in backends(READ, WRITE, title="").data if trace.name == "champion"]


def test_a_law_is_a_curve_between_its_lengths() -> None:
    (curve,) = (trace for trace in backends(READ, WRITE, title="").data if trace.mode == "lines")
    assert (curve.x[0], curve.x[-1]) == (16, pytest.approx(64))
    assert (curve.legendgroup, len(curve.x)) == ("a, ub 16", 41)


def test_nothing_measured_is_no_picture() -> None:
    with pytest.raises(ParameterError, match="no backend was measured"):
        backends([], [], title="")


def test_backends_differ_by_colour_and_their_settings_by_dash_and_symbol() -> None:
    some = [Reading(name, f"ub {ub}", {16: [0.1], 64: [0.2]}, {16: 0.1, 64: 0.2}) for name in "ab" for ub in (16, 64)]
    lines = [trace for trace in backends(some, [], title="").data if trace.mode == "lines"]
    means = [trace for trace in backends(some, [], title="").data if trace.showlegend]
    assert [line.line.color == lines[0].line.color for line in lines] == [True, True, False, False]
    assert len({(line.line.color, line.line.dash) for line in lines}) == 4
    assert len({trace.marker.symbol for trace in means}) == 4
