"""The least a step must read and compute, from a model's shape: what achieved rates are counted in."""

from dataclasses import dataclass

from labkit.engine.cache import token_bytes
from labkit.models.shapes import AnyModel

TABLE = "token_embd.weight"
HEAD = "output.weight"


@dataclass(frozen=True)
class Costs:
    """`weight_bytes`: matrices and norms a step reads once, in the file's own types; the embedding table, of which a
    step gathers a row a token, only where it is the output projection too. `body` and `head`: elements of the matrices
    every token passes, and of the one only tokens that want logits pass. `kv_bytes`: of a position, all layers."""

    weight_bytes: int
    body: int
    head: int
    kv_bytes: int
    attention: int  # FLOPs of a token for each position it sees, all layers

    def decode_bytes(self, streams: int, depth: float) -> float:
        """Bytes a decode step of `streams` must read when each sees `depth` positions on average."""
        return self.weight_bytes + streams * depth * self.kv_bytes

    def decode_flops(self, streams: int, depth: float) -> float:
        """FLOPs of a decode step."""
        return streams * (2 * (self.body + self.head) + self.attention * depth)

    def prefill_flops(self, tokens: int) -> float:
        """FLOPs of reading a prompt of `tokens` whose last token alone wants logits, attention causal."""
        return 2 * self.body * tokens + 2 * self.head + self.attention * tokens * (tokens + 1) / 2


def costs_of(model: AnyModel, kv: str = "f16") -> Costs:
    """The costs of `model` with a cache of `kv`."""
    c = model.config
    nbytes, body, head = 0, 0, 0
    for name, tensor in model.tensors.items():
        if name == TABLE and not c.tied:
            continue
        nbytes += tensor.nbytes
        if len(tensor.shape) == 2:
            elements = tensor.shape[0] * tensor.shape[1]
            if name == (TABLE if c.tied else HEAD):
                head += elements
            else:
                body += elements
    return Costs(nbytes, body, head, token_bytes(c, kv), 4 * c.heads * c.head_dim * c.layers)
