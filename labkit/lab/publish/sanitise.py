"""Makes HTML that others wrote (notebook outputs, raw HTML in markdown) safe: no script, no request, no frame."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bleach.sanitizer import Cleaner


def words(text: str) -> list[str]:
    return text.split()


TEXT_TAGS = words(
    """
    a abbr b blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption figure h1 h2 h3 h4
    h5 h6 hr i img ins kbd li mark meter ol p pre progress q s samp section small span strong sub summary sup table
    tbody td tfoot th thead tr u ul var
    """
)
SVG_TAGS = words(
    """
    svg g path rect circle ellipse line polyline polygon text tspan title desc defs linearGradient stop clipPath
    """
)
TEXT_ATTRIBUTES = {
    "*": ["class", "id", "title", "style", "role", "aria-label", "aria-hidden", "lang", "dir"],
    "a": ["href", "rel"],
    "img": ["src", "alt", "width", "height", "loading"],
    "details": ["open"],
    "ol": ["start"],
    "th": ["colspan", "rowspan", "scope", "align"],
    "td": ["colspan", "rowspan", "align"],
    "col": ["span"],
    "progress": ["value", "max"],
    "meter": ["value", "min", "max", "low", "high", "optimum"],
}
SVG_ATTRIBUTES = words(
    """
    viewBox preserveAspectRatio width height x y x1 x2 y1 y2 cx cy r rx ry d points transform fill fill-opacity stroke
    stroke-width stroke-dasharray stroke-linecap stroke-linejoin stroke-opacity opacity text-anchor dominant-baseline
    font-size font-family font-weight offset stop-color stop-opacity gradientUnits clip-path dx dy
    """
)
STYLES = words(
    """
    align-items background background-color border border-bottom border-collapse border-color border-left border-radius
    border-right border-spacing border-style border-top border-width color column-gap display flex flex-direction
    flex-wrap float font font-family font-size font-style font-variant-numeric font-weight gap grid-template-columns
    height justify-content letter-spacing line-height list-style margin margin-bottom margin-left margin-right
    margin-top max-height max-width min-height min-width opacity overflow overflow-x overflow-y padding padding-bottom
    padding-left padding-right padding-top row-gap table-layout text-align text-decoration text-indent
    text-overflow text-transform vertical-align white-space width word-break word-spacing
    """
)
DROPPED_WITH_TEXT = ("script", "style", "iframe", "object", "embed", "template", "noscript", "head")


@cache
def cleaner() -> "Cleaner":
    """The one cleaner: prose, tables and plain SVG, in styles that neither fetch nor cover the page."""
    from bleach.css_sanitizer import CSSSanitizer
    from bleach.sanitizer import Cleaner

    attributes = TEXT_ATTRIBUTES | {tag: SVG_ATTRIBUTES for tag in SVG_TAGS}
    return Cleaner(
        tags={*TEXT_TAGS, *SVG_TAGS},
        attributes=attributes,
        protocols={"http", "https", "mailto", "data"},
        strip=True,
        css_sanitizer=CSSSanitizer(allowed_css_properties=STYLES, allowed_svg_properties=["fill", "stroke"]),
    )


def sanitise(html: str) -> str:
    """`html` with only harmless tags, attributes and styles left. Images keep only `data:` and relative sources;
    links to other sites say `rel="external noopener noreferrer"`; the keyboard reaches what may scroll."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    for name in DROPPED_WITH_TEXT:
        for tag in soup.find_all(name):
            tag.decompose()
    for image in soup.find_all("img"):
        source = str(image.get("src", ""))
        if not is_local(source) and not source.startswith("data:image/"):
            image.replace_with(f"[image not published: {source[:120]}]")
    for tag in soup.find_all(style=True):
        if "url(" in str(tag["style"]).lower() or "position" in str(tag["style"]).lower():
            tag["style"] = ";".join(
                part
                for part in str(tag["style"]).split(";")
                if "url(" not in part.lower() and "position" not in part.lower()
            )
    for link in soup.find_all("a", href=True):
        href = str(link["href"])
        if href.startswith("data:"):
            del link["href"]
        elif not is_local(href):
            link["rel"] = "external noopener noreferrer"
    clean: str = cleaner().clean(str(soup))
    return clean.replace("<pre", '<pre tabindex="0"')  # it may scroll, and so the keyboard must reach it


def is_local(address: str) -> bool:
    """Whether `address` stays in the site: relative or a fragment, without a scheme or a host."""
    head = address.strip().split("/", 1)[0]
    return not address.strip().startswith(("//", "\\\\")) and ":" not in head
