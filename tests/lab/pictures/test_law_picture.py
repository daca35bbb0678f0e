"""The picture of a law shows every repetition, the law and what it leaves, and refuses cells that do not belong."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.lab.pictures.law import Fitted, laws
from labkit.measure.laws import fit_law

X = [4.0, 1.0, 2.0]
TIMES = [[4.5, 4.4], [1.5, 1.6], [2.5, 2.5]]


def fitted(**more: object) -> Fitted:
    law = fit_law({"start": np.ones(3), "token": X}, TIMES)
    return Fitted(law, X, TIMES, **{"name": "t = a + b n", "x_title": "n", "y_title": "seconds", **more})  # type: ignore[arg-type]


def test_every_repetition_stands_above_and_what_the_law_leaves_of_it_below() -> None:
    part = fitted()
    figure = laws([part], title="It is a line", subtitle="2 repetitions")
    raw, line, off = figure.data
    assert list(zip(raw.x, raw.y, strict=True)) == [(1, 1.5), (1, 1.6), (2, 2.5), (2, 2.5), (4, 4.5), (4, 4.4)]
    assert list(line.x) == [1, 2, 4]
    assert list(line.y) == pytest.approx([part.law.fitted[i] for i in (1, 2, 0)])
    assert list(off.y) == pytest.approx([100 * (t / part.law.fitted[i] - 1) for i in (1, 2, 0) for t in TIMES[i]])
    assert (raw.yaxis, off.yaxis) == ("y", "y2")
    assert figure.layout.title.text == "It is a line"
    assert [note.text for note in figure.layout.annotations] == ["t = a + b n"]


def test_lines_differ_by_symbol_and_dash_and_stand_in_the_legend() -> None:
    figure = laws([fitted(), fitted(series=["1 stream", "2 streams", "1 stream"])], title="Two laws")
    named = [trace for trace in figure.data if trace.showlegend]
    assert [trace.name for trace in named] == ["2 streams", "1 stream"]
    assert len({trace.marker.symbol for trace in named}) == 2
    assert len({trace.line.dash for trace in figure.data[3:] if trace.mode == "lines"}) == 2


def test_a_law_is_not_drawn_over_cells_it_was_not_fitted_to() -> None:
    with pytest.raises(ParameterError, match="a law over 3 cells"):
        fitted(series=["1 stream"])
    with pytest.raises(ParameterError, match="no law"):
        laws([], title="Nothing")
