"""Fixtures shared by all tests: one poisoned device for the session, and a lab folder that is thrown away."""

from collections.abc import Iterator

import pytest

from labkit.vulkan.device import Device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best device here, its buffers born filled with NaN and followed by guard words."""
    with Device(poison=True) as opened:
        yield opened
