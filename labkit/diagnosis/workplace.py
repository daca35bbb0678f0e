"""Checks of the workplace: Python and packages, Jupyter, a browser for pictures, models, the lab and its disk."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from labkit.diagnosis import Finding, Machine, State, check
from labkit.errors import LabError
from labkit.vulkan.toolchain import cache_root

ENOUGH_BYTES = 2 << 30
CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;.*extra *== *['\"](\w+)['\"])?")


@check("Python")
def packages(machine: Machine) -> list[Finding]:
    """The interpreter, and whether each package labkit and its lab need is installed."""
    found = [Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")]
    try:
        wanted = importlib.metadata.requires("labkit") or []
    except importlib.metadata.PackageNotFoundError:
        remedy = "run it through `./lab`, or `pip install -e '.[lab,serve,fleet,dev]'`"
        return [*found, Finding("labkit", "note", "not installed in this environment", remedy)]
    lacking: dict[str, list[str]] = {}
    for line in wanted:
        if match := _REQUIREMENT.match(line):
            name, extra = match.groups(default="")
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                lacking.setdefault(extra, []).append(name)
    for extra in ("", "lab", "dev"):
        title = extra or "core"
        if missing := lacking.get(extra):
            state: State = "note" if extra == "dev" else "missing"
            where = f"'.[{extra}]'" if extra else "."
            found.append(
                Finding(title, state, f"lacks {', '.join(missing)}", f"`pip install {where}` in the repository")
            )
        else:
            found.append(Finding(title, "ok", "every package is here"))
    return found


@check("Jupyter")
def jupyter(machine: Machine) -> list[Finding]:
    """The kernel notebooks run on, and JupyterLab."""
    found = []
    if importlib.util.find_spec("ipykernel") is None:
        found.append(Finding("kernel", "missing", "ipykernel is not installed", "`pip install '.[lab]'`"))
    else:
        version = importlib.metadata.version("ipykernel")
        found.append(Finding("kernel", "ok", f"python3 = {sys.executable} (ipykernel {version})"))
    if importlib.util.find_spec("jupyterlab") is None:
        found.append(Finding("JupyterLab", "note", "not installed", "`pip install '.[lab]'`, for `lab notebook`"))
    else:
        found.append(Finding("JupyterLab", "ok", importlib.metadata.version("jupyterlab")))
    return found


@check("Pictures")
def chrome(machine: Machine) -> list[Finding]:
    """A Chrome or Chromium, with which figures are written as PNG."""
    named = os.environ.get("BROWSER_PATH")
    paths = [named if os.access(named, os.X_OK) else None] if named else [shutil.which(name) for name in CHROMES]
    path = next(filter(None, paths), None)
    if path:
        return [Finding("Chrome", "ok", path)]
    remedy = "only for PNG files: `sudo apt-get install chromium` (or Chrome), or set BROWSER_PATH"
    return [Finding("Chrome", "note", f"BROWSER_PATH={named} does not run" if named else "none found", remedy)]


def model_folders() -> dict[str, Path]:
    """Where labkit and other programs keep models: who -> folder, whether or not it exists."""
    home = Path.home()
    hub = os.environ.get("HF_HUB_CACHE") or f"{os.environ.get('HF_HOME') or home / '.cache/huggingface'}/hub"
    return {
        "Hugging Face": Path(hub),
        "llama.cpp": Path(os.environ.get("LLAMA_CACHE") or home / ".cache/llama.cpp"),
        "LM Studio": home / ".lmstudio/models",
        "Ollama": Path(os.environ.get("OLLAMA_MODELS") or home / ".ollama/models"),
    }


@check("Models")
def models(machine: Machine) -> list[Finding]:
    """The lab's own models, and the folders of other programs that hold some."""
    from labkit.models.catalogue import models_folder

    own = models_folder()
    files = sorted(path.name for path in own.glob("**/*.gguf")) if own.is_dir() else []
    found = [
        Finding("labkit", "ok", f"{', '.join(files)} in {own}")
        if files
        else Finding("labkit", "note", f"none in {own} yet", "a run fetches the one it needs; `lab models` lists them")
    ]
    for owner, folder in model_folders().items():
        if folder.is_dir():
            found.append(Finding(owner, "ok", str(folder)))
    return found


@check("Lab")
def lab_and_disk(machine: Machine) -> list[Finding]:
    """The lab repository that runs are written to, and the room on its disk and the cache's."""
    from labkit.lab.lab import find_root

    found, places = [], {"cache": cache_root()}
    try:
        root = find_root(None)
        found.append(Finding("repository", "ok", str(root)))
        places["repository"] = root
    except LabError as error:
        found.append(Finding("repository", "note", str(error)))
    for name, place in places.items():
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        text = f"{free / 2**30:.1f} GiB free at {there}"
        if not os.access(there, os.W_OK):
            found.append(
                Finding(f"{name} disk", "missing", f"{there} cannot be written to", "change its owner or rights")
            )
        elif free < ENOUGH_BYTES:
            found.append(Finding(f"{name} disk", "missing", text, "free 2 GiB: models, packages and runs need room"))
        else:
            found.append(Finding(f"{name} disk", "ok", text, facts={"free_bytes": free}))
    return found
