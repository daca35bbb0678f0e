"""The picture of several backends shows every start, the laws, and a star at each champion."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.backend_figure import Reading, Writing, backends, lengths_of_curve

pytestmark = pytest.mark.quick
READ = [
    Reading("a", {16: [0.1, 0.11], 64: [0.3, 0.32]}, {n: n / 200 for n in lengths_of_curve(16, 64)}),
    Reading("b", {16: [0.2, 0.21]}, {}),
]
WRITE = [Writing("b", {"1 at 16": [40.0, 41.0]})]


def test_every_start_is_a_point_of_its_backend_on_the_side_of_its_question() -> None:
    figure = backends(READ, WRITE, title="a reads faster", champions={16: "a", "1 at 16": "b"})
    raw = [
        trace
        for trace in figure.data
        if trace.mode == "markers" and not trace.error_y.array and trace.name != "champion"
    ]
    assert [(trace.legendgroup, len(trace.y), trace.xaxis) for trace in raw] == [
        ("a", 4, "x"),
        ("b", 2, "x"),
        ("b", 2, "x2"),
    ]
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert named == ["a", "b", "champion"]
    assert list(figure.layout.xaxis.ticktext) == ["16", "64"]
    assert list(figure.layout.xaxis2.ticktext) == ["1 at 16"]


def test_the_star_stands_under_the_fastest_reader_and_over_the_fastest_writer() -> None:
    figure = backends(READ, WRITE, title="", champions={16: "a", "1 at 16": "b"})
    left, right = (trace for trace in figure.data if trace.name == "champion")
    assert left.y[0] < 0.1
    assert right.y[0] > 41
    assert not [trace for trace in backends(READ, WRITE, title="").data if trace.name == "champion"]


def test_a_law_is_a_curve_between_its_lengths() -> None:
    (curve,) = (trace for trace in backends(READ, WRITE, title="").data if trace.mode == "lines")
    assert (curve.x[0], curve.x[-1]) == (16, pytest.approx(64))
    assert (curve.legendgroup, len(curve.x)) == ("a", 41)


def test_nothing_measured_is_no_picture() -> None:
    with pytest.raises(ParameterError, match="no backend was measured"):
        backends([], [], title="")
