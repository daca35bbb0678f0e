"""The tiny models of tests/data/tiny with their transformers references, and prompts made of random ids."""

from pathlib import Path

import numpy as np

from labkit.models.model import Model

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
FOLDERS = sorted(path.name for path in TINY.iterdir() if path.is_dir())
FILES = sorted([*(path.stem for path in TINY.glob("*.gguf")), *FOLDERS])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, over the last axis."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    out: np.ndarray = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return out


class Tiny:
    """One tiny model with what transformers says of it: prompt, greedy ids, logits [24, vocab] behind each."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, TINY / (name if name in FOLDERS else f"{name}.gguf")
        self.model = Model(self.path)
        with np.load(TINY / f"{name}.npz") as reference:
            self.prompt = reference["prompt"].tolist()
            self.greedy = reference["greedy"].tolist()
            self.logits, self.gap = reference["step_logits"], reference["gap"]
        self.logprobs = log_softmax(self.logits)  # [24, vocab]


def words(seed: int, length: int, vocabulary: int = 515) -> list[int]:
    """Random token ids, none of them special."""
    ids: list[int] = np.random.default_rng(seed).integers(6, vocabulary, length).tolist()
    return ids
