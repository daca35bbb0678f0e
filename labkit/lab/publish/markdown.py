"""Markdown (cells, ledgers) as safe HTML: permanent heading anchors, links inside the site, coloured code."""

import html
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import mistune

from labkit.lab.publish.sanitise import sanitise

RUN_ID = re.compile(r"\b\d{8}T\d{6}Z-[a-z0-9]+(?:-[a-z0-9]+)*-[0-9a-f]{8}\b")
TAG = re.compile(r"""(<(?:"[^"]*"|'[^']*'|[^>"'])*>)""")
ANCHOR = re.compile(r"""<a\s+(?:id|name)=["']([^"']+)["']\s*>\s*(?:</a>)?""")
ANCHORS_ALONE = re.compile(r'<p>((?:\s|<a id="[^"]*"></a>)*)</p>')
TABLE = re.compile(r"<table\b[^>]*>")
SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="a table">'
HEADING = re.compile(r'<h([1-6]) id="">(.*?)</h\1>', re.DOTALL)

Resolve = Callable[[str], str | None]  # a link of the source → its address from this page, or None: it leads nowhere


class PageRenderer(mistune.HTMLRenderer):
    """Mistune's HTML with our headings, code and links."""

    def __init__(self, resolve: Resolve, below: int = 0) -> None:
        super().__init__(escape=False)
        self.resolve = resolve
        self.below = below

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        level = min(6, level + self.below)
        return f'<h{level} id="">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return highlight(code, (info or "").split(" ")[0])

    def link(self, text: str, url: str, title: str | None = None) -> str:
        target = self.resolve(url)
        return text if target is None else f'<a href="{html.escape(target)}">{text}</a>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        target = self.resolve(url)
        if target is None:
            return f'<span class="missing">[image: {html.escape(text or url)}]</span>'
        return f'<img src="{html.escape(target)}" alt="{html.escape(text)}" loading="lazy">'

    def inline_math(self, text: str) -> str:
        return f'<code class="math">{html.escape(text)}</code>'

    def block_math(self, text: str) -> str:
        return f'<pre class="math">{html.escape(text)}</pre>'


def render(text: str, resolve: Resolve, math: bool = False, below: int = 0) -> str:
    """`text` as sanitised HTML, its headings `below` levels further down. `math` reads `$…$` as a formula, shown as its
    TeX (nothing is fetched to draw it)."""
    plugins = ["table", "strikethrough", "task_lists", "footnotes", "url"] + (["math"] if math else [])
    renderer = PageRenderer(resolve, below)
    markdown = mistune.create_markdown(renderer=renderer, plugins=plugins)
    if math:  # the plugin registers its own renderers, meant for MathJax
        renderer.register("inline_math", PageRenderer.inline_math)
        renderer.register("block_math", PageRenderer.block_math)
    page = ANCHORS_ALONE.sub(r"\1", sanitise(anchor_headings(str(markdown(text)))))
    page = TABLE.sub(rf"{SCROLL}\g<0>", page).replace("</table>", "</table></div>")
    return link_runs(page, resolve)


def anchor_headings(page: str) -> str:
    """Gives each heading an id: that of an `<a id="…">` in it or just before it, else one made of its words.

    Of headings with the same words the *last* has the bare id: entries are added on top, so old links stay true."""
    matches = list(HEADING.finditer(page))
    words = [slug(re.sub(r"<[^>]+>", "", match[2])) for match in matches]
    total, seen, anchors = Counter(words), Counter[str](), {}
    for index, match in enumerate(matches):
        own = ANCHOR.search(match[2]) or ANCHOR.search(page, matches[index - 1].end() if index else 0, match.start())
        nth = total[words[index]] - seen[words[index]]
        seen[words[index]] += 1
        anchors[match.start()] = own[1] if own else words[index] + (f"-{nth}" if nth > 1 else "")

    def give(match: re.Match[str]) -> str:
        name = html.escape(anchors[match.start()], quote=True)
        text = ANCHOR.sub("", match[2])
        sign = f' <a class="anchor" href="#{name}" aria-label="link to this heading">#</a>'
        return f'<h{match[1]} id="{name}">{text}{sign}</h{match[1]}>'

    taken = set(anchors.values())
    page = HEADING.sub(give, page)
    return ANCHOR.sub(lambda match: "" if match[1] in taken else match[0], page)


def link_runs(page: str, resolve: Resolve) -> str:
    """Makes each run id in the text a link to the run's page, where there is one and it is not a link already."""
    inside = 0
    parts = TAG.split(page)
    for index, part in enumerate(parts):
        if index % 2:
            inside += 1 if part.startswith("<a ") else -1 if part.startswith("</a") else 0
        elif not inside and "Z-" in part:
            parts[index] = RUN_ID.sub(lambda match: link_run(match[0], resolve), part)
    return "".join(parts)


def link_run(run_id: str, resolve: Resolve) -> str:
    target = resolve(f"data/runs/{run_id}")
    return run_id if target is None else f'<a href="{html.escape(target)}">{run_id}</a>'


def slug(text: str) -> str:
    """Letters, digits and hyphens of `text`, lower case; `section` when none is left."""
    return re.sub(r"[^\w]+", "-", html.unescape(text).lower()).strip("-")[:80] or "section"


def unquoted(url: str) -> str:
    """A link as the path it means: mistune percent-encodes them."""
    return unquote(html.unescape(url))


def highlight(code: str, language: str) -> str:
    """`code` as a `pre` block with Pygments' classes; plain when the language is not known."""
    from pygments import highlight as colour
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text", stripnl=False)
    inner = colour(code.rstrip("\n") + "\n", lexer, HtmlFormatter(nowrap=True))
    return f'<pre class="code" tabindex="0"><code>{inner}</code></pre>\n'
