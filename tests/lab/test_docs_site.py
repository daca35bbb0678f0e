"""The documentation on the site: pages from docs/*.md with their navigation, and links that lead somewhere, from the disk."""

import posixpath
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

import pytest
from chromium import Tab, chromium
from synthetic_lab import DONE, make_lab

from labkit.lab.publish import publish, publish_run
from labkit.lab.publish.build import read_lab
from labkit.lab.publish.docs import write_docs
from labkit.lab.redact import Scrubber

ROOT = Path(__file__).resolve().parents[2]
FIRST = "# Documentation\n\n1. [Second](second.md)\n2. [Deep](reference/deep.md#a-place)\n\nMade with [the tool](../tool.py).\n"
SECOND = (
    "# Second `page`\n\n[back](README.md), [the ledger](../FINDINGS.md), [a run](../data/runs/{run}/), {run}, [elsewhere]("
    "https://example.org/x), <script>alert(1)</script>\n\n## Its heading\n\n[here](#its-heading)\n"
)


class Page(HTMLParser):
    """What a page loads by itself, what it links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.add(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "srcset", "data", "poster", "href"):
                self.loads.append(value or "")


def with_docs(root: Path) -> Path:
    """A synthetic lab with documentation."""
    lab = make_lab(root / "lab")
    (lab / "docs" / "reference").mkdir(parents=True)
    (lab / "tool.py").write_text("print('hello')\n")
    (lab / "docs" / "README.md").write_text(FIRST)
    (lab / "docs" / "second.md").write_text(SECOND.format(run=DONE))
    (lab / "docs" / "reference" / "deep.md").write_text("# Deep\n\n## A place\n\n[up](../second.md#its-heading)\n")
    (lab / "docs" / "reference" / "one.schema.json").write_text('{"type": "object"}\n')
    return lab


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with documentation and its site, only to be read."""
    lab = with_docs(tmp_path_factory.mktemp("docs"))
    assert publish(lab).problems == ()
    return lab / "site"


def check_links(site: Path, folder: Path) -> int:
    """Asserts that all that the pages below a folder load or link to inside the site is there; how many links there were."""
    count, anchors = 0, {path: Page(path).ids for path in site.rglob("*.html")}
    for path in sorted(folder.rglob("*.html")):
        page = Page(path)
        assert [each for each in page.loads if ":" in each.partition("/")[0] and not each.startswith("data:,")] == []
        for link in (*page.loads, *(each for each in page.links if not each.startswith(("https://", "http://")))):
            address, _, fragment = unquote(link).partition("#")
            if address == "data:,":
                continue
            place = path.parent / address if address else path
            place = Path(posixpath.normpath(place.as_posix()))
            assert place.is_file(), f"{path.name} links to {link}"
            assert not fragment or fragment in anchors[place], f"{path.name} links to {link}"
            count += 1
    return count


def test_every_page_is_there_with_its_navigation_and_its_links_lead_somewhere(published: Path) -> None:
    names = {
        path.relative_to(published / "docs").as_posix() for path in (published / "docs").rglob("*") if path.is_file()
    }
    assert names == {"index.html", "second.html", "reference/deep.html", "reference/one.schema.json"}
    assert check_links(published, published / "docs") > 20
    first, deep = Page(published / "docs" / "index.html"), Page(published / "docs" / "reference" / "deep.html")
    menu, *pages = [link for link in first.links if link.startswith("../docs/")]
    assert menu == "../docs/index.html"
    assert pages[:3] == ["../docs/index.html", "../docs/second.html", "../docs/reference/deep.html"]
    assert "../../docs/second.html#its-heading" in deep.links
    assert (
        '<a href="../../docs/reference/deep.html" aria-current="page">Deep</a>'
        in (published / "docs" / "reference" / "deep.html").read_text()
    )


def test_links_to_ledgers_and_runs_become_pages_and_links_to_code_their_words(published: Path) -> None:
    second = (published / "docs" / "second.html").read_text()
    assert 'href="../findings.html"' in second
    assert second.count(f'href="../runs/{DONE}/index.html"') == 2
    assert 'href="https://example.org/x" rel="external noopener noreferrer"' in second
    assert "<title>Second page</title>" in second
    assert "alert(1)" not in second
    assert "Made with the tool." in (published / "docs" / "index.html").read_text()


