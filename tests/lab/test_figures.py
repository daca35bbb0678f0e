"""The lab's figures: what they must show (every sample, the interval, zero), and how a PNG is made or refused."""

import hashlib
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from labkit.errors import ParameterError
from labkit.lab import figures, png, template
from labkit.measure.workloads.images import make_png

WIDE = {"width": [1, 1, 2, 2, 8, 8], "tok_s": [10.0, 11.0, 19.0, 21.0, 60.0, 66.0]}
TIDY = {
    "cell": [f'{{"width":{width}}}' for width in WIDE["width"]] + ['{"kv":"f16"}'],
    "metric": ["tok_s"] * 6 + ["tok_s"],
    "value": [*WIDE["tok_s"], 1.0],
}


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two `#rrggbb` colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_palette_is_okabe_and_itos_and_the_template_is_the_default() -> None:
    assert figures.register() == "lab" == pio.templates.default
    published = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert set(template.PALETTE) == published == set(pio.templates["lab"].layout.colorway)


def test_text_is_legible_on_a_white_and_on_a_dark_notebook() -> None:
    assert contrast(template.NEUTRAL, "#ffffff") > 4
    assert contrast(template.NEUTRAL, "#111111") > 4


def test_an_interval_is_students_t_on_the_logarithms() -> None:
    found = figures.interval(
        [math.exp(1), math.exp(3)]
    )  # logs 1 and 3: mean 2, standard error 1, t(1 degree) = 12.7062
    assert found.n == 2
    assert [math.log(value) for value in found[:3]] == pytest.approx([2, 2 - 12.7062047, 2 + 12.7062047], rel=1e-6)
    plain = figures.interval([-1.0, 1.0])
    assert plain[:3] == pytest.approx((0, -12.7062047, 12.7062047), rel=1e-6)


def test_an_interval_of_one_sample_is_that_sample_and_of_none_is_refused() -> None:
    assert figures.interval([5.0]) == pytest.approx((5, 5, 5, 1))
    for wrong in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(ParameterError, match="finite value"):
            figures.interval(wrong)


def test_scaling_shows_each_repetition_the_geometric_mean_and_the_ceiling() -> None:
    ceiling = figures.Ceiling("read bandwidth", {1: 50.0, 8: 400.0})
    figure = figures.scaling(WIDE, "width", "tok_s", title="It scales", subtitle="2 repetitions", ceiling=ceiling)
    raw, mean, limit = figure.data
    assert list(raw.y) == WIDE["tok_s"]
    assert raw.mode == "markers"
    assert list(mean.y) == pytest.approx([math.sqrt(110), math.sqrt(19 * 21), math.sqrt(60 * 66)])
    for index, (low, high, n) in enumerate(mean.customdata):
        assert mean.y[index] - mean.error_y.arrayminus[index] == pytest.approx(low)
        assert mean.y[index] + mean.error_y.array[index] == pytest.approx(high)
        assert n == 2
    assert (limit.line.dash, limit.name, list(limit.y)) == ("dash", "read bandwidth", [50.0, 400.0])
    assert figure.layout.title.text == "It scales"
    assert figure.layout.title.subtitle.text == "2 repetitions"
    assert figure.layout.xaxis.type == "log"
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 8]
    assert figure.layout.template.layout.yaxis.rangemode == "tozero"


def test_a_tidy_table_and_a_wide_one_give_the_same_figure() -> None:
    import pandas

    wide = figures.scaling(WIDE, "width", "tok_s", title="t").to_json()
    assert figures.scaling(TIDY, "width", "tok_s", title="t").to_json() == wide
    assert figures.scaling(pandas.DataFrame(TIDY), "width", "tok_s", title="t").to_json() == wide
    assert figures.scaling(pandas.DataFrame(WIDE), "width", "tok_s", title="t").to_json() == wide


def test_series_differ_by_symbol_and_dash_as_well_as_colour() -> None:
    table = {"n": [1, 2] * 3, "v": [1.0, 2, 3, 4, 5, 6], "kv": ["f16", "f16", "f32", "f32", "q8", "q8"]}
    figure = figures.scaling(table, "n", "v", title="t", series="kv")
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [line.name for line in lines] == ["f16", "f32", "q8"]
    for looks in ([x.marker.symbol for x in lines], [x.line.dash for x in lines], [x.line.color for x in lines]):
        assert len(set(looks)) == 3


def test_bars_start_at_zero_and_show_each_repetition_without_overlap() -> None:
    figure = figures.bars({"kv": ["f16", "f16", "f32"], "ms": [4.0, 9.0, 5.0]}, "kv", "ms", title="t")
    bar, points = figure.data
    assert list(bar.y) == pytest.approx([6, 5])
    assert figure.layout.yaxis.rangemode == "tozero"
    assert list(figure.layout.xaxis.ticktext) == ["f16", "f32"]
    assert list(points.y) == [4.0, 9.0, 5.0]
    assert len(set(points.x)) == 3


