"""Fixtures of operations: a device that plays matrices built in registers, which no driver on a CPU has."""

import pytest

from labkit.ops import linear_call, linear_fragments
from labkit.ops.coopmat_layout import Operands
from labkit.vulkan.compile import compile_glsl, shader_root
from labkit.vulkan.kernel import Kernel
from labkit.vulkan.shader_build import variants
from labkit.vulkan.toolchain import find_compiler


@pytest.fixture(scope="session")
def binaries():
    if find_compiler(pinned=False) is None:
        pytest.skip("no GLSL compiler is on this machine: `lab shaders --fetch-compiler`")
    text = (shader_root() / "linear_fragments.comp").read_text()
    return {
        layout: compile_glsl(text, defines=[*(d.removeprefix("-D") for d in defines), "EMULATED"], name=layout)
        for layout, defines in variants(text, "linear_fragments").items()
    }


@pytest.fixture
def emulating(device, binaries, monkeypatch):
    """The device, which takes Fragments and runs them emulated."""
    if not device.has("fp16", "storage16"):
        pytest.skip(f"{device.name} has no float16 arithmetic")
    real, made = device.kernel, {}

    def kernel(op, variant="", constants=None, subgroup=0):
        if op != "linear_fragments":
            return real(op, variant, constants, subgroup)
        key = variant, tuple(sorted(constants.items()))
        if key not in made:
            made[key] = Kernel(device, binaries[variant], name=f"emulated {variant}", constants=constants)
        return made[key]

    monkeypatch.setattr(device, "kernel", kernel)
    monkeypatch.setattr(linear_fragments, "fragments_lack", lambda *_: "")
    monkeypatch.setattr(linear_call, "operands_of", lambda _: Operands(0x3210, 0x10))
    yield device
    for one in made.values():
        one.close()
