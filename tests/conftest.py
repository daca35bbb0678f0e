"""Fixtures shared by all tests: one poisoned device for the session, and a lab folder that is thrown away."""

from collections.abc import Iterator

import pytest

from labkit.vulkan.device import Device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best device here, its buffers born filled with NaN and followed by guard words."""
    with Device(poison=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def coopmat_device(device: Device) -> Device:
    """The device, where it has cooperative matrices; the driver on the CPU has them from Mesa 26 on."""
    if not device.coopmat_size:
        pytest.skip(f"{device.name} ({device.info.driver_info}) has no cooperative matrices: needs a GPU or Mesa 26")
    return device
