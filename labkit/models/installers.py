"""Fetching one package without its dependencies through pip or uv, so that their mirrors, proxies and keys apply."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.errors import ModelError
from labkit.models.progress import progress


def fetch_with_pip(requirement: str, stage: Path) -> Path:
    """Download the wheel of `requirement` into a folder of `stage`; returns that folder. Raises ModelError."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError("not in this environment")
    from importlib.metadata import version

    folder = stage / "wheel"
    raw = tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2]) >= (24, 1)
    _follow(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar", "raw" if raw else "off"),
            *("--dest", str(folder), requirement),
        ],
        stage,
        requirement,
    )
    return folder


def fetch_with_uv(requirement: str, stage: Path) -> Path:
    """Unpack `requirement` into a folder of `stage` (uv has no download verb); returns it. Raises ModelError."""
    uv = shutil.which("uv")
    if uv is None:
        raise ModelError("not found")
    folder = stage / "unpacked"
    _follow(
        [
            *(uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--python", sys.executable),
            *("--link-mode", "copy", "--target", str(folder), requirement),
        ],
        stage,
        requirement,
    )
    return folder


def _follow(command: list[str], stage: Path, label: str) -> None:
    """Run `command` with its temporary files in `stage`, showing the progress it reports as a bar."""
    environment = {**os.environ, "TMPDIR": str(stage), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        with process.stdout, progress(label, None) as bar:
            for line in process.stdout:
                if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                    bar.total = int(match[2]) or None
                    bar.update(int(match[1]) - bar.n)
                elif line.strip():
                    said.append(line.strip())
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        errors = [line for line in said if re.match(r"(?i)(error|×|╰)", line)] or said or [f"exit {code}"]
        raise ModelError(re.sub(r"//[^/@\s]+@", "//***@", re.sub(r"(?i)^error:\s*", "", errors[-1]))[:200])
