"""An engine's HTML: its slots, and a map of the memory it holds against what the card has."""

from typing import TYPE_CHECKING, Any

from labkit.show.pieces import Html, facts_table, key, share_words, size_words, stack, table

if TYPE_CHECKING:
    from labkit.engine.engine import Engine

BUSY, IDLE = "■", "□"
NAMES = {"weights": "weights", "kv cache": "KV cache", "working": "scratch"}
MOST_SQUARES = 64  # of slots that are drawn one by one


def engine_html(engine: "Engine") -> Html:
    """Settings and slots; while it is open, where the card's memory goes."""
    title = f"{engine.model.name} on {engine.device.name}"
    settings = {
        "context": f"{engine.context:,} positions a slot, {size_words(engine.kv_bytes_per_token)} each in the cache",
        "KV cache": engine.kv,
        "arithmetic": engine.arithmetic,
        "micro-batch": f"{engine.ub} rows",
    }
    if engine.closed:
        return facts_table({"state": "closed: it holds nothing", "slots": engine.slots, **settings}, title)
    return Html(facts_table({"slots": slots_words(engine), **settings}, title) + memory_html(engine))


def slots_words(engine: "Engine") -> str:
    """`■■□□ 2 of 4 busy, 0 waiting`."""
    busy = [slot.request is not None for slot in engine.scheduler.slots]
    squares = "".join(BUSY if one else IDLE for one in busy) if len(busy) <= MOST_SQUARES else ""
    return f"{squares} {sum(busy)} of {len(busy)} busy, {len(engine.scheduler.waiting)} waiting".strip()


def memory_html(engine: "Engine") -> Html:
    """A bar of the card's memory and a row a part of it; what others hold only where the driver tells."""
    total, free = engine.device.info.memory_bytes, None if engine.device.closed else engine.device.memory_free()
    parts = {NAMES.get(name, name): nbytes for name, nbytes in engine.memory.items()}
    if free is not None:
        parts["other engines and programs"] = max(total - free - sum(parts.values()), 0)
    left = free if free is not None else max(total - sum(parts.values()), 0)
    rows: list[tuple[Any, ...]] = [
        (key(place), name, size_words(nbytes), share_words(nbytes / total))
        for place, (name, nbytes) in enumerate(parts.items())
    ]
    rows.append(
        (
            "",
            "free" if free is not None else "left, if nobody else holds any",
            size_words(left),
            share_words(left / total),
        )
    )
    drawn = stack(tuple(parts.values()), total)
    return Html(
        f"<p>{drawn} {size_words(total)} of device memory</p>\n"
        + table(("", "memory", "bytes", "share"), rows, numbers=(2, 3))
    )
