"""The colours of the lab, legible on light and on dark pages, whatever the reader's eyes."""

# Okabe-Ito, in the order used; its yellow is last and its black is left out: they vanish on white and on black pages.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
NEUTRAL = "#767c86"  # legible on a white page (4.2:1) and on a dark one (4.4:1)
GRID = "rgba(128,134,144,0.25)"


def tint(colour: str, opacity: float = 0.8) -> str:
    """A colour let through to the page behind it: `#0072B2` at 0.8 is `rgba(0,114,178,0.8)`."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


TINTS = tuple(tint(colour) for colour in PALETTE)
