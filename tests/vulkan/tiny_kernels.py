"""Small kernels in GLSL for the tests of the Vulkan layer, and a device whose memory the host does not see."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from labkit.vulkan import memory, toolchain
from labkit.vulkan.device import Device

needs_compiler = pytest.mark.skipif(
    toolchain.find_compiler(pinned=False) is None,
    reason="no GLSL compiler is on this machine: `lab shaders --fetch-compiler`",
)

# y[i] = y[i] * k + x[i] for i < n: what is left depends on the order of the writes
BLEND = """#version 450
#extension GL_EXT_buffer_reference : require
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(constant_id = 0) const uint LOCAL = 32;
layout(constant_id = 1) const float SCALE = 1.0;
layout(constant_id = 2) const bool NEGATE = false;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(push_constant, std430) uniform Push { Floats x; Floats y; float k; uint n; };
void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < n) y.v[i] = (NEGATE ? -SCALE : SCALE) * (y.v[i] * k + x.v[i]);
}
"""

# writes the words [0, n) of a buffer, whatever its size
WRITE = """#version 450
#extension GL_EXT_buffer_reference : require
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(local_size_x = 1) in;
layout(push_constant, std430) uniform Push { Words y; uint n; };
void main() { for (uint i = 0; i < n; i++) y.v[i] = i; }
"""

# shared memory and workgroup size by specialisation constants, and every type a push constant may have
SHAPES = """#version 450
#extension GL_EXT_buffer_reference : require
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(constant_id = 7) const uint WIDTH = 8;
layout(constant_id = 9) const uint ROWS = 4;
layout(constant_id = 3) const bool TWICE = true;
layout(constant_id = 1) const int SHIFT = 2;
layout(local_size_x_id = 7, local_size_y_id = 9, local_size_z = 1) in;
struct Pair { vec2 a; uint b; };
shared float tile[WIDTH * (ROWS + 1)];
shared uvec4 more[(TWICE ? 2 * WIDTH : WIDTH) >> SHIFT];
shared Pair pairs[3];
layout(push_constant, std430) uniform Push { Words y; uint count; int offset; float scale; vec2 shift; uvec4 mask; };
void main() {
    const uint i = gl_LocalInvocationIndex;
    tile[i] = scale + shift.x; more[i % 2] = mask; pairs[i % 3].b = count;
    barrier();
    if (i == 0) y.v[0] = uint(tile[0]) + more[0].x + pairs[0].b + uint(offset);
}
"""


@contextmanager
def hidden_memory(device: Device) -> Iterator[None]:
    """New blocks of kind "device" have no view, as on a discrete GPU: what goes in and out is staged."""
    patch = pytest.MonkeyPatch()
    whole = memory.Block.__init__

    def init(self: memory.Block, where: Device, nbytes: int, kind: str, label: str) -> None:
        whole(self, where, nbytes, kind, label)
        if kind == "device":
            self.view = None

    patch.setattr(memory.Block, "__init__", init)
    try:
        yield
    finally:
        patch.undo()


class ChangedDriver:
    """The driver's functions with some replaced: `ChangedDriver(device.lib, vkQueueSubmit=lambda *a: -4)`."""

    def __init__(self, lib: Any, **changes: Any) -> None:
        self.__dict__.update(changes)
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)
