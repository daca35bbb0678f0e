"""The documentation as pages of the site: docs/*.md with its own navigation, every link of it checked."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from labkit.lab.publish.markdown import RUN_ID, Resolve, render, unquoted
from labkit.lab.publish.sanitise import is_local
from labkit.lab.publish.site import link_or_copy, put

if TYPE_CHECKING:
    from labkit.lab.publish.made import Site
    from labkit.lab.redact import Scrubber

FOLDER = "docs"
FIRST = "docs/README.md"
HOME = "docs/index.html"
BESIDE = {"AGENTS.md": "docs/agents.html"}  # of the root: pages of the docs too
STYLE = "docs.css"
KINDS = (".md", ".json")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]+\.md)\)")
ID = re.compile(r' id="([^"]+)"')


@dataclass(frozen=True)
class Page:
    """A page of the docs: its file from the lab's root, its place in the site, its title and its markdown."""

    file: str
    address: str
    title: str
    text: str

    @property
    def top(self) -> str:
        """The way from its folder to the site's root."""
        return "../" * self.address.count("/")


def doc_places(root: Path) -> dict[str, str]:
    """Where the site has each page and schema of the documentation, by its file from the lab's root; nothing where the lab
    has no docs/README.md."""
    if not (root / FIRST).is_file():
        return {}
    names = [path.relative_to(root).as_posix() for path in sorted((root / FOLDER).rglob("*")) if path.suffix in KINDS]
    names += [name for name in BESIDE if (root / name).is_file()]
    return {name: address_of(name) for name in names}


def read_docs(root: Path, scrubber: "Scrubber") -> list[Page]:
    """The pages, redacted: the first, those it links to in their order, then the others by name."""
    texts = {name: scrubber.read(name, text_of(root / name)) for name in doc_places(root) if name.endswith(".md")}
    linked = [posixpath.normpath(posixpath.join(FOLDER, name)) for name in LINK.findall(texts[FIRST])]
    order = dict.fromkeys([FIRST, *(name for name in linked if name in texts), *texts])
    return [Page(name, address_of(name), title_of(name, texts[name]), texts[name]) for name in order]


def text_of(path: Path) -> str:
    """The text of a file; what is not UTF-8 in it is replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def address_of(file: str) -> str:
    """A page's place in the site."""
    if file in BESIDE:
        return BESIDE[file]
    if not file.endswith(".md"):
        return file
    folder, name = posixpath.split(file)
    return f"{folder}/{'index' if name == 'README.md' else name.removesuffix('.md')}.html"


def title_of(file: str, text: str) -> str:
    """The first heading of a page, else the name of its file."""
    found = TITLE.search(text)
    return found[1].replace("`", "") if found else posixpath.basename(file)


def write_docs(aside: Path, site: "Site", scrubber: "Scrubber") -> list[str]:
    """Writes the pages, and the schemas beside them, into the site made in `aside`; a line for each link of theirs that
    leads nowhere. Nothing where the lab has no documentation."""
    from labkit.lab.publish.pages import templates

    places = doc_places(site.root)
    if not places:
        return []
    put(aside / "assets" / STYLE, (files("labkit.lab.publish") / "assets" / STYLE).read_bytes())
    pages = read_docs(site.root, scrubber)
    for name in set(places) - {page.file for page in pages}:
        put(aside / places[name], scrubber.read(name, text_of(site.root / name)).encode())
    problems: list[str] = []
    bodies: dict[str, str] = {}
    anchored: list[tuple[str, str, str]] = []  # page, address it links to, fragment
    for page in pages:
        links = Links(page, site, places)
        bodies[page.address] = render(page.text, links.resolve)
        problems += [f"{page.file}: {link} leads nowhere" for link in links.broken]
        anchored += [(page.file, *place) for place in links.anchors]
    ids = {address: {*ID.findall(body)} for address, body in bodies.items()}
    problems += [f"{file}: {address} has no {name!r}" for file, address, name in anchored if name not in ids[address]]
    shown = [page for page in pages if page.file not in BESIDE]
    for page in pages:
        menu = [(each.title, page.top + each.address, each is page) for each in shown]
        at = shown.index(page) if page in shown else -1
        text = (
            templates()
            .get_template("doc.html.j2")
            .render(
                title=page.title,
                top=page.top,
                here=HOME,
                menu=site.menu.entries,
                pages=menu,
                body=Markup(bodies[page.address]),
                following=menu[at + 1] if 0 <= at < len(menu) - 1 else None,
            )
        )
        put(aside / page.address, text.encode())
    return problems


def docs_key(site: "Site") -> list[object]:
    """What the pages of the documentation depend on beside the code, as JSON has it."""
    texts = {name: text_of(site.root / name) for name in doc_places(site.root)}
    known = sorted(set(RUN_ID.findall("\n".join(texts.values()))) & set(site.runs))
    return [texts, known, site.menu.entries, dict(site.root_files)]


def keep_docs(old: Path, new: Path) -> None:
    """The pages of the old site in their place in the new one."""
    names = [path.relative_to(old) for path in (old / FOLDER).rglob("*") if path.is_file()]
    for name in [*names, Path("assets") / STYLE]:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(old / name, new / name)


class Links:
    """Finds the links of a page: other pages, what the site has of the lab, and what it has not. `broken` are those to
    nothing, `anchors` the places (address, fragment) that must be on another page or on this one."""

    def __init__(self, page: Page, site: "Site", places: Mapping[str, str]) -> None:
        self.page, self.site, self.places = page, site, places
        self.elsewhere: Resolve = site.resolver(page.top)
        self.broken: list[str] = []
        self.anchors: list[tuple[str, str]] = []

    def resolve(self, url: str) -> str | None:
        """A link's address from the page; None for a file of the lab that is not on the site, and for nothing."""
        if url.startswith("data/runs/"):  # a run's id in the text
            return self.elsewhere(url)
        if url.startswith("#"):
            self.anchors.append((self.page.address, unquoted(url)[1:]))
            return url
        if not is_local(url):
            return self.elsewhere(url)
        path, mark, fragment = unquoted(url).partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(self.page.file), path))
        if name in self.places:
            if mark:
                self.anchors.append((self.places[name], fragment))
            return f"{self.page.top}{self.places[name]}{mark}{fragment}"
        if name.startswith("../") or not (self.site.root / name).exists():
            self.broken.append(url)
            return None
        return self.elsewhere(f"{name}{mark}{fragment}")
