"""A stored figure as a PNG, where a Chrome is found to draw it."""

import hashlib
import json
import struct
import zlib
from functools import cache
from pathlib import Path

from labkit.errors import ParameterError

BROWSER_TIMEOUT_S = 60
SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEY = b"labkit-figure\0"  # of the text in a PNG that says which figure it shows


@cache
def find_browser() -> str | None:
    """The path of a Chrome or Chromium that kaleido can draw with, or None. Looked for once a process."""
    try:
        from choreographer.browsers.chromium import Chromium
    except ImportError:
        return None
    try:
        found: str | None = Chromium.find_browser(skip_local=False)
    except (RuntimeError, ValueError, OSError):
        return None
    return found


def write_png(figure_path: Path, png_path: Path, width: int = 960, height: int = 540, scale: float = 2) -> bool:
    """Draws a stored figure (plotly JSON) as a PNG on white; False, with nothing written, when there is no Chrome that
    can draw it. The PNG says which figure it shows (`figure_shown`).

    Sizes are in pixels before `scale`. ParameterError when the file holds no plotly figure. Needs no network."""
    try:
        figure = json.loads(figure_path.read_text(encoding="utf-8"))
        layout = figure.setdefault("layout", {})
        figure["data"] = list(figure["data"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParameterError(f"{figure_path} holds no plotly figure ({type(error).__name__}: {error})") from None
    if find_browser() is None:
        return False
    import kaleido

    layout["paper_bgcolor"] = layout["plot_bgcolor"] = "white"
    layout["font"] = {"color": "#22262b"} | layout.get("font", {})
    options = {"width": width, "height": height, "scale": scale}
    png_path.parent.mkdir(parents=True, exist_ok=True)
    aside = png_path.with_name(f".{png_path.stem}.part.png")
    try:
        kaleido.write_fig_sync(figure, path=aside, opts=options, kopts={"mathjax": False, "timeout": BROWSER_TIMEOUT_S})
        aside.write_bytes(stamped(aside.read_bytes(), figure_mark(figure_path)))
        aside.replace(png_path)
    except (RuntimeError, OSError):  # Chrome does not start, dies, answers too late, or cannot draw this figure
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def figure_mark(figure_path: Path) -> str:
    """What tells a stored figure from others: the SHA-256 of its file."""
    return hashlib.sha256(figure_path.read_bytes()).hexdigest()


def figure_shown(png_path: Path) -> str:
    """The mark of the figure that a PNG shows; nothing for one that does not say, or that cannot be read."""
    try:
        head = png_path.read_bytes()[:4096]
    except OSError:
        return ""
    place = head.find(b"tEXt" + KEY)
    mark = head[place + 4 + len(KEY) :][:64] if head.startswith(SIGNATURE) and place > 0 else b""
    return mark.decode("ascii", errors="replace") if len(mark) == 64 else ""


def stamped(png: bytes, mark: str) -> bytes:
    """A PNG with a mark in a text chunk after its header (PNG specification, 11.3.3.3); what is no PNG stays."""
    header = len(SIGNATURE) + 25  # IHDR: length, name, 13 bytes, checksum
    if not png.startswith(SIGNATURE) or png[12:16] != b"IHDR":
        return png
    chunk = b"tEXt" + KEY + mark.encode()
    text = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png[:header] + text + png[header:]
