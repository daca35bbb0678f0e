"""A kernel's HTML: its workgroup, what it is called with, and its specialisation constants."""

import struct
from typing import TYPE_CHECKING

from labkit.show.pieces import Html, facts_table, size_words, table

if TYPE_CHECKING:
    from labkit.vulkan.kernel import Kernel

FORMATS = {"Q": "address", "I": "uint", "i": "int", "f": "float", "d": "double"}


def kernel_html(kernel: "Kernel") -> Html:
    """Limits it was checked against, push constants in their order, and a row a constant with its default."""
    face = kernel.interface
    x, y, z = face.local_size
    facts = {
        "workgroup": f"{x} × {y} × {z} = {x * y * z} of at most {kernel.device.info.max_workgroup_invocations}",
        "shared memory": f"{size_words(face.shared_bytes)} of {size_words(kernel.device.info.max_shared_bytes)}",
        "push constants": f"{face.push_bytes} bytes: {push_words(kernel)}" if face.push else "none",
        "device": kernel.device.name,
    }
    rows = []
    for name, (ident, code, default) in sorted(face.constants.items(), key=lambda one: one[1][0]):
        usual = constant_value(code, default)
        rows.append((name, ident, kernel.constants.get(name, usual), usual))
    head = ("specialisation constant", "id", "value", "default")
    constants = table(head, rows, numbers=(1, 2, 3)) if rows else ""
    return Html(facts_table(facts, kernel.name) + constants)


def push_words(kernel: "Kernel") -> str:
    """`x (address), count (uint)`: what `run` and `dispatch` take by name."""
    return ", ".join(f"{one.name} ({format_words(one.format)})" for one in kernel.interface.push)


def format_words(code: str) -> str:
    """A push constant's format in GLSL's words: `Q` is an address, `fff` three floats."""
    kinds = [FORMATS.get(letter, letter) for letter in code]
    return kinds[0] if len(kinds) == 1 else f"{len(kinds)} × {kinds[0]}" if len(set(kinds)) == 1 else ", ".join(kinds)


def constant_value(code: str, word: int) -> str:
    """A constant's 32-bit word as the value it stands for."""
    if code == "f":
        return f"{struct.unpack('<f', struct.pack('<I', word))[0]:g}"
    if code == "?":
        return str(bool(word))
    return str(struct.unpack("<i", struct.pack("<I", word))[0] if code == "i" else word)
