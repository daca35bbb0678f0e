"""The conditions of a run that the system can tell: host, code, packages and shaders."""

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from labkit.lab.record import Git, Host

# What the lab itself writes: a new finding does not make the code dirty.
OWN_OUTPUT = ("data", "figures", "site", "FINDINGS.md", "MISTAKES.md", "LEVERS.md", "OPEN-PROBLEMS.md")


def capture_host() -> Host:
    """Processor, logical cores, memory in bytes, system and boot id. The host's name is left out on purpose."""
    return Host(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        ram_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        os=f"{os_name()}, {platform.system()} {platform.release()} {platform.machine()}",
        boot_id=boot_id(),
    )


def cpu_model() -> str:
    """The processor as it names itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def os_name() -> str:
    """The distribution and its version."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def boot_id() -> str | None:
    """The kernel's id of this boot: two runs of one boot share clocks, firmware and page cache."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def capture_git(root: Path) -> Git | None:
    """The commit under `root`, whether its code differs, and a hash of the difference (tracked changes and untracked
    files; the lab's own data and ledgers are not code). Outside a repository what LABKIT_COMMIT says, 40 hex digits, or
    None."""
    paths = ["--", ".", *(f":(exclude){name}" for name in OWN_OUTPUT)]
    try:
        commit = _git(root, "rev-parse", "HEAD").decode().strip()
        diff = _git(root, "diff", "HEAD", "--binary", *paths)
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z", *paths)
    except (OSError, subprocess.CalledProcessError):
        told = os.environ.get("LABKIT_COMMIT", "")
        return Git(commit=told, dirty=None) if re.fullmatch("[0-9a-f]{40}", told) else None
    digest = hashlib.sha256(diff)
    names = [name for name in untracked.split(b"\0") if name]
    for name in sorted(names):
        digest.update(b"\0" + name + b"\0")
        path = root / os.fsdecode(name)
        if path.is_file():
            digest.update(path.read_bytes())
    dirty = bool(diff or names)
    return Git(commit=commit, dirty=dirty, diff_sha256=digest.hexdigest() if dirty else None)


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # never touch the index from a run
    return subprocess.run(command, check=True, capture_output=True, timeout=30, env=environment).stdout


def capture_packages() -> dict[str, str]:
    """Every installed distribution and its version, and Python's own, by name."""
    found = {"python": platform.python_version()}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return dict(sorted(found.items()))


def capture_shaders(folder: Path) -> dict[str, str]:
    """SHA-256 of what runs on the device, by path in the shaders' folder: compiled ones and their manifest, else the
    sources."""
    compiled = [*folder.glob("spv/*.spv"), *folder.glob("spv/manifest.json")]
    files = compiled or [path for path in folder.rglob("*") if path.suffix in {".comp", ".glsl", ".h"}]
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(files)}


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
