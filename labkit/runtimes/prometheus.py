"""A server's own counters from its GET /metrics, under our names.

The names are those of llama.cpp's server (`llamacpp:`), vLLM (`vllm:`), SGLang (`sglang:`) and `lab serve` (`labkit_`)."""

import math
import re
from collections.abc import Mapping

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")

# Each of ours is the sum of the first group of which a server has all; series that differ in labels alone are summed.
# Of a prompt's tokens those from a cache count too: llama.cpp tells them apart, and older builds of it not at all.
NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "requests": (
        ("vllm:request_success_total",), ("sglang:num_requests_total",), ("labkit_completions_total",),
    ),
    "prompt_tokens": (
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"), ("llamacpp:prompt_tokens_total",),
        ("vllm:prompt_tokens_total",), ("sglang:prompt_tokens_total",), ("labkit_prompt_tokens_total",),
    ),
    "cached_tokens": (
        ("llamacpp:prompt_tokens_cached_total",), ("vllm:prefix_cache_hits_total",), ("vllm:gpu_prefix_cache_hits_total",),
        ("sglang:cached_tokens_total",),
    ),
    "completion_tokens": (
        ("llamacpp:tokens_predicted_total",), ("vllm:generation_tokens_total",), ("sglang:generation_tokens_total",),
        ("labkit_completion_tokens_total",),
    ),
    "drafted": (("llamacpp:spec_decode_num_draft_tokens_total",), ("vllm:spec_decode_num_draft_tokens_total",)),
    "accepted": (("llamacpp:spec_decode_num_accepted_tokens_total",), ("vllm:spec_decode_num_accepted_tokens_total",)),
    "preempted": (("vllm:num_preemptions_total",), ("sglang:num_retracted_reqs_total",)),
}  # fmt: skip


def read_metrics(text: str) -> dict[str, float]:
    """Value by name from the text format of Prometheus, series of one name summed; lines that are none are passed over."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            values[found[1]] = values.get(found[1], 0.0) + value
    return values


def our_counters(values: Mapping[str, float]) -> dict[str, float]:
    """What of a server's metrics is one of our counters; nothing for those that it does not have."""
    counters = {}
    for ours, groups in NAMES.items():
        group = next((group for group in groups if all(name in values for name in group)), None)
        if group is not None:
            counters[ours] = sum(values[name] for name in group)
    return counters
