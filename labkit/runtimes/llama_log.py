"""What llama.cpp writes of its settings while it loads a model: what the context came to, whatever was asked for."""

import re
from pathlib import Path
from typing import Any

HEAD_BYTES = 1 << 20  # of a log: it says so before the first request
_NUMBERS = {
    "slots": re.compile(r"llama_context: n_seq_max\s*= (\d+)"),
    "context": re.compile(r"llama_context: n_ctx_seq\s*= (\d+)"),
    "ub": re.compile(r"llama_context: n_ubatch\s*= (\d+)"),
}
_CACHE = re.compile(r"llama_kv_cache: size = .*\bK \((\w+)\).*\bV \((\w+)\)")
_TYPE = re.compile(r"print_info: file type\s*= (.+)")


def read_settings(log: Path) -> dict[str, Any]:
    """Settings by our names, those that the log tells: slots, context (positions of a slot), ub, kv, quant.

    Of several contexts (a draft model has its own) it is the first that counts."""
    try:
        with log.open("rb") as file:
            text = file.read(HEAD_BYTES).decode(errors="replace")
    except OSError:
        return {}
    found: dict[str, Any] = {}
    for name, pattern in _NUMBERS.items():
        if match := pattern.search(text):
            found[name] = int(match[1])
    if match := _CACHE.search(text):
        found["kv"] = match[1] if match[1] == match[2] else f"{match[1]}/{match[2]}"
    if match := _TYPE.search(text):
        found["quant"] = match[1].strip()
    return found
