"""The telemetry strips of a run's page: what is drawn, where the windows lie, and what damaged files come to."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from large_lab import requests, telemetry
from synthetic_lab import DONE, make_lab

from labkit.lab.publish import publish
from labkit.lab.publish.strips import COLUMNS, WIDTH, merged, telemetry_of, windows

WINDOW = [{"window_start_s": 2.0, "window_end_s": 4.0, "submit_s": 1.0, "last_token_s": 9.0}]


def rows(values: list[float | None], name: str = "power_w") -> list[dict[str, float | None]]:
    return [{"time_s": float(at), name: value} for at, value in enumerate(values)]


def path_of(svg: str) -> list[list[tuple[float, float]]]:
    """The pieces of a strip's line as points."""
    drawn = re.search(r'<path d="([^"]*)"', svg)
    assert drawn
    return [
        [(float(x), float(y)) for x, y in (point.split() for point in piece.split("L"))]
        for piece in drawn[1].split("M")[1:]
    ]


def bands_of(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"', svg)
    return [(float(x), float(x) + float(width)) for x, width in found]


def test_the_mean_while_measured_is_that_of_the_readings_inside_the_windows() -> None:
    found = telemetry_of(rows([10, 10, 100, 110, 120, 10, 10]), WINDOW)
    assert found
    (strip,) = found.strips
    assert (strip.low, strip.high, strip.inside) == (10, 120, 110)
    assert strip.words == "10 to 120 W, 110 W while measured"
    assert bands_of(strip.svg) == [(WIDTH * 2 / 6, WIDTH * 4 / 6)]
    assert found.marked == "the measured windows"


def test_without_windows_the_requests_time_is_marked_and_without_requests_nothing() -> None:
    assert windows([{"submit_s": 1.0, "last_token_s": 3.0}, {"submit_s": 2.0, "last_token_s": 5.0}]) == (
        [(1.0, 5.0)],
        "the requests at work",
    )
    found = telemetry_of(rows([1, 2, 3]), [])
    assert found
    assert found.marked == ""
    assert found.strips[0].inside is None
    assert bands_of(found.strips[0].svg) == []


def test_a_line_is_broken_where_the_card_said_nothing() -> None:
    found = telemetry_of(rows([5, 6, None, None, 7, 8]), [])
    assert found
    assert [len(piece) for piece in path_of(found.strips[0].svg)] == [2, 2]


def test_a_long_run_keeps_every_peak_in_few_points() -> None:
    values: list[float | None] = [50.0] * 100_000
    values[33_333], values[77_777] = 400.0, 1.0
    found = telemetry_of(rows(values), [])
    assert found
    points = [point for piece in path_of(found.strips[0].svg) for point in piece]
    assert len(points) <= 4 * COLUMNS
    assert min(y for _, y in points) == 4
    assert max(y for _, y in points) == 52
    assert all(a[0] <= b[0] for a, b in pairwise(points))


@pytest.mark.parametrize(
    "readings",
    [[], rows([5]), [{"time_s": 1.0, "power_w": None}] * 3, [{"power_w": 5.0}] * 4, rows([float("nan")] * 4)],
)
def test_readings_that_tell_nothing_are_not_drawn(readings: list[dict[str, float | None]]) -> None:
    assert telemetry_of(readings, WINDOW) is None


def test_spans_that_touch_are_one() -> None:
    assert merged([(5, 6), (1, 2), (2, 3), (5.5, 5.6), (9, 8)]) == [(1, 3), (5, 6)]


def test_what_held_the_card_back_and_who_shared_it_is_said_of_the_windows() -> None:
    readings = [
        {"time_s": float(at), "power_w": 9.0 + at, "limited": "power cap" if at == 3 else "", "others": at == 9}
        for at in range(10)
    ]
    found = telemetry_of(readings, WINDOW)
    assert found
    assert found.notes == ("Held back by power cap in 33.3 % of readings while measured.",)


def test_a_run_s_page_has_the_strips_of_its_card(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    folder = lab / "data" / "runs" / DONE
    (folder / "telemetry.csv").write_text(telemetry())
    (folder / "requests.jsonl").write_text(requests())
    publish(lab)
    page = (lab / "site" / "runs" / DONE / "index.html").read_text()
    assert page.count('<svg class="strip"') == 5
    assert "Load</strong> <span>0 to 98 %" in page
    assert "280 W while measured" in page
    (folder / "telemetry.csv").write_bytes(b"time_s,power_w\n1,\xff\n2,zero\n,,,\n")
    (folder / "requests.jsonl").write_text("{half\n")
    publish(lab)
    page = (lab / "site" / "runs" / DONE / "index.html").read_text()
    assert 'id="telemetry"' not in page
