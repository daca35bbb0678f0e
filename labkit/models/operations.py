"""The operations an architecture is written in, and the registry of architectures' forward passes.

A forward pass is one function over `Operations`; it is run by the NumPy executor (the truth), by the program executor
(kernels), and by a collector that learns which tensors are used together.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from labkit.errors import ModelError
from labkit.models.config import ModelConfig

V = TypeVar("V")  # what an executor passes from operation to operation: an array, or a place on the device


class Operations(Protocol[V]):
    """What an architecture may use. Rows are tokens: R in a step, L of them wanting logits."""

    def embedding(self, table: str, *, scale: float = 1.0) -> V:
        """Rows of `table` at the tokens, times `scale`: [R, hidden]."""
        ...

    def rms_norm(self, x: V, weight: str, *, wanted_only: bool = False) -> V:
        """x / rms(x) * weight, for every row or only for those that want logits."""
        ...

    def linear(
        self,
        x: V,
        weights: Sequence[str],
        *,
        biases: Sequence[str] = (),
        norm: str | None = None,
        add_to: V | None = None,
    ) -> V:
        """x times each matrix, side by side, plus `biases` side by side (of q, k and v only); added to `add_to` in place
        when given, behind an RMS norm of its own where `norm` is given."""
        ...

    def swiglu(self, x: V, gate: str, up: str) -> V:
        """silu(x gate) * (x up)."""
        ...

    def geglu(self, x: V, gate: str, up: str) -> V:
        """gelu(x gate) * (x up), by GELU's tanh form."""
        ...

    def attention(self, qkv: V, layer: int, *, head_norms: Sequence[str] = ()) -> V:
        """Norm each head of q and k by `head_norms` where given, rotate them, store k and v in the cache of `layer`, and
        attend to the slot's own positions up to each row's that the layer's window shows."""
        ...


Forward = Callable[[Any, ModelConfig], Any]
FORWARDS: dict[str, Forward] = {}


def forward_of(architecture: str) -> Callable[[Forward], Forward]:
    """Register the forward pass of an architecture."""

    def register(function: Forward) -> Forward:
        FORWARDS[architecture] = function
        return function

    return register


def forward(config: ModelConfig) -> Forward:
    """The forward pass of `config.architecture`. Raises ModelError where there is none."""
    import importlib

    if config.architecture not in FORWARDS:
        try:
            importlib.import_module(f"labkit.models.{config.architecture}")
        except ModuleNotFoundError:
            raise ModelError(f"architecture {config.architecture!r} has no forward pass in labkit") from None
    return FORWARDS[config.architecture]
