"""A headless Chromium with no network, driven over its DevTools protocol: what it asked for, drew and complained of."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Tab:
    """One tab. `requests` are the addresses it asked for, `complaints` its console errors and policy violations."""

    def __init__(self, address: str) -> None:
        self.socket = websocket.create_connection(address, timeout=60)
        self.last = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.last:
                assert "error" not in message, message["error"]
                return message["result"]
            self.note(message)

    def note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("exception", parameters)))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    def open(self, page: Path, ready: str = "document.readyState === 'complete'", seconds: float = 40) -> None:
        """Opens a page from the disk and waits until `ready` holds; fails when it does not."""
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + seconds
        while not (self.evaluate("document.readyState === 'complete'") and self.evaluate(ready)):
            assert time.monotonic() < deadline, f"{page} never came to {ready}; {self.complaints}"
            time.sleep(0.1)

    def before_scripts(self, source: str) -> None:
        """Runs `source` in every page opened from now on, before the page's own scripts."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=source)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])


@contextmanager
def chromium() -> Iterator[Tab]:
    """A tab of a fresh Chromium, ended with it. The test fails, and says what to install, when there is none."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("this test needs Chromium: apt-get install chromium (or another Chrome on the PATH)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Tab(tab_address(Path(profile) / "DevToolsActivePort", process))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def tab_address(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the first tab's DevTools answer, once Chromium has said so."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended at once with status {process.returncode}"
        if port_file.exists() and port_file.read_text().strip():
            port = port_file.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("Chromium did not open its DevTools in 40 s")
