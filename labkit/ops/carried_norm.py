"""A norm carried by two products: one leaves the residual as tiles and squares, the next divides by their root mean."""

from dataclasses import dataclass

import numpy as np

from labkit.ops.rounding import Rounded, Rounding, place, scratch_bytes
from labkit.vulkan.memory import Buffer, Pool, Range

ROWS = 64  # activation rows the state has room for
ELEMENTS = 8  # the fewest that one sum of squares is for: rows of the smallest cooperative matrices
FEW = 16  # rows up to which it pays: on an H200 every workgroup gathering the squares of 32 takes longer than a norm
GREATEST = np.float32(65504)  # of a float16; what is greater is clamped


def stride(rows: int) -> int:
    """Floats from one sum of a row to the next, in a program of `rows` rows."""
    return -(-rows // 8) * 8


def carried_bytes(width: int) -> int:
    """Bytes of a `CarriedState`."""
    return scratch_bytes(ROWS, width) + _number_bytes(width)


def _number_bytes(width: int) -> int:
    return (2 + -(-width // ELEMENTS)) * ROWS * 4


@dataclass(frozen=True)
class CarriedState:
    """What passes between products of one program: tiles of up to `ROWS` rows of `width`, factors and squares."""

    tiles: Buffer
    numbers: Buffer
    width: int

    @classmethod
    def make(cls, pool: Pool, width: int) -> "CarriedState":
        """Allocate it for rows of `width`."""
        numbers = pool.buffer(_number_bytes(width), label="carried norms").fill(0)
        return cls(pool.buffer(scratch_bytes(ROWS, width), label="carried tiles"), numbers, width)

    def factors(self, turn: int, rows: int) -> Range:
        """What `rows` rows of a norm are multiplied with, float32 [stride]; norms take turns."""
        return self.numbers.range(turn * stride(rows) * 4, stride(rows) * 4)

    def squares(self, rows: int) -> Range:
        """Sums of squares of `rows` rows, float32 [width / elements of a sum, stride]."""
        return self.numbers.range(2 * stride(rows) * 4, -(-self.width // ELEMENTS) * stride(rows) * 4)

    def placed(self, rounding: Rounding, rows: int) -> Rounded:
        """Where the tiles of `rows` rows lie."""
        return place(self.tiles, rounding, rows, self.width)


@dataclass(frozen=True)
class Carry:
    """What an "add" product leaves for the norm behind it: `tiles` of the sums times `gain`. `turn`: the norm's."""

    state: CarriedState
    tiles: Rounded
    gain: Buffer
    turn: int

    @property
    def reads(self) -> list[Buffer | Range]:
        """Ranges read besides the product's own."""
        return [self.gain, self.state.factors(self.turn ^ 1, self.tiles.rows)]

    @property
    def writes(self) -> list[Buffer | Range]:
        """Ranges written besides the product's own."""
        return [self.tiles.data, self.state.squares(self.tiles.rows)]


@dataclass(frozen=True)
class Carried:
    """The norm that a product over `tiles` of a `Carry` completes. `keep`: it is the first to, and leaves the factors."""

    state: CarriedState
    tiles: Rounded
    eps: float
    turn: int
    keep: bool

    @property
    def reads(self) -> list[Buffer | Range]:
        """Ranges read besides the product's own."""
        return [self.state.squares(self.tiles.rows), self.state.factors(self.turn ^ 1, self.tiles.rows)]

    @property
    def writes(self) -> list[Buffer | Range]:
        """Ranges written besides the product's own."""
        return [self.state.factors(self.turn, self.tiles.rows)] if self.keep else []


def as_carried(h: np.ndarray, gain: np.ndarray, before: np.ndarray) -> np.ndarray:
    """What the tiles hold of h [rows, width], with the factors [rows] of the norm before: float32 of float16."""
    scaled = h.astype(np.float32) * gain.astype(np.float32) * before[:, None].astype(np.float32)
    out: np.ndarray = np.clip(scaled, -GREATEST, GREATEST).astype(np.float16).astype(np.float32)
    return out
