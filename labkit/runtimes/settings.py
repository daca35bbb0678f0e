"""The settings of labkit's own engine by the names that levers have, wherever it is asked for them."""

from typing import Any

from labkit.engine.engine import Engine


def settings_of(engine: Engine) -> dict[str, Any]:
    """What an engine came to: slots, context (positions of a slot), ub, kv, arithmetic, model, quant (the type that most
    bytes of its weights have, `q4_1`), and draft, which is 0: it drafts nothing."""
    sizes = engine.model.bytes_by_type
    return {
        "slots": engine.slots, "context": engine.context, "ub": engine.ub, "kv": engine.kv,
        "arithmetic": engine.arithmetic, "model": engine.model.name,
        "quant": max(sizes, key=lambda kind: sizes[kind]).lower(), "draft": 0,
    }  # fmt: skip
