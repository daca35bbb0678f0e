"""Fixtures shared by all tests: one poisoned device for the session, and one with cooperative matrices."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.commands.test import APART, WHY_NOT
from labkit.vulkan import program
from labkit.vulkan.device import Device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best device here, its buffers born filled with NaN and followed by guard words."""
    with Device(poison=True) as opened:
        if opened.is_cpu:  # it compiles within a submit, and a busy machine may take minutes over a kernel of matrices
            program.GPU_TIMEOUT_S = 900.0
        yield opened


@pytest.fixture(scope="session")
def coopmat_device(device: Device) -> Device:
    """The device, where it has cooperative matrices; a test that takes it is marked `coopmat`.

    `lab test` runs these on Mesa 26's software driver where the host's has none.
    """
    if not device.coopmat_size:
        why = os.environ.get(WHY_NOT) or "`lab test` runs this with Mesa 26"
        pytest.skip(f"{device.name} ({device.info.driver_info}) has no cooperative matrices: {why}")
    return device


def pytest_configure() -> None:
    """Tests interrupt themselves and their children: the job of a shell's background has SIGINT ignored, and so they."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what takes the fixture, before `-m` chooses."""
    if "coopmat_device" in getattr(item, "fixturenames", ()):
        item.add_marker("coopmat")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For `lab test`: leave the chosen tests of cooperative matrices to its second process, and note them."""
    if not (path := os.environ.get(APART)):
        return
    apart = [item for item in items if item.get_closest_marker("coopmat") and not item.get_closest_marker("gpu")]
    given = [str(word) for word in config.invocation_params.args]
    noted = {
        "tests": [item.nodeid for item in apart],
        "options": [word for word in given if word not in config.option.file_or_dir],
        "junit": config.option.xmlpath,
        "stop": bool(config.option.maxfail),
    }
    Path(path).write_text(json.dumps(noted))
    if apart:
        items[:] = [item for item in items if item not in set(apart)]
        config.hook.pytest_deselected(items=apart)


@pytest.fixture
def imitation(tmp_path: Path) -> Path:
    """The path of an executable that behaves as llama-server; the environment's IMITATION makes it fail."""
    source = Path(__file__).with_name("imitation_server.py")
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{source}" "$@"\n')  # paths may have spaces in them
    program.chmod(0o755)
    return program
