"""The published site in a real browser with no network: figures drawn, nothing asked of anyone, legible everywhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Tab, chromium
from synthetic_lab import DONE, KILLED, make_lab

from labkit.lab.publish import publish

pytestmark = pytest.mark.browser

WAITING = "[...document.querySelectorAll('[data-plot]')].every(area => area.querySelector('.main-svg, .problem'))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_lab(tmp_path_factory.mktemp("a lab with spaces") / "lab")
    broken = root / "data" / "runs" / KILLED / "figure.json"
    broken.write_text('{"data": [{"type": "scatter", "y": {"dtype": "f8", "bdata": "AAAA"}}], "layout": {}}')
    publish(root)
    return root / "site"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium() as opened:
        yield opened


def plots(tab: Tab) -> int:
    return int(tab.evaluate("document.querySelectorAll('.plot-area.js-plotly-plot').length"))


def test_a_run_page_draws_each_figure_with_no_network_and_asks_nobody_for_anything(site: Path, tab: Tab) -> None:
    tab.scheme("light")
    tab.size(1100, 900)
    tab.open(site / "runs" / DONE / "index.html", WAITING)
    assert plots(tab) == 3 == tab.evaluate("document.querySelectorAll('[data-plot]').length")
    assert tab.evaluate(
        "[...document.querySelectorAll('.plot-area')].every(a => a.querySelectorAll('.main-svg').length > 1)"
    )
    points = tab.evaluate("document.querySelectorAll('.plot-area')[0].querySelectorAll('.scatterlayer .point').length")
    assert points == 60 + 6  # ten repetitions of six widths, and six means
    assert {os.path.splitext(url)[1] for url in tab.requests if url.startswith("file:")} >= {".html", ".css", ".js"}
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.complaints == []


def test_no_button_of_a_figure_leads_off_the_page(site: Path, tab: Tab) -> None:
    mouse = "q.includes('hover: hover') ? {matches: true} : real(q)"  # headless Chromium has no mouse, so no buttons
    tab.before_scripts(f"const real = window.matchMedia.bind(window); window.matchMedia = (q) => {mouse};")
    tab.open(site / "runs" / DONE / "index.html", WAITING)
    titles = tab.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title || '').join('|')")
    assert "cloud" not in titles.lower()
    assert "share" not in titles.lower()
    assert "Download plot" in titles
    assert tab.evaluate("document.querySelectorAll('.modebar a[href]').length") == 0


def test_a_figure_plotly_cannot_draw_says_so_in_its_place(site: Path, tab: Tab) -> None:
    tab.open(site / "runs" / KILLED / "index.html", WAITING)
    assert "could not be drawn" in tab.evaluate("document.querySelector('.plot-area .problem').textContent")


def test_a_figure_whose_data_are_lost_says_so_and_the_others_are_drawn(site: Path, tab: Tab) -> None:
    page = site / "runs" / DONE / "index.html"
    damaged = page.with_name("damaged.html")
    damaged.write_text(page.read_text().replace('data-figure="figure-2"', 'data-figure="figure-9"'))
    tab.open(damaged, WAITING)
    assert plots(tab) == 2
    assert "could not be drawn" in tab.evaluate("document.querySelector('.plot-area .problem').textContent")


@pytest.mark.parametrize(
    "page", ["index.html", "findings.html", f"runs/{DONE}/index.html", f"runs/{KILLED}/index.html"]
)
def test_a_phone_shows_the_page_without_scrolling_sideways(site: Path, tab: Tab, page: str) -> None:
    tab.size(390, 800)
    tab.open(site / page, WAITING)
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert tab.evaluate(
        "[...document.querySelectorAll('.main-svg')].every(s => s.getBoundingClientRect().width <= 390)"
    )


def test_a_dark_page_has_light_text_in_its_figures_and_a_light_page_dark_text(site: Path, tab: Tab) -> None:
    tab.size(1100, 900)
    luminance = (
        "(() => { const c = getComputedStyle(document.querySelector('.plot-area .xtick text')).fill.match(/\\d+/g);"
        "return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; })()"
    )
    found = {}
    for name in ("light", "dark"):
        tab.scheme(name)
        tab.open(site / "runs" / DONE / "index.html", WAITING)
        found[name] = tab.evaluate(luminance)
    assert found["light"] < 80
    assert found["dark"] > 180


def test_the_keyboard_reaches_the_skip_link_first_and_the_folded_code(site: Path, tab: Tab) -> None:
    tab.open(site / "runs" / DONE / "index.html", WAITING)
    for key in ("rawKeyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=key, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("[...document.querySelectorAll('details')].every(d => d.querySelector('summary'))")
    tab.evaluate("document.querySelector('details.code summary').focus()")
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
