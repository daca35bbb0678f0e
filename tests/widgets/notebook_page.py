"""A JupyterLab of a scratch lab, open in a headless Chromium: cells run, widgets clicked, what the console complained of."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from chromium import Tab, chromium

from labkit.lab import jupyter

NOTEBOOK = "views"
PANEL = "[...(window.jupyterapp?.shell?.widgets('main') ?? [])].find(one => one.sessionContext)"
READY = f"!!document.querySelector('.jp-Notebook') && !!({PANEL})"
ACTIVE = f"(jupyterapp.shell.activateById(({PANEL}).id), jupyterapp.shell.currentWidget?.id === ({PANEL}).id)"
IDLE = f"({PANEL}).sessionContext.session?.kernel?.status === 'idle'"


class Notebook:
    """A notebook open in a tab."""

    panel = f"({PANEL})"

    def __init__(self, tab: Tab, path: Path) -> None:
        self.tab, self.path = tab, path

    def command(self, name: str, **arguments: Any) -> None:
        """Run a command of JupyterLab's and wait for it to end."""
        self.tab.evaluate(f"jupyterapp.commands.execute({name!r}, {json.dumps(arguments)}).then(() => true)")

    def begin(self, name: str) -> None:
        """Start a command and do not wait."""
        self.tab.evaluate(f"(jupyterapp.commands.execute({name!r}), true)")

    def until(self, expression: str, seconds: float = 60) -> Any:
        """What `expression` comes to once it is truthy; fails when it never is."""
        deadline = time.monotonic() + seconds
        while not (found := self.tab.evaluate(expression)):
            shown = self.tab.evaluate("document.querySelector('.jp-Notebook')?.innerText") or ""
            assert time.monotonic() < deadline, f"never came to {expression}\n{shown[-2000:]}\n{self.tab.complaints}"
            time.sleep(0.1)
        return found

    def click(self, label: str) -> None:
        """Press the button that says `label`."""
        find = f"[...document.querySelectorAll('button.jupyter-button')].find(b => b.innerText.trim() === {label!r})"
        self.until(f"{find} && !{find}.disabled")
        self.tab.evaluate(f"({find}.click(), true)")

    def text(self) -> str:
        """What the notebook shows."""
        return str(self.tab.evaluate("document.querySelector('.jp-Notebook').innerText"))

    def picture(self, path: Path) -> None:
        """Keeps what is seen as a PNG."""
        path.write_bytes(b64decode(self.tab.call("Page.captureScreenshot", format="png")["data"]))

    def theme(self, name: str) -> None:
        """`JupyterLab Light` or `JupyterLab Dark`."""
        self.command("apputils:change-theme", theme=name)
        time.sleep(0.7)


@contextmanager
def opened(root: Path, cells: Sequence[str], size: tuple[int, int] = (1200, 1000)) -> Iterator[Notebook]:
    """JupyterLab at the lab `root` with a notebook of `cells`, none of them run yet; stopped at the end."""
    path = root / "notebooks" / f"{NOTEBOOK}.ipynb"
    path.parent.mkdir(exist_ok=True)
    made = [nbformat.v4.new_code_cell(text, id=f"cell-{number}") for number, text in enumerate(cells)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), path)
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    home = jupyter.register_kernel(jupyter.jupyter_home(root / ".cache"))
    jupyter._write(home / "settings" / "overrides.json", jupyter.OVERRIDES)
    extra = ["--IdentityProvider.token=", "--ServerApp.password=", "--LabApp.expose_app_in_browser=True"]
    words = jupyter.command_line(root, home, browser=False, port=port, extra=extra)
    environment = jupyter.environment(root, home) | {"PYTHONPATH": os.pathsep.join([*sys.path[:1], str(Path.cwd())])}
    with (root / "jupyter.log").open("w") as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{base}/api", timeout=5):
                    break
            except OSError:
                assert server.poll() is None, (root / "jupyter.log").read_text()[-2000:]
                assert time.monotonic() < deadline, (root / "jupyter.log").read_text()[-2000:]
                time.sleep(0.2)
        with chromium() as tab:
            tab.size(*size)
            tab.call("Emulation.setFocusEmulationEnabled", enabled=True)  # a tab that nobody looks at has no focus
            tab.call("Page.navigate", url=f"{base}/lab/workspaces/test/tree/notebooks/{NOTEBOOK}.ipynb?reset")
            notebook = Notebook(tab, path)
            notebook.until(READY)
            notebook.until(ACTIVE)
            notebook.until(IDLE)
            yield notebook
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)
