"""A person's own lab, outside labkit's repository: a folder with a template, empty ledgers and a launcher."""

import os
import secrets
import shlex
import shutil
from importlib.resources import files
from pathlib import Path

import labkit
from labkit.errors import LabError
from labkit.lab.lab import MARKER, is_lab
from labkit.lab.ledger import render

GIT = ".git"
HEADS = {
    "FINDINGS.md": """# Findings

What I asked of a model on a device, and what the data answered. Planned runs put entries here (`./lab run template`); I
write one with `./lab note finding "text"`. `./lab ledger verify` recomputes every number.
""",
    "MISTAKES.md": """# Mistakes

What I believed and what turned out wrong: why I believed it, what was measured, what corrected it. Runs put entries here
by themselves; I write one with `./lab note mistake "text"`.
""",
    "OPEN-PROBLEMS.md": """# Open problems

What was tried and is not settled. I add one with `./lab note problem "text"`.
""",
    "LEVERS.md": """# Levers

What each knob was measured to do, from one value to another, with its interval and where it holds.
""",
}
MARKER_TEXT = """\
# A lab of labkit: `lab` takes the notebooks, the data and the ledgers beside this file for its own.
schema = 1
"""
IGNORED = """\
/site/
/.site*
/data/models/
/data/runs/.*/
/data/ledger/.*
/data/device/
.ipynb_checkpoints/
__pycache__/
"""
ATTRIBUTES = """\
# Two branches that each added entries merge without a conflict: events are files of their own, and the ledgers made of
# them take the lines of both. Afterwards `./lab ledger render` makes the ledgers anew from the events of both.
FINDINGS.md merge=union
MISTAKES.md merge=union
OPEN-PROBLEMS.md merge=union
LEVERS.md merge=union
# Hashed byte for byte, so never given other line endings.
data/ledger/** -text
data/runs/** -text
"""
LAUNCHER = """\
#!/bin/sh
# Starts labkit on this lab: the checkout that LABKIT_HOME names, else the one that made this lab, else an installed one.
here=$(cd "$(dirname "$0")" && pwd -P)
export LABKIT_LAB="$here"
for home in "${{LABKIT_HOME:-}}" {checkout}; do
    if [ -n "$home" ] && [ -x "$home/lab" ]; then exec "$home/lab" "$@"; fi
done
IFS=:
for folder in $PATH; do
    if [ -x "$folder/lab" ] && [ "$folder/lab" != "$here/lab" ]; then exec "$folder/lab" "$@"; fi
done
echo "lab: labkit was not found; set LABKIT_HOME to its checkout" >&2
exit 2
"""


def make_lab(folder: Path) -> Path:
    """Makes a lab of `folder`, which must be empty or absent (a fresh git repository counts as empty), and returns it.

    LabError when it holds anything, or lies inside another lab; then nothing is made."""
    target = folder.expanduser().absolute()
    try:
        check_place(target)
    except OSError as error:
        raise LabError(f"{target} cannot be looked into: {error.strerror}") from None
    aside = target.parent / f".{target.name}.new-{secrets.token_hex(4)}"
    try:
        aside.mkdir(parents=True)
        fill(aside)
        if target.is_dir():
            for path in sorted(aside.iterdir(), key=lambda path: path.name == MARKER):  # a lab once its marker is there
                path.rename(target / path.name)
        else:
            aside.rename(target)
    except OSError as error:
        raise LabError(f"{target} cannot be made: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def check_place(target: Path) -> None:
    """LabError when a lab cannot be made at `target`."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise LabError(f"{target} is not a folder; name a new one")
    if target.is_dir() and is_lab(target):
        raise LabError(f"{target} is a lab already; go into it and run `lab --help`")
    held = sorted(path.name for path in target.iterdir() if path.name != GIT) if target.is_dir() else []
    if held:
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise LabError(f"{target} is not empty: it has {held[0]}{more}; name a new folder")
    outer = next((parent for parent in target.resolve().parents if is_lab(parent)), None)
    if outer is not None:
        raise LabError(f"{target} lies inside the lab at {outer}; name a folder outside it")


def fill(folder: Path) -> None:
    """Writes everything a lab begins with."""
    starter = files("labkit.lab") / "starter"
    for name in ("notebooks", "data", "figures"):
        (folder / name).mkdir()
    (folder / "notebooks" / "template.ipynb").write_bytes((starter / "template.ipynb").read_bytes())
    texts = {
        "README.md": (starter / "README.md").read_text(encoding="utf-8"),
        ".gitignore": IGNORED,
        ".gitattributes": ATTRIBUTES,
        "figures/.gitkeep": "",
        "lab": launcher(),
        MARKER: MARKER_TEXT,
        **HEADS,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "lab").chmod(0o755)
    published = checkout() / "data" / "claims"
    if published.is_dir():  # the published numbers that notebooks hold their own against
        shutil.copytree(published, folder / "data" / "claims")
    render(folder)


def checkout() -> Path:
    """Where the labkit that runs lies; of an installed one, where its packages are."""
    return Path(labkit.__path__[0]).resolve().parent


def launcher() -> str:
    """The lab's own `./lab`; a checkout below the home folder is named from there, so nobody's name is in it."""
    place, home = checkout(), Path.home()
    if not os.access(place / "lab", os.X_OK):
        return LAUNCHER.format(checkout='""')
    if place.is_relative_to(home) and home != Path("/"):
        return LAUNCHER.format(checkout=f'"$HOME"/{shlex.quote(place.relative_to(home).as_posix())}')
    return LAUNCHER.format(checkout=shlex.quote(str(place)))
