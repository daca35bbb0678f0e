"""Every page of a published lab in a browser without a network: drawn, quiet, legible on a phone, usable by keyboard."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab, chromium
from large_lab import add_run, make_large_lab, render, requests, telemetry
from synthetic_lab import DONE, make_lab, record, write_run

from labkit.lab.publish import Report, publish

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAITING = "[...document.querySelectorAll('[data-plot]')].every(area => area.querySelector('.main-svg, .problem'))"
UNFOLD = "document.querySelectorAll('details').forEach((fold) => (fold.open = true))"
LEVERS = """# Levers

| knob | from | to | effect | date |
|---|---|---|---|---|
| width | 1 | 8 | 6.350× [6.334, 6.366] | [2026-12-01](FINDINGS.md) |
| width | 1 | 16 | 12.1× [11.9, 12.4] | [2026-11-02](FINDINGS.md) |
| kv | f16 | f32 | 0.99× [0.97, 1.01] | [2026-11-30](FINDINGS.md) |
"""
# Where npm left axe-core, fetched by hand: `npm install axe-core`, then LABKIT_AXE=node_modules/axe-core/axe.min.js
AXE = "LABKIT_AXE"
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A lab with each kind of page, and what publishing it said."""
    root = make_lab(tmp_path_factory.mktemp("every page") / "lab")
    folder = root / "data" / "runs" / DONE
    (folder / "telemetry.csv").write_text(telemetry())
    (folder / "requests.jsonl").write_text(requests())
    write_run(root, record("20261202T101500Z-batch-decode-0000000b", device={"name": "AMD Radeon AI PRO R9700"}))
    (root / "LEVERS.md").write_text(LEVERS)
    report = publish(root)
    return root / "site", report


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium() as opened:
        yield opened


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_figure_of_every_page_is_drawn_and_nobody_is_asked_for_anything(
    published: tuple[Path, Report], tab: Tab
) -> None:
    site, report = published
    drawn = 0
    tab.size(1100, 900)
    for page in pages(site):
        tab.open(page, WAITING)
        drawn += tab.evaluate("document.querySelectorAll('.plot-area.js-plotly-plot').length")
        assert tab.evaluate("document.querySelectorAll('.plot-area .problem').length") == 0, page
        assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == [], page
        assert tab.complaints == [], page
    assert drawn == report.figures > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_on_a_phone_even_with_everything_unfolded(
    published: tuple[Path, Report], tab: Tab, scheme: str
) -> None:
    tab.size(375, 800)
    tab.scheme(scheme)
    for page in pages(published[0]):
        tab.open(page, WAITING)
        tab.evaluate(UNFOLD)
        assert tab.evaluate("document.scrollingElement.scrollWidth") <= 375, page


@pytest.mark.parametrize("width", [375, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_on_any_page(
    published: tuple[Path, Report], tab: Tab, width: int, scheme: str
) -> None:
    path = Path(os.environ.get(AXE, ""))
    if not path.is_file():
        pytest.skip(f"axe-core is not here: npm install axe-core, then {AXE}=node_modules/axe-core/axe.min.js")
    tab.size(width, 900)
    tab.scheme(scheme)
    for page in pages(published[0]):
        tab.open(page, WAITING)
        tab.evaluate(UNFOLD)
        tab.evaluate(path.read_text() + ";1")
        found: list[Any] = tab.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations.map("
            "(one) => [one.impact, one.id, one.nodes[0].html.slice(0, 200), one.nodes[0].failureSummary]))"
        )
        assert [fault for fault in found if fault[0] in GRAVE] == [], page


def test_headings_go_down_one_level_at_a_time_and_each_page_has_one_title(
    published: tuple[Path, Report], tab: Tab
) -> None:
    for page in pages(published[0]):
        tab.open(page)
        levels = tab.evaluate("[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((h) => +h.tagName[1])")
        assert levels.count(1) == 1, (page, levels)
        assert levels[0] == 1, page
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (page, levels)


def press(tab: Tab, key: str, code: int) -> None:
    text = {"Enter": "\r"}.get(key, "")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text)
    tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)


def column(tab: Tab, place: int) -> list[str]:
    found: list[str] = tab.evaluate(
        f"[...document.querySelectorAll('tbody tr')].map((r) => r.cells[{place}].textContent)"
    )
    return found


def test_the_levers_are_sorted_from_the_keyboard_by_number_word_and_date(
    published: tuple[Path, Report], tab: Tab
) -> None:
    tab.size(1100, 900)
    tab.open(published[0] / "levers.html", "document.querySelectorAll('th button').length === 5")
    heads = "document.querySelectorAll('th button')"
    for place, ordered in (
        (3, ["0.99×", "6.350×", "12.1×"]),
        (0, ["kv", "width", "width"]),
        (4, ["2026-11-02", "2026-11-30", "2026-12-01"]),
    ):
        tab.evaluate(f"{heads}[{place}].focus()")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid" or place
        press(tab, "Enter", 13)
        assert [text.split(" [")[0] for text in column(tab, place)] == ordered
        assert tab.evaluate(f"{heads}[{place}].parentElement.getAttribute('aria-sort')") == "ascending"
        press(tab, "Enter", 13)
        assert [text.split(" [")[0] for text in column(tab, place)] == ordered[::-1]
        assert tab.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_a_number_leads_to_its_samples_which_unfold(published: tuple[Path, Report], tab: Tab) -> None:
    tab.open(published[0] / "runs" / DONE / "index.html", WAITING)
    tab.evaluate("document.querySelector('td.number a[href=\"#number-4-1\"]').click()")
    assert tab.evaluate("document.getElementById('number-4-1').closest('details').open")


def test_what_is_printed_has_light_figures_every_fold_open_and_no_menu(
    published: tuple[Path, Report], tab: Tab
) -> None:
    tab.scheme("dark")
    tab.open(published[0] / "runs" / DONE / "index.html", WAITING)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.querySelector('header.site')).display") == "none"
    assert tab.evaluate("[...document.querySelectorAll('details')].every((fold) => fold.open)")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = tab.call("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 20_000
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.call("Emulation.setEmulatedMedia", media="", features=[])
    assert not tab.evaluate("[...document.querySelectorAll('details')].every((fold) => fold.open)")


def test_without_javascript_tables_are_plain_and_a_figure_says_why_it_is_not_drawn(
    published: tuple[Path, Report], tab: Tab
) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for name, words in (("levers.html", "11.9, 12.4"), (f"runs/{DONE}/index.html", "which is turned off")):
            tab.call("Page.navigate", url=(published[0] / name).as_uri())
            deadline = time.monotonic() + 20
            nodes: list[Any] = []
            while not any(words in str(node.get("name", {}).get("value", "")) for node in nodes):
                assert time.monotonic() < deadline, f"{name} never said {words!r}"
                nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
            assert not [node for node in nodes if node.get("role", {}).get("value") == "button"]
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_lab_of_many_runs_draws_a_comparison_of_all_its_devices(tmp_path: Path, tab: Tab) -> None:
    root = make_large_lab(tmp_path / "lab", 0)
    for number in range(0, 50, 10):  # the first topic on all four devices, one of them twice
        add_run(root, number)
    render(root)
    publish(root)
    tab.size(375, 800)
    tab.open(root / "site" / "compare" / "decode" / "index.html", WAITING)
    assert tab.evaluate("document.querySelectorAll('.plot-area.js-plotly-plot').length") == 3
    for area in range(3):
        points = f"document.querySelectorAll('.plot-area')[{area}].querySelectorAll('.scatterlayer .point').length"
        assert tab.evaluate(points) == 5
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 375
