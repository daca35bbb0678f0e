"""Claims against physics as points: the published record's own figures, and the picture drawn of them."""

from pathlib import Path

import pytest

from labkit.audit.claims import read_claims
from labkit.audit.implied import implied_points
from labkit.audit.report import audit
from labkit.errors import ParameterError
from labkit.lab.pictures.implied import implied_figure

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def points():
    evidence = read_claims(ROOT / "data" / "claims" / "r9700.csv").evidence(ROOT)
    return {point.name: point for point in implied_points(evidence.observations, audit(evidence))}


@pytest.mark.parametrize(
    ("name", "unit", "implied", "share"),
    [
        ("AMA-batch-32", "GB/s", 1724 / 32 * 14.234, 1.20),  # 7.117e9 weights of 2 bytes, once a step
        ("DIS-vulkan-tg128", "GB/s", 167.6 * 3.3 * 0.58, 0.50),
        ("NIK-9b-plain-n60", "GB/s", 1915.5 / 60 * 8 * 0.81, 0.32),
        ("DIS-hip-pp2048", "TFLOP/s", 4635 * 6.6e-3, 0.08),
        ("NIK-9b-prefill-code-edit", "TFLOP/s", 222_971 * 16e-3, 9.17),
        ("BLU-matvec-Q6_K-tuned", "GB/s", 595, 0.93),
    ],
)
def test_a_published_number_implies_what_its_arithmetic_gives(points, name, unit, implied, share):
    point = points[name]
    assert point.unit == unit
    assert point.implied == pytest.approx(implied, rel=2e-3)
    assert point.share == pytest.approx(share, abs=0.01)


def test_only_the_impossible_lie_beyond_the_diagonal(points):
    assert {name for name, point in points.items() if point.share > 1} == {
        "AMA-batch-32", "AMA-wall-32", "NIK-9b-prefill-code-edit",
    }  # fmt: skip
    assert all(point.outcome == "fail" for point in points.values() if point.share > 1.02)


def test_a_prompt_found_in_a_cache_implies_nothing(points):
    assert "NIK-9b-prefill-cold" in points
    assert "NIK-9b-prefill-prefix-hit" not in points


def test_the_picture_has_logarithmic_axes_a_diagonal_and_each_name(points):
    figure = implied_figure(list(points.values()), title="A claim", subtitle="n")
    assert {axis.type for axis in (*figure.select_xaxes(), *figure.select_yaxes())} == {"log"}
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(lines) == 2
    assert all(list(line.x) == list(line.y) for line in lines)
    shown = {row[0] for trace in figure.data if trace.mode == "markers" for row in trace.customdata}
    assert shown == set(points)
    looks = {(trace.marker.symbol, trace.marker.color) for trace in figure.data if trace.mode == "markers"}
    assert len({symbol for symbol, _ in looks}) == len({colour for _, colour in looks}) == len(looks)
    assert any("AMA-batch-32<br>AMA-wall-32" in (note.text or "") for note in figure.layout.annotations)


def test_nothing_to_draw_is_one_line():
    with pytest.raises(ParameterError, match="nothing to draw"):
        implied_figure([], title="A claim")
