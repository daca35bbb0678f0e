"""The build of shaders/spv/: which binaries the sources ask for, which are out of date, and making them."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from labkit.errors import ShaderError
from labkit.vulkan.compile import (
    SUFFIX,
    binary_name,
    compile_with,
    input_hash,
    read_includes,
    read_manifest,
    shader_root,
)
from labkit.vulkan.toolchain import PINNED_VERSION, find_compiler

# `// variant f16: -DACT_f16 -DTILE=8` in a shader's head; without such a line a shader has one variant with no name
_VARIANT = re.compile(r"^//[ \t]*variant[ \t]+([^:\n]*):(.*)$", re.MULTILINE)
_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


@dataclass(frozen=True)
class Target:
    """One binary to be: `shaders/<op>.comp` with a variant's definitions, and the hash of all that decides it."""

    op: str
    variant: str
    defines: tuple[str, ...]
    inputs: str

    @property
    def file(self) -> str:
        """Name of the binary in shaders/spv/."""
        return binary_name(self.op, self.variant)


def variants(text: str, named: str) -> dict[str, tuple[str, ...]]:
    """The variants a shader's comments declare: name -> -D flags. Raises ShaderError for a line that cannot be read."""
    found: dict[str, tuple[str, ...]] = {}
    for name, flags in _VARIANT.findall(text):
        name, defines = name.strip(), tuple(flags.split())
        if not _NAME.fullmatch(name):
            raise ShaderError(f"{named}: variant {name!r} must be lower-case letters, digits and underscores")
        if name in found:
            raise ShaderError(f"{named}: variant {name!r} is declared twice")
        if wrong := [flag for flag in defines if not re.fullmatch(r"-D[A-Za-z_]\w*(=\S*)?", flag)]:
            raise ShaderError(f"{named}: variant {name!r} holds {wrong[0]!r}; only -DNAME or -DNAME=VALUE")
        found[name] = defines
    return found or {"": ()}


def targets(root: Path, ops: Iterable[str] = ()) -> list[Target]:
    """Every binary the sources under `root` ask for, or those of `ops`. Raises ShaderError for an unknown op."""
    wanted = list(ops) or sorted(path.name.removesuffix(SUFFIX) for path in root.glob(f"*{SUFFIX}"))
    made = []
    for op in wanted:
        path = root / f"{op}{SUFFIX}"
        if not path.is_file():
            raise ShaderError(f"there is no shader {op!r}: {path} does not exist")
        text = path.read_text(encoding="utf-8")
        includes = read_includes(text, root, path.name)
        for variant, defines in variants(text, path.name).items():
            made.append(Target(op, variant, defines, input_hash(text, includes, defines, PINNED_VERSION)))
    return made


def _binary_hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def problems(root: Path | None = None) -> list[str]:
    """Each disagreement between the sources, the manifest and the binaries, one line each; empty when all agree."""
    root = root or shader_root()
    manifest, found = read_manifest(root), []
    wanted = {target.file: target for target in targets(root)}
    for name, target in wanted.items():
        entry = manifest.get(name)
        if entry is None:
            found.append(f"{name} was never built from {target.op}{SUFFIX}")
        elif entry["inputs"] != target.inputs:
            found.append(f"{name} is older than {target.op}{SUFFIX}, its includes, flags or the pinned compiler")
        elif _binary_hash(root / "spv" / name) != entry["spirv"]:
            found.append(f"{name} is not the binary the manifest names")
    on_disk = {path.name for path in (root / "spv").glob("*.spv")}
    found += [f"{name} has no source any more" for name in sorted((set(manifest) | on_disk) - set(wanted))]
    return found


def build(
    ops: Iterable[str] = (),
    *,
    root: Path | None = None,
    rebuild: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Compile what is out of date (all of it with `rebuild`) and update the manifest; the names of the binaries made.

    Needs the pinned compiler. A shader that does not compile raises ShaderError after the others were built and written
    down. Building everything also removes binaries whose source is gone. Safe while another build runs.
    """
    root, ops = root or shader_root(), list(ops)
    spv = root / "spv"
    spv.mkdir(parents=True, exist_ok=True)
    done: list[str] = []
    failures: list[ShaderError] = []
    with FileLock(spv / ".lock"):
        asked, manifest = targets(root, ops), read_manifest(root)
        stale = [
            t for t in asked
            if rebuild or manifest.get(t.file, {}).get("inputs") != t.inputs
            or _binary_hash(spv / t.file) != manifest[t.file]["spirv"]
        ]  # fmt: skip
        compiler = find_compiler(pinned=True) if stale else None
        if stale and compiler is None:
            raise ShaderError(
                f"{stale[0].file} must be built and the pinned compiler ({PINNED_VERSION.split(';')[0]}) is not here: "
                "run `lab shaders --fetch-compiler`"
            )
        for target in stale:
            assert compiler is not None
            text = (root / f"{target.op}{SUFFIX}").read_text(encoding="utf-8")
            try:
                binary = compile_with(compiler, text, list(target.defines), f"shaders/{target.op}{SUFFIX}", root)
            except ShaderError as error:
                failures.append(error)
                continue
            (spv / target.file).write_bytes(binary)
            manifest[target.file] = {
                "source": f"{target.op}{SUFFIX}",
                "defines": list(target.defines),
                "compiler": compiler.version,
                "inputs": target.inputs,
                "spirv": hashlib.sha256(binary).hexdigest(),
            }
            done.append(target.file)
            say(f"{target.file}  {len(binary)} bytes")
        wanted = {target.file for target in asked}
        gone = [
            name for name in {*manifest, *(path.name for path in spv.glob("*.spv"))} - wanted
            if not ops or name.split(".")[0] in ops
        ]  # fmt: skip
        for name in sorted(gone):
            manifest.pop(name, None)
            (spv / name).unlink(missing_ok=True)
            say(f"{name}  removed")
        if done or gone:
            aside = spv / "manifest.json.new"
            aside.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            aside.replace(spv / "manifest.json")
    if failures:
        more = f" (and {len(failures) - 1} more did not compile)" if len(failures) > 1 else ""
        raise ShaderError(f"{failures[0]}{more}")
    return done
