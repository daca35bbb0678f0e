"""Ledger markdown as HTML: anchors that stay, links that stay inside the site, nothing that acts."""

import re

import pytest

from labkit.lab.publish.markdown import render
from labkit.lab.publish.pages import site_resolver

pytestmark = pytest.mark.quick

RUN = "20261201T001626Z-batch-decode-0a1b2c3d"
RESOLVE = site_resolver(
    {"FINDINGS.md": "findings.html", "figures/a.png": "figures/a.png"}, {RUN: frozenset({"measurements.csv"})}, "../"
)


def ids(page: str) -> list[str]:
    return re.findall(r'<h\d id="([^"]*)"', page)


def test_a_new_entry_on_top_with_the_same_words_leaves_the_old_anchor_alone() -> None:
    assert ids(render("## Same\n\nold", RESOLVE)) == ["same"]
    assert ids(render("## Same\n\nnewest\n\n## Same\n\nnewer\n\n## Same\n\nold", RESOLVE)) == [
        "same-3",
        "same-2",
        "same",
    ]


@pytest.mark.parametrize(
    "text", ['<a id="e-42"></a>\n\n## Words', '<a id="e-42"></a>\n## Words', '## <a id="e-42"></a> Words']
)
def test_an_entrys_own_anchor_is_the_headings(text: str) -> None:
    page = render(text, RESOLVE)
    assert ids(page) == ["e-42"]
    assert page.count('"e-42"') == 1
    assert 'href="#e-42"' in page


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("FINDINGS.md#x", "../findings.html#x"),
        ("./FINDINGS.md", "../findings.html"),
        (f"data/runs/{RUN}/", f"../runs/{RUN}/index.html"),
        (f"../data/runs/{RUN}", f"../runs/{RUN}/index.html"),
        (f"data/runs/{RUN}/measurements.csv", f"../runs/{RUN}/measurements.csv"),
        ("figures/a.png", "../figures/a.png"),
        ("#here", "#here"),
        ("https://example.org/a?b=1&c=2", "https://example.org/a?b=1&amp;c=2"),
        (f"data/runs/{RUN}/log.txt", None),
        ("data/runs/unknown/", None),
        ("labkit/cli.py", None),
        ("/etc/passwd", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("//e.example/x", None),
    ],
)
def test_a_link_leads_into_the_site_or_to_another_site_or_nowhere(link: str, target: str | None) -> None:
    page = render(f"[words]({link})", RESOLVE)
    found = re.findall(r'href="([^"]*)"', page)
    assert found == ([target] if target else [])
    assert "words" in page


def test_a_link_to_another_site_sends_no_referrer() -> None:
    assert 'rel="external noopener noreferrer"' in render("[a](https://example.org/)", RESOLVE)


def test_a_run_id_in_the_text_is_a_link_to_its_page_once() -> None:
    page = render(f"See {RUN}, `{RUN}` and [{RUN}](data/runs/{RUN}/), not 20260101T000000Z-other-00000000.", RESOLVE)
    assert page.count(f'<a href="../runs/{RUN}/index.html">') == 3
    assert "00000000</a>" not in page


def test_raw_html_is_kept_where_harmless_and_dropped_where_not() -> None:
    page = render(
        "<details><summary>more</summary>\n\n*text*\n\n</details>\n\n<del>gone</del>\n\n<script>alert(1)</script>\n\n"
        '<img src=x onerror="alert(1)">\n\n<a href="javascript:alert(1)">x</a>\n\n<div onmouseover=a()>d</div>',
        RESOLVE,
    )
    assert "<summary>more</summary>" in page
    assert "<em>text</em>" in page
    assert "<del>gone</del>" in page
    for gone in ("alert", "onerror", "onmouseover", "javascript"):
        assert gone not in page


def test_a_picture_from_elsewhere_is_not_fetched() -> None:
    page = render("![chart](https://e.example/a.png)\n\n![mine](figures/a.png)", RESOLVE)
    assert re.findall(r'src="([^"]*)"', page) == ["../figures/a.png"]


def test_prices_are_not_formulas_in_a_ledger() -> None:
    assert "$5 and $6" in render("between $5 and $6", RESOLVE)
