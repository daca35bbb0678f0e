"""How a slot's next token is chosen: the settings, checked where they are made, and their words for the kernels."""

import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from labkit.errors import ParameterError

PARAM_WORDS = 16  # uint32 words of one slot's parameters
MAX_BIAS = 512  # biased ids of one slot
IGNORE_EOS, ADJUSTS = 1, 2  # bits of the flags word


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of one request, named and defaulting as in the OpenAI API and vLLM; temperature 0 is greedy.

    Applied in this order: logit_bias; repetition_penalty (ids of the prompt and the output); frequency_penalty and
    presence_penalty (output only); at temperature 0 the greatest logit, else temperature, top_k, top_p over what top_k
    kept, min_p, and a draw. Ties at a threshold stay in. Raises ParameterError, in one line, for a value out of range.

    temperature: 0, or 0.01 to 100. top_k: 0 (or -1) for off, else 1 and up. top_p: above 0, to 1 (off).
    min_p: 0 (off) to 1. repetition_penalty: above 0, to 100; 1 is off. presence_penalty, frequency_penalty: -2 to 2.
    logit_bias: token id -> -100 to 100, at most 512 ids. seed: 0 to 2^64 - 1, or None for a fresh one a request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature != 0:
            self._real("temperature", 0.01, 100.0, "0 (greedy) or 0.01 to 100")
        else:
            self._real("temperature", 0.0, 0.0, "0 (greedy) or 0.01 to 100")
        self._whole("top_k", -1, (1 << 31) - 1, "0 (off) or a whole number from 1")
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        self._real("top_p", 0.0, 1.0, "above 0 and at most 1 (off)", open_below=True)
        self._real("min_p", 0.0, 1.0, "0 (off) to 1")
        self._real("repetition_penalty", 0.0, 100.0, "above 0 and at most 100 (1 is off)", open_below=True)
        self._real("presence_penalty", -2.0, 2.0, "-2 to 2")
        self._real("frequency_penalty", -2.0, 2.0, "-2 to 2")
        if self.seed is not None:
            self._whole("seed", 0, (1 << 64) - 1, "None or a whole number from 0 to 2^64 - 1")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _real(self, name: str, least: float, most: float, allowed: str, *, open_below: bool = False) -> None:
        value = getattr(self, name)
        real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        # compared as float32, which is what the kernels get: 1e-60 is 0 there
        if not real or not least <= float(value) <= most or (open_below and not np.float32(value) > least):
            raise ParameterError(f"{name}={value!r} is out of range: {allowed}")
        object.__setattr__(self, name, float(value))

    def _whole(self, name: str, least: int, most: int, allowed: str) -> None:
        value = getattr(self, name)
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
        if not whole or not least <= int(value) <= most:
            raise ParameterError(f"{name}={value!r} is out of range: {allowed}")
        object.__setattr__(self, name, int(value))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings, in the order above."""
        return tuple(f.name for f in fields(cls))

    @property
    def greedy(self) -> bool:
        """True when no draw is made."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """True when bias or penalties change the logits."""
        penalised = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return penalised or bool(self.logit_bias)

    @property
    def plain(self) -> bool:
        """True when the token is the greatest raw logit: the program may leave the sampling kernels out."""
        return self.greedy and not self.adjusts

    def seeded(self) -> "Sampling":
        """Itself, with a fresh seed where it draws and has none; report that seed, so that the run can be repeated."""
        return self if self.seed is not None or self.greedy else replace(self, seed=secrets.randbits(64))

    def check_vocabulary(self, size: int) -> None:
        """Raise ParameterError when a biased id lies outside a vocabulary of `size`."""
        for token in self.logit_bias:
            if token >= size:
                raise ParameterError(f"logit_bias names token {token}, which is outside the vocabulary of {size}")


def _biases(given: Any) -> dict[int, float]:
    """logit_bias with whole ids (JSON's text keys included) and float values, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(f"logit_bias={given!r} is not a mapping of token id to bias")
    if len(given) > MAX_BIAS:
        raise ParameterError(f"logit_bias has {len(given)} ids; at most {MAX_BIAS} are taken")
    made: dict[int, float] = {}
    for key, value in given.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit()
        whole = isinstance(key, numbers.Integral) and not isinstance(key, bool)
        if not (digits or whole) or not 0 <= int(key) < 1 << 31:
            raise ParameterError(f"logit_bias: {key!r} is not a token id (a whole number from 0)")
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or not -100 <= value <= 100:
            raise ParameterError(f"logit_bias[{key}]={value!r} is out of range: -100 to 100")
        if int(key) in made:
            raise ParameterError(f"logit_bias names token {int(key)} twice")
        made[int(key)] = float(value)
    return made


def pack(samplings: Sequence[Sampling], ignore_eos: bool | Sequence[bool] = False) -> np.ndarray:
    """The params buffer's rows: uint32 [len(samplings)][16], floats as their bits (see shaders/include/logits.glsl).

    `ignore_eos`: the slot goes on past stop ids; one for all, or one each. Raises ParameterError for a slot that draws
    without a seed: call `seeded()` first.
    """
    ignore = [ignore_eos] * len(samplings) if isinstance(ignore_eos, bool) else list(ignore_eos)
    if len(ignore) != len(samplings):
        raise ParameterError(f"{len(ignore)} values of ignore_eos for {len(samplings)} slots: give one, or one a slot")
    words = np.zeros((len(samplings), PARAM_WORDS), np.uint32)
    reals = words.view(np.float32)
    for i, s in enumerate(samplings):
        if s.seed is None and not s.greedy:
            raise ParameterError(f"a slot draws at temperature={s.temperature} without a seed: pack sampling.seeded()")
        seed = s.seed or 0
        reals[i, 0], words[i, 1], reals[i, 2], reals[i, 3] = s.temperature, s.top_k, s.top_p, s.min_p
        reals[i, 4:7] = s.repetition_penalty, s.presence_penalty, s.frequency_penalty
        words[i, 7:10] = seed & 0xFFFFFFFF, seed >> 32, len(s.logit_bias)
        words[i, 10] = IGNORE_EOS * ignore[i] | ADJUSTS * s.adjusts
    return words


def pack_bias(samplings: Sequence[Sampling]) -> np.ndarray:
    """The bias buffer's rows: uint32 [len(samplings)][512][2], pairs of (token id, float bits), in the order given."""
    words = np.zeros((len(samplings), MAX_BIAS, 2), np.uint32)
    for i, s in enumerate(samplings):
        for j, (token, value) in enumerate(s.logit_bias.items()):
            words[i, j, 0], words[i, j, 1] = token, np.float32(value).view(np.uint32)
    return words
