"""llama-server as a side of the bench: the same prompts and lengths, rates from when its tokens came."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.measure.bench.budget import Spent
from labkit.measure.bench.costs import Costs
from labkit.measure.bench.settings import Cell, Settings
from labkit.measure.bench.sides import Sample, decode_metrics, prefill_metrics
from labkit.measure.bench.streams import Arrivals
from labkit.runtimes.llama_binary import CHUNK, NAME, Binary
from labkit.runtimes.llama_server import LlamaServer
from labkit.runtimes.load import at_once
from labkit.runtimes.runtime import Answer, Ask

PEER_MARGIN = 2 << 30  # bytes llama.cpp takes beside weights and cache: compute buffers, its own context


class PeerSide:
    """A running llama-server that answers cells of the phases it was started for."""

    name = NAME

    def __init__(
        self,
        binary: Binary,
        gguf: Path,
        settings: Settings,
        costs: Costs,
        *,
        phases: Sequence[str],
        limit: int,
        log: Path,
        device_index: int | None,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`limit`: positions the model was made for. Raises RunError when the server does not come up."""
        self.settings, self.costs = settings, costs
        slots, context = shape(settings, phases, limit)
        self.server = LlamaServer(
            binary, gguf, slots=slots, context=context, log=log, ub=settings.ub or CHUNK, kv=settings.kv,
            device_index=device_index, waiting=waiting,
        )  # fmt: skip

    def measure(self, cell: Cell, prompts: Sequence[Sequence[int]], since: Callable[[float], float]) -> Sample:
        """See `Side`."""
        tokens = self.settings.tokens(cell) if cell.phase == "decode" else 1
        asks = [Ask(tuple(int(i) for i in ids), tokens) for ids in prompts]
        answers = self.server.stream(asks, at_once(len(asks)))
        failed = next((answer.error for answer in answers if answer.error is not None), None)
        if failed is not None:
            raise RunError(failed if failed.startswith(NAME) else f"{NAME}: {failed}")
        lengths = [len(ids) for ids in prompts]
        cached = sum(answer.cached_tokens or 0 for answer in answers)
        if cached > 0.01 * sum(lengths):
            raise RunError(f"{NAME} took {cached} tokens of the prompts from a cache: its rate would not be one")
        rows = [_row(answer, ids, since) for answer, ids in zip(answers, prompts, strict=True)]
        if cell.phase == "prefill":
            first, prompt = answers[0], lengths[0]
            metrics = prefill_metrics(prompt, first.times[0] - first.submit_s, self.costs)
            if first.timings.get("prompt_ms", 0.0) > 0:
                metrics["server_prefill_tok_s"] = prompt / first.timings["prompt_ms"] * 1e3
            return Sample(metrics, rows, first.submit_s, first.times[0], prompt / 2, prompt)
        streams = [
            Arrivals(length, answer.submit_s, answer.times) for length, answer in zip(lengths, answers, strict=True)
        ]
        metrics, window = decode_metrics(streams, self.costs)
        rows = [row | window.row(i, since) for i, row in enumerate(rows)]
        return Sample(metrics, rows, window.start_s, window.end_s, window.depth, window.tokens)

    def spent(self, cell: Cell) -> list[Spent]:
        """Nothing: a server does not tell where the time of its step goes."""
        return []

    def close(self) -> None:
        """Stop the server."""
        self.server.close()


def shape(settings: Settings, phases: Sequence[str], limit: int) -> tuple[int, int]:
    """(slots, positions a slot) that a server needs for these phases."""
    slots = max(settings.batch, default=1) if "decode" in phases else 1
    context = max(
        settings.decode_context if "decode" in phases else 0, settings.prefill_context if "prefill" in phases else 0
    )
    return slots, min(-(-(context + 8) // 256) * 256, limit)


def peer_bytes(settings: Settings, costs: Costs, model_bytes: int, phases: Sequence[str], limit: int) -> int:
    """Device memory a server of that shape takes, about."""
    slots, context = shape(settings, phases, limit)
    return model_bytes + slots * context * costs.kv_bytes + PEER_MARGIN


def _row(answer: Answer, ids: Sequence[int], since: Callable[[float], float]) -> dict[str, Any]:
    return {
        "prompt_sha256": hashlib.sha256(repr(list(ids)).encode()).hexdigest(),
        "prompt_tokens": len(ids),
        "completion_tokens": len(answer.times),
        "submit_s": since(answer.submit_s),
        "first_token_s": since(answer.times[0]),
        "last_token_s": since(answer.times[-1]),
        "finish": "length",
        "server": dict(answer.timings),
    }
