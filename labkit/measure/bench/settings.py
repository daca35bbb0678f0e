"""What a bench measures: cells of (runtime, quantisation, phase, width), the limits of a setting, and the prompts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from labkit.errors import ParameterError

Phase = Literal["decode", "prefill"]
SHORT_PROMPT = 16  # tokens of a decode cell's prompt where no depth is asked for
OURS = "labkit"


@dataclass(frozen=True)
class Cell:
    """One thing that is measured. Decode: `streams` at once, each behind `prompt` tokens. Prefill: one of `prompt`."""

    runtime: str
    quant: str
    phase: Phase
    streams: int
    prompt: int

    def knobs(self) -> dict[str, Any]:
        """The cell as `measurements.csv` has it."""
        return {
            "runtime": self.runtime, "quant": self.quant, "phase": self.phase, "streams": self.streams,
            "prompt": self.prompt,
        }  # fmt: skip

    @property
    def label(self) -> str:
        """As a person reads it: `decode 8 × 16`, `prefill 512`."""
        return f"decode {self.streams} at {self.prompt}" if self.phase == "decode" else f"prefill {self.prompt}"


@dataclass(frozen=True)
class Settings:
    """The settings of a bench. `depth` 0 is a prompt of 16 tokens. `ub`: rows of a prompt chunk, None as the engine has
    it. `slots` and `context`: of the decode engine, None for what the cells need. Raises ParameterError."""

    batch: tuple[int, ...] = (1, 4, 8, 16, 32)
    prompt: tuple[int, ...] = (512, 2048, 4096)
    depth: tuple[int, ...] = (0,)
    generate: int = 128
    repetitions: int = 5
    ub: int | None = None
    slots: int | None = None
    context: int | None = None
    kv: str = "f16"
    arithmetic: str = "fast"
    seed: int = 0

    def __post_init__(self) -> None:
        checks = [("batch", self.batch, 1, 256), ("prompt", self.prompt, 1, 1 << 20), ("depth", self.depth, 0, 1 << 20)]
        for name, values, least, most in checks:
            for value in values:
                _whole(name, value, least, most)
            if len(set(values)) != len(values):
                raise ParameterError(f"--{name} names a value twice: {', '.join(map(str, values))}")
        _whole("generate", self.generate, 4, 1 << 16)
        _whole("repetitions", self.repetitions, 1, 1000)
        for name, most in (("ub", 1 << 16), ("slots", 256), ("context", 1 << 20)):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1, most)
        if not self.batch and not self.prompt:
            raise ParameterError("nothing to measure: give --batch, --prompt or both")
        if self.batch and not self.depth:
            raise ParameterError("--depth names no depth: give 0 for short prompts")
        if self.slots is not None and self.batch and self.slots < max(self.batch):
            raise ParameterError(f"--slots {self.slots} is fewer than the {max(self.batch)} streams of --batch")
        if self.context is not None and self.batch and self.context < self.decode_context:
            raise ParameterError(f"--context {self.context} is short of the {self.decode_context} positions needed")

    def cells(self, runtimes: Sequence[str], quant: str) -> list[Cell]:
        """Every cell of one quantisation, decode first."""
        found = []
        for runtime in runtimes:
            for depth in self.depth if self.batch else ():
                found += [Cell(runtime, quant, "decode", n, depth or SHORT_PROMPT) for n in self.batch]
            found += [Cell(runtime, quant, "prefill", 1, length) for length in self.prompt]
        return found

    def tokens(self, cell: Cell) -> int:
        """Tokens each stream of a decode cell emits: those that count, and a lead for streams that start first.

        A step takes at most a chunk of prompt tokens, so the first stream decodes while others still read."""
        return self.generate + -(-cell.streams * cell.prompt // self.chunk) + 3

    @property
    def chunk(self) -> int:
        """The fewest prompt tokens a step is taken to read, for the lead."""
        return min(self.ub or 256, 256)

    @property
    def streams(self) -> int:
        """Slots of the decode engine."""
        return self.slots or max(self.batch, default=1)

    @property
    def decode_context(self) -> int:
        """Positions a slot needs for the deepest decode cell."""
        deepest = max(self.depth, default=0) or SHORT_PROMPT
        deepest = max(deepest, SHORT_PROMPT if 0 in self.depth else 0)
        return deepest + self.tokens(Cell(OURS, "", "decode", max(self.batch, default=1), deepest)) + 1

    @property
    def prefill_context(self) -> int:
        """Positions a slot needs for the longest prefill cell."""
        return max(self.prompt, default=0) + 2


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ParameterError(f"--{name} {value!r} is not a whole number from {least} to {most}")


@dataclass
class Prompts:
    """Random prompts of one run: never two that begin alike, and the same for every runtime that is compared.

    `vocab` ids, less those in `avoid`; the first `reserved` ids (control and byte tokens) are left out where the
    vocabulary is large enough. Raises ParameterError for a vocabulary with nothing left."""

    vocab: int
    seed: int = 0
    avoid: Collection[int] = ()
    _made: dict[Any, list[list[int]]] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        first = 300 if self.vocab > 400 else 0
        self._ids = np.array([i for i in range(first, self.vocab) if i not in set(self.avoid)], np.int64)
        if not len(self._ids):
            raise ParameterError(f"a vocabulary of {self.vocab} has no token for a prompt")
        self._chance = np.random.default_rng(self.seed)

    def take(self, key: Any, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` ids; the same again for the same key."""
        key = (key, count, length)
        if key not in self._made:
            if len(self._begun) + count > len(self._ids):
                self._begun.clear()  # a small vocabulary: at least those that run together differ
            made = []
            for _ in range(count):
                ids = self._chance.choice(self._ids, length)
                while len(self._begun) < len(self._ids) and int(ids[0]) in self._begun:
                    ids[0] = self._chance.choice(self._ids)
                self._begun.add(int(ids[0]))
                made.append([int(i) for i in ids])
            self._made[key] = made
        return self._made[key]
