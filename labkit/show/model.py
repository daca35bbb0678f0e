"""A model's HTML: its shape, and its bytes by tensor type."""

from typing import TYPE_CHECKING

from labkit.show.pieces import Html, bar, facts_table, share_words, size_words, table

if TYPE_CHECKING:
    from labkit.models.model import Model


def model_html(model: "Model") -> Html:
    """Architecture and shape, then a row a tensor type with its share of the bytes."""
    c = model.config
    facts = {
        "title": str(model.metadata.get("general.name", "—"))[:120],
        "architecture": c.architecture,
        "layers × hidden": f"{c.layers} × {c.hidden}",
        "heads / KV heads × size": f"{c.heads} / {c.kv_heads} × {c.head_dim}",
        "feed-forward": f"{c.ffn}",
        "vocabulary": f"{c.vocab:,}" + (" (tied)" if c.tied else ""),
        "context": f"{c.context:,} tokens",
        "parameters": f"{model.parameters:,}",
        "tensors": f"{len(model.tensors):,} in {size_words(model.nbytes)}",
        "file": model.path.name,
    }
    rows = []
    for name, nbytes in model.bytes_by_type.items():
        kind = [tensor.type for tensor in model.tensors.values() if tensor.type.name == name]
        share = nbytes / model.nbytes
        rows.append(
            (name, len(kind), size_words(nbytes), f"{kind[0].bits_per_weight:g}", share_words(share), bar(share))
        )
    head = ("type", "tensors", "bytes", "bits per weight", "share", "")
    return Html(facts_table(facts, model.name) + table(head, rows, numbers=(1, 2, 3, 4)))
