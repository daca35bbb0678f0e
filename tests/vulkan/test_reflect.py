"""What is read from SPIR-V: names, offsets, sizes, and the arithmetic of specialisation constants."""

import functools
import struct

import numpy as np
import pytest
from tiny_kernels import BLEND, SHAPES, needs_compiler

from labkit.errors import ShaderError
from labkit.vulkan import compile as glsl
from labkit.vulkan.compile import load_spirv, read_manifest, shader_root
from labkit.vulkan.reflect import Member, reflect

pytestmark = pytest.mark.quick


@functools.cache
def compile_glsl(text: str) -> bytes:
    return glsl.compile_glsl(text)


@needs_compiler
def test_push_constants_have_their_std430_offsets_and_formats():
    face = reflect(compile_glsl(SHAPES), "shapes")
    # std430: a reference is 8 bytes, a vec2 aligned to 8, a uvec4 to 16
    assert face.push == (
        Member("y", 0, "Q"), Member("count", 8, "I"), Member("offset", 12, "i"), Member("scale", 16, "f"),
        Member("shift", 24, "ff"), Member("mask", 32, "IIII"),
    )  # fmt: skip
    assert face.push_bytes == 48


@needs_compiler
def test_specialisation_constants_are_known_by_name_with_id_and_default():
    face = reflect(compile_glsl(BLEND), "blend")
    one = struct.unpack("<I", struct.pack("<f", 1.0))[0]
    assert face.constants == {"LOCAL": (0, "I", 32), "SCALE": (1, "f", one), "NEGATE": (2, "I", 0)}
    assert set(reflect(compile_glsl(SHAPES), "shapes").constants) == {"WIDTH", "ROWS", "TWICE", "SHIFT"}


@needs_compiler
@pytest.mark.parametrize(
    ("width", "rows", "twice", "shift"), [(8, 4, True, 2), (16, 4, True, 2), (16, 1, False, 3), (64, 7, True, 0)]
)
def test_sizes_follow_the_constants_given(width, rows, twice, shift):
    given = {"WIDTH": width, "ROWS": rows, "TWICE": int(twice), "SHIFT": shift}
    face = reflect(compile_glsl(SHAPES), "shapes", given)
    assert face.local_size == (width, rows, 1)
    floats = width * (rows + 1)
    vectors = (2 * width if twice else width) >> shift
    assert face.shared_bytes == 4 * floats + 16 * vectors + 3 * 12


def test_every_committed_shader_is_read_with_its_names():
    for name in read_manifest():
        face = reflect((shader_root() / "spv" / name).read_bytes(), name)
        assert face.push, name
        assert all(not member.name.startswith("member") for member in face.push), f"{name} lost its names"
        assert 4 <= face.push_bytes <= 128, f"{name}: every device passes 128 bytes of push constants"
        assert face.shared_bytes <= 32768, name


@needs_compiler
def test_a_push_constant_of_another_type_is_refused_by_name():
    text = "#version 450\nlayout(local_size_x=1) in;\nlayout(push_constant) uniform P { mat4 m; };\n"
    binary = compile_glsl(text + "void main() { if (m[0][0] > 0) barrier(); }\n")
    with pytest.raises(ShaderError, match=r"odd: push constant m has a type labkit does not pass"):
        reflect(binary, "odd")


@pytest.mark.parametrize("damage", ["empty", "short", "magic", "cut", "zero"])
def test_bytes_that_are_not_spirv_are_refused_in_one_line(damage):
    good = load_spirv("add")
    bad = {
        "empty": b"", "short": good[:16], "magic": b"\0" * 4 + good[4:], "cut": good[: len(good) // 2 // 4 * 4],
        "zero": good[:20] + b"\0" * 4 + good[24:],
    }[damage]  # fmt: skip
    with pytest.raises(ShaderError, match=r"damaged is (not SPIR-V|damaged SPIR-V|SPIR-V cut short)") as caught:
        reflect(bad, "damaged")
    assert "\n" not in str(caught.value)
    assert "lab shaders" in str(caught.value)


def test_random_damage_never_ends_in_another_error_than_ours():
    good = np.frombuffer(load_spirv("rms_norm"), np.uint8)
    rng, said = np.random.default_rng(5), []
    for _ in range(200):
        bad = good.copy()
        for at in rng.integers(20, len(bad), 4):
            bad[at] = rng.integers(0, 256)
        try:
            reflect(bad.tobytes(), "noise")
        except ShaderError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all("noise" in text and "\n" not in text for text in said)
