"""JupyterLab as the lab opens it: this Python as its kernel, with labkit's magics and its plots' look; no news pop-up."""

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from labkit.errors import LabError
from labkit.lab.experiments import find_notebook
from labkit.lab.kernel import KERNEL_NAME, kernel_spec, with_labkit
from labkit.vulkan.toolchain import cache_root

# settings a person would otherwise be asked about at the first start; what they choose themselves still wins
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}


def jupyter_home(cache: Path | None = None) -> Path:
    """labkit's own Jupyter folder for this Python, in the user's cache: its kernel and the settings' defaults."""
    name = hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    return (cache or cache_root()) / "jupyter" / name


def _write(path: Path, content: object) -> None:
    """Write JSON whole, aside and renamed: two JupyterLabs may start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    aside.replace(path)


def register_kernel(home: Path) -> Path:
    """Register this very Python as the kernel `python3` below `home`; the folder to put on JUPYTER_PATH."""
    spec = kernel_spec("Python 3 (labkit)") | {"metadata": {"debugger": True}}
    _write(home / "kernels" / KERNEL_NAME / "kernel.json", spec)
    return home


def environment(root: Path, home: Path) -> dict[str, str]:
    """The environment JupyterLab is started in: labkit's kernel before any other, this labkit, this lab."""
    found = with_labkit(os.environ)
    found["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(home), found.get("JUPYTER_PATH")]))
    found["LABKIT_LAB"] = str(root)
    return found


def command_line(
    root: Path, home: Path, *, browser: bool, port: int | None, extra: Sequence[str], opened: Path | None = None
) -> list[str]:
    """How JupyterLab is started: rooted at the repository, so data and ledgers are in reach, open at notebooks/, or at
    the notebook `opened` where that lies in the lab."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    words.append(f"--LabApp.app_settings_dir={home / 'settings'}")
    if opened is not None or (root / "notebooks").is_dir():
        if opened is not None and not opened.is_relative_to(root):
            raise LabError(f"{opened} lies outside the lab at {root}; copy it into its notebooks/")
        inside = opened.relative_to(root).as_posix() if opened is not None else "notebooks"
        words.append(f"--LabApp.default_url=/lab/tree/{quote(inside)}")
    if not browser:
        words.append("--no-browser")
    if port is not None:
        words.append(f"--port={port}")
    if os.geteuid() == 0:
        words.append("--allow-root")
    return [*words, *extra]


def open_lab(
    root: Path, *, browser: bool, port: int | None, extra: Sequence[str], experiment: str | None = None
) -> None:
    """Become JupyterLab, open at the notebook of `experiment`. Does not return; LabError when it is not installed here, or
    for an experiment that the lab does not have."""
    if importlib.util.find_spec("jupyterlab") is None or importlib.util.find_spec("ipykernel") is None:
        raise LabError(
            f"JupyterLab is not installed for {sys.executable}: use `./lab notebook`, or `pip install '.[lab]'`"
        )
    opened = find_notebook(root, experiment) if experiment else None
    home = register_kernel(jupyter_home())
    _write(home / "settings" / "overrides.json", OVERRIDES)
    words = command_line(root, home, browser=browser, port=port, extra=extra, opened=opened)
    sys.stdout.flush()
    os.execve(words[0], words, environment(root, home))
