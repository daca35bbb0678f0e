"""The picture of power draws what there is, raw points beside every mean, and no panel without data."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.pictures.power import Drawn, Panels, Peak, power_figure, power_laws
from labkit.measure.sensor import Pulse

PEAK = Peak("584 W for 1 ms", Pulse(200.0, 584.0, 0.001), {0.01: 238.4, 0.1: 203.84})
GB_S = [1000.0, 2000.0, 3000.0]


def drawn(name: str, family: str = "") -> Drawn:
    return Drawn(
        name,
        {1: [2.7, 2.8], 8: [0.34, 0.35]},
        {n: [(gb, 300 + 0.1 * gb)] for n, gb in zip((1, 4, 8), GB_S, strict=True)},
        family,
    )


def test_all_three_panels_with_their_points_and_the_law() -> None:
    both = (drawn("f16", "a"), drawn("q4", "a"))
    (law,) = power_laws(both)
    assert law.cells == 6
    assert law.words().startswith("P0 = 300 W [300, 300], e = 100 pJ a byte [100, 100], over 6 cells, off by 0%")
    figure = power_figure(Panels((PEAK,), 250.0, both, (law,)), title="a claim")
    assert [one.text for one in figure.layout.annotations][:3] == [
        "a mean over its window hides a peak", "a token decoded", "power over implied bandwidth",
    ]  # fmt: skip
    lines = [trace for trace in figure.data if trace.xaxis == "x3" and trace.mode == "lines"]
    assert list(lines[0].y) == pytest.approx([300.0, 600.0])
    raw = [trace for trace in figure.data if trace.xaxis == "x2" and trace.mode == "markers"]
    assert [list(trace.y) for trace in raw] == [[2.7, 2.8, 0.34, 0.35]] * 2
    assert figure.layout.title.text == "a claim"
    assert (
        len({(trace.line.color, trace.line.dash) for trace in figure.data if trace.xaxis == "x2" and trace.line.dash})
        == 2
    )


def test_what_there_is_nothing_of_is_left_out() -> None:
    assert {trace.xaxis for trace in power_figure(Panels((PEAK,), 250.0), title="t").data} == {"x"}
    assert {trace.xaxis for trace in power_figure(Panels(drawn=(drawn("f16"),)), title="t").data} == {"x", "x2"}
    with pytest.raises(ParameterError, match="there is no power to draw"):
        power_figure(Panels(), title="t")


def test_two_cells_make_no_law_and_cells_of_unequal_blocks_one_of_their_means() -> None:
    few = Drawn("f16", {1: [2.7], 8: [0.3]}, {1: [(1000.0, 400.0)], 8: [(2000.0, 500.0)]}, "a")
    uneven = Drawn("q4", {}, {1: [(1000.0, 390.0), (1000.0, 410.0)], 4: [(1500.0, 450.0)], 8: [(2000.0, 500.0)]}, "b")
    (law,) = power_laws([few, uneven])
    assert (law.family, law.cells) == ("b", 3)
    assert law.law.coefficients["P0"].estimate == pytest.approx(300.0)
    assert law.law.coefficients["e"].estimate == pytest.approx(0.1)
