"""The picture of a ladder: its law's line is the law, residents are steps from the first submit, the slots a line."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.pictures.ladder import Ladder, ladders
from labkit.measure.serving.residents import Steps
from labkit.measure.step_law import fit_steps


def test_each_ladder_has_its_points_its_law_its_streams_and_its_residents() -> None:
    law = fit_steps([1, 2, 4], [[0.012] * 2, [0.014] * 2, [0.018] * 2])
    rates = {1: [83.0, 84.0], 2: [142.0, 143.0], 4: [222.0, 223.0]}
    each = {n: [value / n for value in values] for n, values in rates.items()} | {8: [25.0, 26.0]}
    one = Ladder("labkit", rates, each, each, law, Steps((10.5, 11.0, 12.0), (2, 4, 0)), 10.0, 4)
    figure = ladders([one, Ladder("other", rates, each, each)], all_title="all", title="More of them is more")
    shown = {trace.name: trace for trace in figure.data if trace.legendgroup == "labkit"}
    assert list(shown["slowest"].x) == [1, 2, 4, 8]
    line = shown["by its law"]
    assert (line.x[0], line.x[-1]) == pytest.approx((1, 4))
    assert line.y[-1] == pytest.approx(4 / 0.018)
    steps = next(trace for trace in figure.data if trace.line.shape == "hv")
    assert (list(steps.x), list(steps.y)) == ([0.5, 1.0, 2.0], [2, 4, 0])
    assert list(shown["slots"].y) == [4, 4]
    assert len({trace.marker.symbol for trace in figure.data if trace.mode == "markers"}) == 4
    assert sum(bool(trace.showlegend is not False) for trace in figure.data) == 2


def test_no_ladder_is_refused() -> None:
    with pytest.raises(ParameterError, match="no ladder"):
        ladders([], all_title="all", title="none")
