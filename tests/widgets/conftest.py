"""Fixtures of the views: a tiny model's engine, and a lab of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.engine.engine import Engine
from labkit.lab.init import make_lab
from labkit.lab.lab import Lab
from labkit.vulkan.device import Device

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q4_1.gguf"


@pytest.fixture(scope="session")
def engine(device: Device) -> Iterator[Engine]:
    with Engine(str(TINY), device, slots=2, context=96) as opened:
        yield opened


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # nobody else's run holds the device here
    return Lab(make_lab(tmp_path / "a lab"))
