"""Fixtures of the engine tests: the tiny models with their transformers references, and engines over them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny_models import Tiny, words

from labkit.engine.engine import Engine
from labkit.vulkan.device import Device


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Tiny]:
    """A tiny model by name, read once."""
    made: dict[str, Tiny] = {}

    def get(name: str) -> Tiny:
        if name not in made:
            made[name] = Tiny(name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def engines(device: Device, tiny: Callable[[str], Tiny]) -> Iterator[Callable[..., Engine]]:
    """Engines by tiny model and options, kept for the module; their guard words are checked at its end."""
    made: dict[Any, Engine] = {}

    def get(name: str = "llama-q4_1", **options: Any) -> Engine:
        key = (name, tuple(sorted(options.items())))
        if key not in made:
            made[key] = Engine(tiny(name).model, device, **options)
        return made[key]

    yield get
    for engine in made.values():
        engine.executor.pool.check_guards()
        engine.weights.pool.check_guards()
        engine.close()


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """32 different prompts of different lengths, 1 to 94 tokens."""
    return [words(100 + i, 1 + 3 * i) for i in range(32)]
