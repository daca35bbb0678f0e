"""What the HTML of every noun keeps to: any theme, no style sheet, readable when a sanitiser has taken all it may."""

import html
import re
from html.parser import HTMLParser

import bleach
from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES

from labkit.lab.publish.sanitise import sanitise
from labkit.palette import GRID, TINTS
from labkit.show.pieces import MARKS

COLOURS = {GRID, *TINTS, *MARKS.values()}
MOST_LINES = 3  # of the text beside it


class Page(HTMLParser):
    """The styles, attributes and words of a page; its tags must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.styles: list[str] = []
        self.attributes: set[str] = set()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.styles += [value or "" for name, value in attributes if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def words(text: str) -> str:
    return " ".join(text.replace("\xa0", " ").split())


def check_page(page: str) -> str:
    """Asserts the rules for one page; what is left of it without any markup."""
    read = Page(page)
    assert read.attributes <= {"style"}, "no class, no id, no handler: nothing a style sheet or a script would serve"
    assert not read.tags & {"style", "script", "link", "img", "svg", "iframe"}
    for style in read.styles:
        for name, value in (part.split(":", 1) for part in style.split(";")):
            assert name in ALLOWED_CSS_PROPERTIES, f"{name} is not a property that nbconvert's sanitiser leaves"
            assert name != "color", "text has the page's own colour"
            if name == "background-color":
                assert value in COLOURS, f"{value} is no tint of the palette"
            else:
                assert not re.search(r"#|rgb|black|white", value)
    for colour in COLOURS:
        opacity = float(colour.rstrip(")").rsplit(",", 1)[1])
        assert 0.2 <= opacity <= 0.8, "a tint lets the page behind it through"
    kept = Page(sanitise(page))
    assert words(" ".join(kept.texts)) == words(" ".join(read.texts))
    assert len(kept.styles) == len(read.styles), "the publisher's sanitiser takes no style away"
    bare = words(html.unescape(bleach.clean(page, tags=set(), strip=True)))
    assert bare == words("".join(read.texts))
    assert not re.search(r"</(td|th)><(td|th)|</tr><tr", page), "cells and rows stay apart when their tags are gone"
    return bare


def check_noun(noun: object) -> str:
    """Asserts the rules for an object, its text beside its HTML too; what is left of the HTML without any markup."""
    text = repr(noun)
    assert 0 < len(text.splitlines()) <= MOST_LINES
    assert "object at 0x" not in text
    page: str = noun._repr_html_()  # type: ignore[attr-defined]
    return check_page(page)
