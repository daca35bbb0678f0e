"""Tokens as HTML: each on a tint that deepens as it was less likely, with what else could have come on hover."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from labkit.palette import PALETTE, tint
from labkit.show.pieces import Html, escape, key, share_words, table, unfold

MOST_TINTED = 2000  # tokens; those before are plain text
MOST_LISTED = 300
STEPS = 8  # tints told apart


class Shown(NamedTuple):
    """A token as it is shown: its text, its probability (None for text that was only held back), the likeliest tokens
    with theirs, and its place among them (0 is the likeliest; None outside them)."""

    id: int
    text: str
    p: float | None
    alternatives: tuple[tuple[str, float], ...] = ()
    place: int | None = None

    @property
    def words(self) -> str:
        """The hover's text: a line an alternative, the chosen one marked."""
        if self.p is None:
            return ""
        lines = [f"{'▸' if place == self.place else ' '} {text!r}  {share_words(p)}" for place, (text, p) in
                 enumerate(self.alternatives)]  # fmt: skip
        if self.place is None:
            lines.append(f"▸ {self.text!r}  {share_words(self.p)}")
        return "\n".join(lines)


def tint_of(p: float) -> str:
    """The colour laid beneath a token: none for one that was nearly certain."""
    depth = round((1 - p) * STEPS) / STEPS
    return tint(PALETTE[1], 0.55 * depth) if depth else ""


def tokens_html(tokens: Sequence[Shown]) -> Html:
    """The text they make, each token on its tint; one that was not the likeliest is underlined."""
    plain = "".join(one.text for one in tokens[:-MOST_TINTED]) if len(tokens) > MOST_TINTED else ""
    drawn = "".join(token_html(one) for one in tokens[-MOST_TINTED:])
    style = "white-space:pre-wrap;line-height:1.7;font-size:1.05em;max-width:60em"
    return Html(f"<div style='{style}'>{escape(plain)}{drawn}</div>\n")


def token_html(one: Shown) -> str:
    """One token."""
    if not one.text:
        return ""
    if one.p is None:
        return escape(one.text)
    colour = tint_of(one.p)
    line = "text-decoration:underline dotted;" if one.place != 0 else ""
    beneath = f"background-color:{colour};" if colour else ""
    title = escape(one.words).replace("\n", "&#10;")
    return f'<span title="{title}" style="{line}{beneath}">{escape(one.text)}</span>'


def legend_html() -> Html:
    """What the tints mean."""
    parts = " ".join(f"<span style='background-color:{tint_of(p)}'>&nbsp;{share_words(p)}&nbsp;</span>" for p in
                     (1.0, 0.5, 0.1, 0.01))  # fmt: skip
    return Html(
        f"<p>probability {parts}; underlined: not the likeliest. The alternatives appear when the pointer rests on a token."
        "</p>\n"
    )


def tokens_table(tokens: Sequence[Shown]) -> Html:
    """The tokens one by one with their alternatives, to unfold."""
    known = [one for one in tokens if one.p is not None][:MOST_LISTED]
    rows = []
    for number, one in enumerate(known, 1):
        others = ", ".join(f"{text!r} {share_words(p)}" for place, (text, p) in enumerate(one.alternatives)
                           if place != one.place)  # fmt: skip
        rows.append((number, repr(one.text), share_words(one.p or 0.0), others))
    return unfold("every token", table(("", "token", "probability", "alternatives"), rows, numbers=(0, 2)))


def shown(token_id: int, text: str, logprob: float, top: Sequence[tuple[int, float]], words: dict[int, str]) -> Shown:
    """A token of the engine's as it is shown; `words` has the text of each id."""
    if token_id < 0:
        return Shown(token_id, text, None)
    place = next((place for place, (other, _) in enumerate(top) if other == token_id), None)
    alternatives = tuple((words[other], math.exp(value)) for other, value in top)
    return Shown(token_id, text, math.exp(logprob), alternatives, place)


__all__ = ["Shown", "key", "legend_html", "shown", "tokens_html", "tokens_table"]
