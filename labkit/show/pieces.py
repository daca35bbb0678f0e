"""The pieces that every noun's HTML is made of: tables, bars, marks; escaped, and readable when all styles are stripped.

Text has the page's own colour; colour is only laid beneath it or drawn beside it, as tints of the lab's palette. Nothing
depends on a style sheet, a class or a script. Cells and rows are parted by white space, so that what a sanitiser leaves of
a table is still words.
"""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from labkit.palette import GRID, PALETTE, TINTS, tint

WIDTH_EM = 24  # of a bar that stands for a whole
MARKS = {"good": tint(PALETTE[2], 0.4), "bad": tint(PALETTE[1], 0.4), "open": GRID, "warn": tint(PALETTE[5], 0.4)}
STANDING = {
    "confirmed": "good", "refuted": "bad", "inconclusive": "open", "invalid": "warn", "ok": "good", "fail": "bad",
    "warn": "warn", "not assessable": "open", "passed": "good", "FAILED": "bad", "completed": "good", "running": "open",
    "withheld": "warn", "failed": "bad", "crashed": "bad", "timed-out": "bad",
}  # fmt: skip
_LEFT, _RIGHT, _TOP, _WHOLE = "text-align:left", "text-align:right", "vertical-align:top", "white-space:nowrap"
_PATCH = "display:inline-block;height:0.8em;vertical-align:middle"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """Any value as HTML; what is HTML already stays."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def paragraph(*parts: Any) -> Html:
    """A paragraph of parts, a blank between them."""
    return Html(f"<p>{' '.join(escape(part) for part in parts)}</p>\n")


def caption(text: str) -> Html:
    """A table's heading."""
    return Html(f"<caption style='{_LEFT};{_WHOLE}'><b>{escape(text)}</b></caption>\n" if text else "")


def facts_table(facts: Mapping[str, Any], title: str = "") -> Html:
    """Names and values, a row each."""
    rows = "".join(
        f"<tr><th style='{_LEFT};{_TOP};{_WHOLE}'>{escape(name)}</th> <td style='{_LEFT}'>{escape(value)}</td></tr>\n"
        for name, value in facts.items()
    )
    return Html(f"<table>\n{caption(title)}{rows}</table>\n")


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Collection[int] = (), title: str = ""
) -> Html:
    """Rows below their heads; the columns in `numbers` are set to the right."""
    heads = [_RIGHT if place in numbers else _LEFT for place in range(len(head))]
    styles = [f"{_RIGHT};{_WHOLE}" if place in numbers else _LEFT for place in range(len(head))]
    first = _cells("th", head, heads)
    body = "".join(f"<tr>{_cells('td', row, styles)}</tr>\n" for row in rows)
    return Html(f"<table>\n{caption(title)}<tr>{first}</tr>\n{body}</table>\n")


def _cells(tag: str, values: Sequence[Any], styles: Sequence[str]) -> str:
    """The cells of a row, white space between them."""
    return " ".join(
        f"<{tag} style='{style}'>{escape(value)}</{tag}>" for value, style in zip(values, styles, strict=True)
    )


def patch(width_em: float, colour: str) -> Html:
    """A coloured piece of a bar; nothing where colours are stripped, so its number stands beside it in words."""
    return Html(f"<span style='{_PATCH};width:{width_em:.2f}em;background-color:{colour}'></span>")


def bar(share: float, place: int = 0, width_em: float = 8) -> Html:
    """A share of a whole (0 to 1, cut there) as a bar in the palette's colour `place`, its track behind it."""
    part = min(max(share, 0.0), 1.0)
    return _track(patch(part * width_em, TINTS[place % len(TINTS)]), width_em)


def stack(parts: Sequence[float], total: float) -> Html:
    """Parts of a total beside one another, each in its own colour; what is left stays empty."""
    scale = WIDTH_EM / max(total, sum(parts), 1e-9)
    drawn = (patch(max(size * scale, 0.1), TINTS[place % len(TINTS)]) for place, size in enumerate(parts) if size > 0)
    return _track(Html("".join(drawn)), WIDTH_EM)


def key(place: int) -> Html:
    """The patch that tells which part of a stack a row is."""
    return patch(0.8, TINTS[place % len(TINTS)])


def _track(drawn: Html, width_em: float) -> Html:
    style = f"display:inline-block;width:{width_em:g}em;text-align:left;white-space:nowrap;background-color:{GRID}"
    return Html(f"<span style='{style}'>{drawn}</span>")


def mark(word: str) -> Html:
    """An outcome as a word with its colour laid beneath it."""
    colour = MARKS[STANDING.get(word, "open")]
    return Html(f"<span style='background-color:{colour};font-weight:600'>&nbsp;{escape(word)}&nbsp;</span>")


def verbatim(text: str) -> Html:
    """Text with its line breaks kept."""
    return Html(f"<span style='white-space:pre-wrap'>{escape(text)}</span>")


def unfold(summary: str, body: Html) -> Html:
    """What is shown when its summary is clicked."""
    return Html(f"<details><summary>{escape(summary)}</summary>\n{body}</details>\n")


def size_words(nbytes: float) -> str:
    """Bytes as a reader says them: `1.50 GiB`, `96.6 MiB`, `512 B`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}" if nbytes < 1000 * scale else f"{nbytes / scale:,.0f} {unit}"
    return f"{nbytes:.0f} B"


def share_words(share: float) -> str:
    """A share in percent: `48 %`, `0.4 %`."""
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"
