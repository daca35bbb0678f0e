"""Folders of safetensors written by hand, nonsense included."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crafted_gguf import TINY


def copied(name: str, to: Path) -> Path:
    """A copy of a tiny folder, to be damaged."""
    return Path(shutil.copytree(TINY / name, to / name))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Read a JSON file, have `change` alter the object, and write it."""
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Alter the header of a safetensors file; the bytes of its tensors stay."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