def test_pairs_show_the_ratios_and_the_threshold() -> None:
    figure = figures.pairs({0: 2.0, 1: 8.0}, title="t", threshold=3.0)
    assert list(figure.data[0].y) == [2.0, 8.0]
    assert [shape.y0 for shape in figure.layout.shapes if shape.type == "line"] == pytest.approx([4.0, 3.0])


@pytest.mark.parametrize("draw", [figures.scaling, figures.bars])
def test_a_figure_is_a_plain_one_and_the_same_each_time(draw: Any) -> None:
    figure = draw(WIDE, "width", "tok_s", title="t")
    assert type(figure) is go.Figure
    assert draw(WIDE, "width", "tok_s", title="t").to_json() == figure.to_json()


@pytest.mark.parametrize(
    ("table", "y", "named"),
    [(WIDE, "speed", "'speed'"), (TIDY, "speed", "'speed'"), ({"width": [], "v": []}, "v", "'v'")],
)
def test_a_column_or_metric_that_is_not_there_is_named(table: Any, y: str, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        figures.scaling(table, "width", y, title="t")


def test_a_long_claim_is_broken_into_lines() -> None:
    figure = figures.claim(go.Figure(), "word " * 40)
    lines = figure.layout.title.text.split("<br>")
    assert len(lines) == 3
    assert max(map(len, lines)) <= figures.TITLE_WIDTH


def test_a_subtitle_leaves_out_what_is_not_known() -> None:
    assert figures.describe(10, "llvmpipe", "0a67793c0ffee") == "10 repetitions · llvmpipe · commit 0a67793"
    assert figures.describe(device="llvmpipe") == "llvmpipe"


def test_units_in_a_columns_name_become_the_axis_title() -> None:
    assert figures.label("decode_tok_s") == "decode (tok/s)"
    assert figures.label("read_gb_s") == "read (GB/s)"
    assert figures.label("gpu_ms_step") == "gpu step (ms)"
    assert figures.label("j_per_token") == "j per token (J/tok)"
    assert figures.label("share_of_read_bandwidth") == "share of read bandwidth"
    assert figures.label("kv_type") == "kv type"


def test_without_chrome_no_png_is_written_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figure.json").write_text(figures.scaling(WIDE, "width", "tok_s", title="t").to_json())
    monkeypatch.setattr(png, "find_browser", lambda: None)
    assert figures.write_png(tmp_path / "figure.json", tmp_path / "figure.png") is False
    assert [path.name for path in tmp_path.iterdir()] == ["figure.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"layout": {}}', '{"data": 3}'])
def test_a_png_of_what_is_no_figure_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "figure.json").write_text(text)
    with pytest.raises(ParameterError, match="holds no plotly figure"):
        figures.write_png(tmp_path / "figure.json", tmp_path / "figure.png")


@pytest.mark.browser
def test_a_png_is_drawn_at_the_size_asked_for_on_white(tmp_path: Path) -> None:
    if png.find_browser() is None:
        pytest.fail("this test needs Chromium: apt-get install chromium")
    (tmp_path / "figure.json").write_text(figures.scaling(WIDE, "width", "tok_s", title="t").to_json())
    target = tmp_path / "new" / "figure.png"
    assert figures.write_png(tmp_path / "figure.json", target, width=400, height=300, scale=2) is True
    content = target.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (800, 600)
    assert [path.name for path in target.parent.iterdir()] == ["figure.png"]
    assert "paper_bgcolor" not in json.loads((tmp_path / "figure.json").read_text())["layout"]
    assert png.figure_shown(target) == hashlib.sha256((tmp_path / "figure.json").read_bytes()).hexdigest()


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks of a PNG, name and data, each with the checksum that belongs to it."""
    found, place = [], 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        named = content[place + 4 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size]) == (zlib.crc32(named),)
        found.append((named[:4], named[4:]))
        place += 12 + size
    return found


def test_a_png_says_which_figure_it_shows_and_is_otherwise_the_same_picture(tmp_path: Path) -> None:
    plain = make_png(3, 2)
    path = tmp_path / "marked.png"
    path.write_bytes(png.stamped(plain, "ab" * 32))
    assert png.figure_shown(path) == "ab" * 32
    found = chunks(path.read_bytes())
    assert found.pop(1) == (b"tEXt", b"labkit-figure\0" + b"ab" * 32)
    assert found == chunks(plain)
    path.write_bytes(plain)
    assert png.figure_shown(path) == png.figure_shown(tmp_path / "none.png") == ""
    assert png.stamped(b"no picture", "ab" * 32) == b"no picture"


def test_a_logarithmic_rate_needs_positive_samples():
    table = {"x": [1, 2, 4], "y": [1.0, 2.0, 4.0]}
    figure = figures.scaling(table, "x", "y", title="t", log_y=True)
    assert figure.layout.yaxis.type == "log"
    with pytest.raises(ParameterError, match="logarithmic axis needs positive values"):
        figures.scaling({"x": [1, 2], "y": [0.0, 1.0]}, "x", "y", title="t", log_y=True)