def test_every_page_of_the_site_leads_to_the_documentation(published: Path) -> None:
    for path in published.rglob("*.html"):
        assert any(link.endswith("docs/index.html") for link in Page(path).links), path


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    lab = with_docs(tmp_path)
    (lab / "docs" / "second.md").write_text(
        "# Second\n\n[a](gone.md) [b](README.md#gone) [c](#gone) [d](../../out.md)\n"
    )
    problems = publish(lab).problems
    assert [text for text in problems if text.startswith("docs/second.md")] == [
        "docs/second.md: gone.md leads nowhere",
        "docs/second.md: ../../out.md leads nowhere",
        "docs/second.md: docs/index.html has no 'gone'",
        "docs/second.md: docs/second.html has no 'gone'",
    ]
    assert "docs/reference/deep.md: docs/second.html has no 'its-heading'" in problems
    assert "gone.md leads nowhere" in (lab / "site" / "index.html").read_text()


def test_the_page_of_one_run_leaves_the_documentation_unless_it_changed(tmp_path: Path) -> None:
    lab = with_docs(tmp_path)
    publish(lab)
    page = lab / "site" / "docs" / "second.html"
    before, text = page.stat().st_ino, page.read_text()
    publish_run(lab, lab / "data" / "runs" / DONE)
    assert (page.stat().st_ino, page.read_text()) == (before, text)
    (lab / "docs" / "second.md").write_text("# Another\n\n## Its heading\n")
    publish_run(lab, lab / "data" / "runs" / DONE)
    assert "<title>Another</title>" in page.read_text()
    assert '../docs/second.html">Another</a>' in (lab / "site" / "docs" / "index.html").read_text()


def test_a_secret_in_the_documentation_stays_home(tmp_path: Path) -> None:
    lab = with_docs(tmp_path)
    token = "hf_" + "a1B2c3D4" * 4
    (lab / "docs" / "second.md").write_text(f"# Second\n\n## Its heading\n\nuse {token}\n")
    report = publish(lab)
    assert [hit.file for hit in report.secrets] == ["docs/second.md"]
    assert token not in (lab / "site" / "docs" / "second.html").read_text()


def test_a_lab_without_documentation_has_none_on_its_site(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    publish(lab)
    assert not (lab / "site" / "docs").exists()
    assert "Docs" not in (lab / "site" / "index.html").read_text()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of this repository's documentation, with the style that all pages share; every link of theirs is good."""
    site, scrubber = tmp_path_factory.mktemp("a site with spaces"), Scrubber()
    assert write_docs(site, read_lab(ROOT, Scrubber()).site(site), scrubber) == []
    assert scrubber.found() == []
    style = files("labkit.lab.publish") / "assets" / "site.css"
    (site / "assets" / "site.css").write_bytes(style.read_bytes())
    (site / "figures").symlink_to(ROOT / "figures")
    return site / "docs"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium() as opened:
        yield opened


def test_the_links_of_this_repository_s_documentation_lead_somewhere(own: Path) -> None:
    start = Page(own / "start-here.html")
    assert "../docs/reference/cli.html" in start.links
    assert "../findings.html" in start.links


@pytest.mark.browser
def test_every_page_opens_from_the_disk_asks_nobody_and_fits_a_phone(own: Path, tab: Tab) -> None:
    tab.size(390, 844)
    found = sorted(own.rglob("*.html"))
    assert len(found) > 15
    for page in found:
        tab.open(page)
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
        assert tab.complaints == [], page.name
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, page.name
        assert tab.evaluate("document.querySelectorAll('h1').length") == 1, page.name
        assert tab.evaluate("[...document.images].every(i => i.loading === 'lazy' || i.naturalWidth > 0)"), page.name


@pytest.mark.browser
def test_the_list_of_pages_stands_beside_the_text_where_there_is_room(own: Path, tab: Tab) -> None:
    box = "document.querySelector('{}').getBoundingClientRect()"
    beside = f"{box.format('.doc-pages')}.right < {box.format('h1')}.left"
    tab.size(1300, 900)
    tab.open(own / "engines.html")
    assert tab.evaluate(beside) is True
    assert tab.evaluate("document.querySelector('.doc-pages [aria-current]').textContent") == "Asking other engines"
    tab.size(800, 900)
    tab.open(own / "engines.html")
    assert tab.evaluate(beside) is False
