"""What a server of llama.cpp tells of its settings, at GET /props and /slots."""

from pathlib import Path
from typing import Any

from labkit.runtimes.answers import count


def read_settings(props: Any, slots: Any) -> dict[str, Any]:
    """slots, context (positions of a slot), model, quant and draft, as far as the answers of /props and /slots tell."""
    props = props if isinstance(props, dict) else {}
    slots = [each for each in slots if isinstance(each, dict)] if isinstance(slots, list) else []
    defaults = props.get("default_generation_settings")
    defaults = defaults if isinstance(defaults, dict) else {}
    told = {
        "slots": count(props.get("total_slots")) or len(slots) or None,
        "context": count(slots[0].get("n_ctx")) if slots else count(defaults.get("n_ctx")),
        "model": Path(props["model_path"]).name if _filled(props.get("model_path")) else None,
        "quant": props["model_ftype"] if _filled(props.get("model_ftype")) else None,
        "draft": _draft(slots),
    }
    return {name: value for name, value in told.items() if value is not None}


def _draft(slots: list[dict[str, Any]]) -> str | None:
    """How its slots draft: the kinds that they name once they had a request, else `on`; `none` where they do not draft.

    /props says `none` in its defaults whatever was asked for, and does not count."""
    if not slots or not all(isinstance(each.get("speculative"), bool) for each in slots):
        return None
    if not any(each["speculative"] for each in slots):
        return "none"
    for each in slots:
        params = each.get("params")
        kinds = params.get("speculative.types") if isinstance(params, dict) else None
        if _filled(kinds):
            named = [kind for kind in str(kinds).split(",") if kind != "none"]
            if named:
                return ",".join(named)
    return "on"


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
