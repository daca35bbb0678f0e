"""Lists the Vulkan devices in a process of its own, so that a driver that crashes or hangs is a finding, not an end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import labkit
from labkit.diagnosis import Listing

TIMEOUT_S = 60
_PROGRAM = """
import dataclasses, json, sys
from labkit.errors import LabError
from labkit.vulkan.device import list_devices
try:
    print(json.dumps({"devices": [dataclasses.asdict(device) for device in list_devices()]}))
except LabError as error:
    print(json.dumps({"trouble": str(error)}))
"""


def list_apart() -> Listing:
    """The devices as facts, or the trouble in one line: a missing loader, a crash, a hang."""
    source = str(Path(labkit.__path__[0]).resolve().parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Listing([], f"listing the devices did not end within {TIMEOUT_S} s: a driver hangs")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Listing([], f"listing the devices crashed with {name}: a driver is broken")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Listing([], f"listing the devices failed: {last}")
    return Listing(answer.get("devices", []), answer.get("trouble", ""))
