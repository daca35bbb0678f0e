"""The registry of device layouts: which layout a file's tensor type is repacked into, and by what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TILE = 16  # weight rows a tile holds

Planes = Sequence[np.ndarray]  # uint8 [n, blocks, groups, bytes] each, one behind the other inside a tile's block
Packer = Callable[[np.ndarray], tuple[np.ndarray | Planes, np.ndarray | Planes | None]]


@dataclass(frozen=True)
class Layout:
    """One device layout: `block` elements of a row lie together; `name` is the shader variant that reads it.

    `pack` takes uint8 rows [n, bytes] and gives codes and scales (or None), each [n, k / block, bytes a block]; or
    several planes of them, whose `groups` say how often a tile's rows take turns inside a block.
    """

    name: str
    block: int
    pack: Packer


LAYOUTS: dict[str, Layout] = {}  # by the file's tensor type


def layout(file_type: str, name: str, block: int) -> Callable[[Packer], Packer]:
    """Register the packer that brings `file_type` rows into layout `name`."""

    def register(pack: Packer) -> Packer:
        LAYOUTS[file_type] = Layout(name, block, pack)
        return pack

    return register
