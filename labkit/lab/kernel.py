"""Where a run's kernel lives: the environment's own Python, private sockets, and a scratch folder for both."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import labkit

KERNEL_NAME = "python3"
SOCKET_PATH_LIMIT = 80  # a UNIX socket's path holds about 100 bytes, and names are added to this folder


def make_scratch() -> Path:
    """A private folder with a path short enough for sockets. The caller removes it."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) < SOCKET_PATH_LIMIT - 20 and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="lab-", dir=base))
    return Path(tempfile.mkdtemp(prefix="lab-"))


def remove_scratch(scratch: Path) -> None:
    """Removes the folder and the sockets in it."""
    shutil.rmtree(scratch, ignore_errors=True)


def kernel_spec(display_name: str) -> dict[str, object]:
    """This very Python as a kernel, with labkit's magics and its plots' look: the same by hand as under `lab run`."""
    return {
        "argv": [
            *(sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            "--ext=labkit",
        ],
        "display_name": display_name,
        "language": "python",
    }


def install_kernel(scratch: Path) -> dict[str, str]:
    """Writes a kernel called `python3` that is this very Python, and returns the environment that makes Jupyter use it
    before any other kernel of the machine, with a fresh profile: no start-up files of the user's change a run."""
    folder = scratch / "share" / "kernels" / KERNEL_NAME
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(kernel_spec("Python 3")), encoding="utf-8")
    (scratch / "ipython").mkdir()
    return {
        "JUPYTER_PATH": str(scratch / "share"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "JUPYTER_NO_CONFIG": "1",
    }


def with_labkit(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` in which a child Python imports this very labkit, also when it is run from its source folder."""
    source = Path(labkit.__path__[0]).resolve().parent
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if source.name not in ("site-packages", "dist-packages") and str(source) not in paths:
        paths.insert(0, str(source))
    return dict(environment) | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
