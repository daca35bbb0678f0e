"""Fixtures of the engine tests: the tiny models with their transformers references, and engines over them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.engine.engine import Engine
from labkit.models.model import Model
from labkit.vulkan.device import Device

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
FILES = sorted(path.stem for path in TINY.glob("*.gguf"))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, over the last axis."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    out: np.ndarray = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return out


class Tiny:
    """One tiny model with what transformers says of it: prompt, greedy ids, logits [24, vocab] behind each."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, TINY / f"{name}.gguf"
        self.model = Model(self.path)
        with np.load(TINY / f"{name}.npz") as reference:
            self.prompt = reference["prompt"].tolist()
            self.greedy = reference["greedy"].tolist()
            self.logits, self.gap = reference["step_logits"], reference["gap"]
        self.logprobs = log_softmax(self.logits)  # [24, vocab]


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


def words(seed: int, length: int, vocabulary: int = 515) -> list[int]:
    """Random token ids, none of them special."""
    ids: list[int] = np.random.default_rng(seed).integers(6, vocabulary, length).tolist()
    return ids


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """32 different prompts of different lengths, 1 to 94 tokens."""
    return [words(100 + i, 1 + 3 * i) for i in range(32)]
