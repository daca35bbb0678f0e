"""Fixtures of the server's tests: real servers over a tiny model."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from labkit.engine.engine import Engine
from labkit.models.model import Model
from labkit.vulkan.device import Device

if TYPE_CHECKING:  # each test module imports it, and is skipped where starlette is not installed
    from running_server import Served


@pytest.fixture(scope="session")
def tiny_model() -> Iterator[Model]:
    from running_server import NAME, TINY

    with Model(TINY / f"{NAME}.gguf") as model:
        yield model


@pytest.fixture
def serving(device: Device, tiny_model: Model) -> "Iterator[Callable[..., Served]]":
    """Starts servers with other slots, limits or a key; all are stopped at the end of the test."""
    from running_server import Served

    from labkit.serve.limits import Limits

    made: list[Served] = []

    def start(*, slots: int = 2, context: int = 128, key: str | None = None, **limits: Any) -> Served:
        made.append(Served(Engine(tiny_model, device, slots=slots, context=context), Limits(**limits), key))
        return made[-1]

    yield start
    for served in made:
        served.stop()
        served.engine.close()


@pytest.fixture(scope="module")
def served(device: Device, tiny_model: Model) -> "Iterator[Served]":
    """One server for the tests of a module: 4 slots of 256 positions, arithmetic exact."""
    from running_server import Served

    from labkit.serve.limits import Limits

    with Engine(tiny_model, device, slots=4, context=256, arithmetic="exact") as engine:
        running = Served(engine, Limits(queue=16))
        yield running
        running.stop()
