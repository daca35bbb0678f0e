"""The truth: an architecture's forward pass in NumPy, with the references that stand beside the kernels."""

from collections.abc import Sequence

import numpy as np

from labkit.models.model import Model
from labkit.models.operations import forward
from labkit.ops import attention as attention_op
from labkit.ops import embedding as embedding_op
from labkit.ops import linear as linear_op
from labkit.ops import rms_norm as rms_norm_op
from labkit.ops import rope as rope_op
from labkit.ops import swiglu as swiglu_op


class NumpyExecutor:
    """Runs rows (token, slot, position) through a model, keeping keys and values a slot. Slow and plain.

    Weights are dequantised to float32 on first use and kept; activations are float32, sums float64 inside each
    reference. Rows of one call may belong to several slots and must come in order of position within a slot.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.config = model, model.config
        self._arrays: dict[str, np.ndarray] = {}
        c = model.config
        self._angles = rope_op.table(c.context, c.rope_dim, c.rope_theta, c.rope_freq_factors, c.rope_scale)
        self._windowed = rope_op.table(c.context, c.rope_dim, c.rope_theta_windowed) if c.rope_theta_windowed else None
        self._cache: dict[tuple[int, int], tuple[list[np.ndarray], list[np.ndarray]]] = {}  # (layer, slot) -> k, v rows
        self._rows: Sequence[tuple[int, int, int]] = ()
        self._wanted: Sequence[int] = ()

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self.model.array(name)
        return self._arrays[name]

    def run(self, rows: Sequence[tuple[int, int, int]], wanted: Sequence[int]) -> np.ndarray:
        """Logits [len(wanted), vocab] of the wanted rows."""
        self._rows, self._wanted = rows, wanted
        logits: np.ndarray = forward(self.config)(self, self.config)
        return logits

    def logprobs(self, ids: Sequence[int], generated: int) -> np.ndarray:
        """Log-probabilities [generated, vocab] that the model gave each of the last `generated` tokens' places."""
        self._cache.clear()
        rows = [(token, 0, position) for position, token in enumerate(ids[:-1])]
        logits = self.run(rows, range(len(rows) - generated, len(rows))).astype(np.float64)
        top = logits.max(axis=-1, keepdims=True)
        out: np.ndarray = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
        return out

    # Operations

    def embedding(self, table: str, *, scale: float = 1.0) -> np.ndarray:
        return embedding_op.reference(self._array(table), np.array([r[0] for r in self._rows]), scale)

    def rms_norm(self, x: np.ndarray, weight: str, *, wanted_only: bool = False) -> np.ndarray:
        if wanted_only:
            x = x[list(self._wanted)]
        return rms_norm_op.reference(x, self._array(weight), self.config.rms_eps)

    def linear(
        self, x: np.ndarray, weights: Sequence[str], *, biases: Sequence[str] = (), norm: str | None = None,
        add_to: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        out = np.concatenate([linear_op.reference(x, self._array(name)) for name in weights], axis=1)
        if biases:
            out = out + np.concatenate([self._array(name) for name in biases])
        if norm is not None:
            out = rms_norm_op.reference(out, self._array(norm), self.config.rms_eps)
        return out if add_to is None else add_to + out

    def swiglu(self, x: np.ndarray, gate: str, up: str) -> np.ndarray:
        return swiglu_op.reference(linear_op.reference(x, self._array(gate)), linear_op.reference(x, self._array(up)))

    def geglu(self, x: np.ndarray, gate: str, up: str) -> np.ndarray:
        parts = [linear_op.reference(x, self._array(name)) for name in (gate, up)]
        return swiglu_op.reference(*parts, gelu=True)

    def attention(self, qkv: np.ndarray, layer: int, *, head_norms: Sequence[str] = ()) -> np.ndarray:
        c, window = self.config, self.config.window(layer, self.config.context)
        angles = self._angles if self._windowed is None or not c.turns_apart(layer) else self._windowed
        heads, kv_heads = c.heads, c.kv_heads
        each = qkv.reshape(len(qkv), heads + 2 * kv_heads, c.head_dim)
        if head_norms:
            each, parts = each.copy(), (slice(heads), slice(heads, heads + kv_heads))
            for name, part in zip(head_norms, parts, strict=True):
                each[:, part] = rms_norm_op.reference(each[:, part], self._array(name), c.rms_eps)
        out = np.empty((len(qkv), heads * c.head_dim), np.float32)
        for r, (_, slot, position) in enumerate(self._rows):
            turned = rope_op.reference(
                each[r : r + 1, : heads + kv_heads], angles[position : position + 1], c.rope_pairing
            )
            keys, values = self._cache.setdefault((layer, slot), ([], []))
            del keys[position:], values[position:]
            keys.append(turned[0, heads:])
            values.append(each[r, heads + kv_heads :])
            first = max(position + 1 - window, 0) if window else 0
            seen_k, seen_v = np.stack(keys[first:]), np.stack(values[first:])
            out[r] = attention_op.reference(turned[0, :heads], seen_k, seen_v, scale=c.attention_scale).reshape(-1)
        return out
